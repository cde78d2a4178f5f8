//! Names that say nothing.

use super::Finding;
use super::scan::is_identifier;
use super::tree::Tree;

/// Names that do not say what a thing is.
const NAMES: [&str; 7] = ["utils", "util", "helpers", "common", "misc", "manager", "data"];

const KINDS: [&str; 6] = ["mod", "struct", "enum", "union", "trait", "type"];

/// No file, folder or module has one of [`NAMES`], and no type ends with one.
pub(super) fn names(tree: &Tree) -> Vec<Finding> {
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
        assert_eq!(places(names, &files), expected);
    }
}
