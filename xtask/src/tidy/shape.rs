//! The outer shape of Rust files.

use super::Finding;
use super::tree::Tree;

/// The most lines of a file, which holds one concept with its unit tests. Most files have some 300 lines.
const LINES_MAX: usize = 800;

/// Every Rust file opens with its purpose, and none is longer than [`LINES_MAX`].
pub(super) fn files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if !file.text.starts_with("//! ") {
            findings.push(Finding::new(&file.path, 1, "open the file with `//!` and what it is for"));
        }
        if file.lines.len() > LINES_MAX {
            let message = format!("{} lines; split at the second concept, {LINES_MAX} is the limit", file.lines.len());
            findings.push(Finding::new(&file.path, LINES_MAX + 1, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn a_file_opens_with_a_doc_and_ends_at_the_limit() {
        let (fits, long) = ("//! x\n".repeat(LINES_MAX), "//! x\n".repeat(LINES_MAX + 1));
        let files =
            [("a.rs", &*fits), ("b.rs", &long), ("c.md", &long), ("x/tests/d.rs", "#![cfg(x)]\n"), ("e.rs", "")];
        assert_eq!(places(super::files, &files), ["b.rs:801", "x/tests/d.rs:1", "e.rs:1"]);
    }
}
