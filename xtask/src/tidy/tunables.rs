//! Every tunable of the engine is explained, in the source and for the user.

use super::Finding;
use super::scan::{has_word, is_identifier};
use super::tree::Tree;

const TUNABLES: &str = "crates/engine/src/tunables.rs";

/// Each public field of the tunables has a doc comment and stands in a document, if there is one to stand in.
pub(super) fn tunables(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(TUNABLES) else { return Vec::new() };
    let is_document = |path: &str| path == "docs/ARCHITECTURE.md" || path.starts_with("docs/TUNABLES");
    let documents: Vec<_> = tree.files.iter().filter(|file| is_document(&file.path)).collect();
    let mut findings = Vec::new();
    let mut has_doc = false;
    let mut in_struct = false;
    for (number, line) in file.product_lines() {
        let code = line.code.trim();
        if code.starts_with("pub struct ") {
            in_struct = code.ends_with('{');
        } else if code == "}" {
            in_struct = false;
        }
        if in_struct && let Some(name) = public_field(code) {
            if !has_doc {
                findings.push(Finding::new(TUNABLES, number, format!("`{name}` has no doc comment")));
            }
            if !documents.is_empty() && !documents.iter().any(|document| has_word(&document.text, name)) {
                let message = format!("`{name}` is neither in docs/ARCHITECTURE.md nor in docs/TUNABLES.md");
                findings.push(Finding::new(TUNABLES, number, message));
            }
        }
        // Attributes may stand between a doc comment and its field.
        has_doc = line.comment.starts_with("///") || (has_doc && code.starts_with('#'));
    }
    findings
}

fn public_field(code: &str) -> Option<&str> {
    let (name, _) = code.strip_prefix("pub ")?.split_once(':')?;
    name.chars().all(is_identifier).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    const SOURCE: &str = "//! T.\n/// All.\npub struct Tunables {\n    /// Age.\n    #[x]\n    pub expire_ms: u64,\n    \
                          pub ratio: u8,\n    hidden: u8,\n}\nimpl X {\n    pub fn f(x: u8) {}\n}\n";

    #[test]
    fn a_field_without_a_doc_is_found() {
        assert_eq!(places(tunables, &[(TUNABLES, SOURCE)]), ["crates/engine/src/tunables.rs:7"]);
    }

    #[test]
    fn a_field_missing_from_the_documents_is_found() {
        let files = [(TUNABLES, SOURCE), ("docs/ARCHITECTURE.md", "`ratio` and `expire_ms_max`\n")];
        let expected = ["crates/engine/src/tunables.rs:6", "crates/engine/src/tunables.rs:7"];
        assert_eq!(places(tunables, &files), expected);
    }
}
