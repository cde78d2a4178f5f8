//! Each documented promise has a test, and each documented command exists.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

const SEMANTICS: &str = "docs/SEMANTICS.md";

/// Every promise of the semantics has a test named after it, and every such test its promise.
pub(super) fn promises(tree: &Tree) -> Vec<Finding> {
    let mut promised = BTreeMap::new();
    for (number, line) in tree.file(SEMANTICS).iter().flat_map(|file| file.numbered()) {
        if let Some(promise) = promise_of_line(line) {
            promised.entry(promise).or_insert(number);
        }
    }
    let mut untested = promised.clone();
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| file.path.starts_with("crates/")) {
        for (number, line) in (1..).zip(&file.lines).filter(|(_, line)| line.is_test) {
            let Some(promise) = promise_of_test(&line.code) else { continue };
            untested.remove(&promise);
            if !promised.contains_key(&promise) {
                findings.push(Finding::new(&file.path, number, format!("{SEMANTICS} holds no P{promise}")));
            }
        }
    }
    for (promise, number) in untested {
        findings.push(Finding::new(SEMANTICS, number, format!("no test is named `p{promise:02}_...`")));
    }
    findings
}

/// The number in a heading `## P7 ...` or a bold entry `**P7. ...**`, which may open a list item.
fn promise_of_line(line: &str) -> Option<u32> {
    let line = line.trim_start();
    let title = match line.trim_start_matches('#') {
        heading if heading.len() < line.len() => heading.trim_start(),
        entry => entry.trim_start_matches("- ").trim_start_matches("* ").strip_prefix("**")?,
    };
    let digits = title.strip_prefix('P')?;
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The number in `fn p07_...`.
fn promise_of_test(code: &str) -> Option<u32> {
    let (_, name) = code.split_once("fn p")?;
    let (digits, _) = name.split_once('_')?;
    if digits.len() >= 2 { digits.parse().ok() } else { None }
}

/// Each `cargo` line in a `sh` block of the README names a check, a package and an example that exist.
pub(super) fn readme(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file("README.md") else { return Vec::new() };
    let mut findings = Vec::new();
    let mut in_shell = false;
    for (number, line) in file.numbered() {
        if line.trim_start().starts_with("```") {
            in_shell = line.trim() == "```sh";
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if !in_shell || words.first() != Some(&"cargo") {
            continue;
        }
        for pair in words.windows(2) {
            let exists = match pair[0] {
                "xtask" => pair[1] == "ci" || crate::steps::STEPS.iter().any(|step| step.name == pair[1]),
                "-p" | "--package" => {
                    let name = format!("name = \"{}\"", pair[1]);
                    tree.files.iter().any(|file| file.path.ends_with("Cargo.toml") && file.text.contains(&name))
                }
                "--example" => tree.rust().any(|file| file.path.ends_with(&format!("/examples/{}.rs", pair[1]))),
                _ => true,
            };
            if !exists {
                findings.push(Finding::new(&file.path, number, format!("`{} {}` does not exist", pair[0], pair[1])));
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
    fn promises_and_tests_match() {
        let semantics =
            "# Semantics\n\n## P1. Bytes stay\n\nAs P4 says.\n\n- **P2** Errors are told once.\n\n**P3.** Order.\n";
        let test = "#[test]\nfn p01_bytes_stay() {}\nfn p02_an_error_is_told_once() {}\nfn p09_nobody_promised() {}\n";
        let files = [
            (SEMANTICS, semantics),
            ("crates/engine/tests/semantics.rs", test),
            ("crates/a/src/b.rs", "fn p03_x() {}\n"),
        ];
        assert_eq!(places(promises, &files), ["crates/engine/tests/semantics.rs:4", "docs/SEMANTICS.md:9"]);
    }

    #[test]
    fn prose_is_no_promise() {
        for line in ["Page counts", "P", "As in P1", "P1 says", "**Plain**", "[P1](#p1)"] {
            assert_eq!(promise_of_line(line), None, "{line}");
        }
        for line in ["### P12: x", "**P12.** x", "* **P12** x", "- **P12 x**"] {
            assert_eq!(promise_of_line(line), Some(12), "{line}");
        }
    }

    #[test]
    fn commands_of_the_readme_exist() {
        let readme = "```sh\ncargo xtask test\ncargo xtask tets\ncargo run -p slackwater --example write\ncargo run --example gone\n```\n\
                      cargo xtask prose\n";
        let files = [
            ("README.md", readme),
            ("crates/engine/Cargo.toml", "name = \"slackwater\"\n"),
            ("crates/engine/examples/write.rs", "//! X.\n"),
        ];
        assert_eq!(places(super::readme, &files), ["README.md:3", "README.md:5"]);
    }
}
