//! Names that say nothing, and markers of unfinished work.

use super::Finding;
use super::scan::is_identifier;
use super::tree::Tree;

/// Names that do not say what a thing is.
const NAMES: [&str; 7] = ["utils", "util", "helpers", "common", "misc", "manager", "data"];

/// Macros that belong to a working copy, not to a commit.
const MACROS: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

const KINDS: [&str; 6] = ["mod", "struct", "enum", "union", "trait", "type"];

/// No file, folder or module has one of [`NAMES`], and no type ends with one.
pub(super) fn banned_names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let mut parts = file.path.trim_end_matches(".rs").split('/');
        if let Some(name) = parts.find(|part| NAMES.contains(part)) {
            findings.push(Finding::new(&file.path, 1, format!("`{name}` names nothing: say what the file holds")));
        }
        for (number, line) in (1..).zip(&file.lines) {
            let words: Vec<&str> = line.code.split(|letter| !is_identifier(letter)).filter(|w| !w.is_empty()).collect();
            for pair in words.windows(2) {
                if KINDS.contains(&pair[0]) && NAMES.contains(&last_word(pair[1]).as_str()) {
                    let message = format!("`{}` names nothing: say what it does or holds", pair[1]);
                    findings.push(Finding::new(&file.path, number, message));
                }
            }
        }
    }
    findings
}

/// `PageManager` ends with `manager`; a name without capitals is one word.
fn last_word(name: &str) -> String {
    name[name.rfind(char::is_uppercase).unwrap_or(0)..].to_lowercase()
}

/// No marker for unfinished work, except a to-do that names its owner.
pub(super) fn banned_words(tree: &Tree) -> Vec<Finding> {
    // Spelled in parts, so that this file passes its own rule even where a search ignores strings.
    let (broken, open) = (concat!("FIX", "ME"), concat!("TO", "DO"));
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (number, line) in (1..).zip(&file.lines) {
            let unowned =
                line.comment.match_indices(open).any(|(at, _)| !line.comment[at + open.len()..].starts_with('('));
            if line.comment.contains(broken) {
                findings.push(Finding::new(&file.path, number, format!("`{broken}`: mend it, or open an issue")));
            }
            if unowned {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    format!("`{open}` without an owner: `{open}(name): ...`"),
                ));
            }
            for name in MACROS {
                let mut found = line.code.match_indices(name);
                if found.any(|(at, _)| !line.code[..at].ends_with(is_identifier)) {
                    findings.push(Finding::new(&file.path, number, format!("`{name}` is for working copies only")));
                }
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
    fn files_modules_and_types_say_what_they_hold() {
        let files = [
            ("crates/a/src/util.rs", "//! A.\n"),
            ("crates/a/src/common/x.rs", "//! A.\n"),
            ("b.rs", "mod helpers;\npub struct PageManager;\nstruct Metadata;\nlet data = 1;\nenum Data {}\n"),
        ];
        let expected = ["crates/a/src/util.rs:1", "crates/a/src/common/x.rs:1", "b.rs:1", "b.rs:2", "b.rs:5"];
        assert_eq!(places(banned_names, &files), expected);
    }

    #[test]
    fn unfinished_work_is_refused_and_an_owned_note_is_not() {
        let text =
            "// FIXME x\n// TODO x\n// TODO(ann): x\nlet x = dbg!(y);\ntodo!()\nlet s = \"todo!\";\nmy_todo!()\n";
        assert_eq!(places(banned_words, &[("a.rs", text)]), ["a.rs:1", "a.rs:2", "a.rs:4", "a.rs:5"]);
    }
}
