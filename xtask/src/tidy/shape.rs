//! Rules on the outer shape of files.

use super::Finding;
use super::tree::Tree;

/// One concept per file, with its unit tests.
const LINES_MAX: usize = 500;

/// No Rust file is longer than [`LINES_MAX`].
pub(super) fn file_length(tree: &Tree) -> Vec<Finding> {
    let long = tree.rust().filter(|file| file.lines.len() > LINES_MAX);
    long.map(|file| {
        let message = format!("{} lines; split at the second concept, {LINES_MAX} is the limit", file.lines.len());
        Finding::new(&file.path, LINES_MAX + 1, message)
    })
    .collect()
}

/// Every Rust file opens with its purpose.
pub(super) fn module_doc(tree: &Tree) -> Vec<Finding> {
    let bare = tree.rust().filter(|file| !file.text.starts_with("//! "));
    bare.map(|file| Finding::new(&file.path, 1, "open the file with `//!` and what it is for")).collect()
}

/// Text is ASCII outside tests, so that it greps, diffs and prints everywhere.
pub(super) fn ascii(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.is_test()) {
        for (number, line) in file.numbered() {
            let in_test = file.lines.get(number - 1).is_some_and(|line| line.is_test);
            if let Some(letter) = line.chars().find(|letter| !letter.is_ascii())
                && !in_test
            {
                findings.push(Finding::new(&file.path, number, format!("`{letter}` is not ASCII")));
            }
        }
    }
    findings
}

/// A test is left out of the gate only because it is long, or needs a large program; `cargo xtask heavy` runs such tests, apart
/// from those that only measure.
pub(super) fn long_tests(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (number, line) in file.numbered() {
            let attribute = line.trim_start();
            if attribute.starts_with("#[ignore") && !attribute.starts_with("#[ignore = \"long: ") {
                findings.push(Finding::new(&file.path, number, "write `#[ignore = \"long: ...\"]` with the reason"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn a_file_ends_at_the_limit() {
        let (fits, long) = ("//! x\n".repeat(LINES_MAX), "//! x\n".repeat(LINES_MAX + 1));
        let files = [("a.rs", fits.as_str()), ("b.rs", long.as_str()), ("c.md", long.as_str())];
        assert_eq!(places(file_length, &files), ["b.rs:501"]);
    }

    #[test]
    fn tests_and_examples_open_with_a_doc_too() {
        let files = [("a.rs", "//! A.\n"), ("x/tests/b.rs", "#![cfg(x)]\n"), ("c.rs", ""), ("d.toml", "")];
        assert_eq!(places(module_doc, &files), ["x/tests/b.rs:1", "c.rs:1"]);
    }

    #[test]
    fn letters_beyond_ascii_stay_in_tests() {
        let files = [
            ("a.md", "plain\nna\u{ef}ve\n"),
            ("b.rs", "// \u{2192}\n#[cfg(test)]\nmod tests {\n// \u{2192}\n}\n"),
            ("x/tests/c.rs", "// \u{2192}\n"),
        ];
        assert_eq!(places(ascii, &files), ["a.md:2", "b.rs:1"]);
    }

    #[test]
    fn an_ignored_test_says_that_it_is_long() {
        let text = "#[ignore]\nfn a() {}\n#[ignore = \"long: all schedules\"]\nfn b() {}\n#[ignore = \"flaky\"]\n";
        assert_eq!(places(long_tests, &[("x/tests/a.rs", text)]), ["x/tests/a.rs:1", "x/tests/a.rs:5"]);
    }
}
