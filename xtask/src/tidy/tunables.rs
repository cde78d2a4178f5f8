//! Every tunable of the engine is explained to the user.

use super::Finding;
use super::scan::is_identifier;
use super::tree::Tree;

const TUNABLES: &str = "crates/engine/src/tunables.rs";
const DOCUMENT: &str = "docs/ARCHITECTURE.md";

/// Each public field of the tunables stands in a document. The compiler demands its doc comment.
pub(super) fn tunables(tree: &Tree) -> Vec<Finding> {
    let document = tree.file(DOCUMENT).map_or("", |file| &file.text);
    let lines = tree.file(TUNABLES).into_iter().flat_map(|file| file.product_lines());
    let fields = lines.filter_map(|(number, line)| Some((number, public_field(line.code.trim())?)));
    let missing = fields.filter(|(_, name)| !document.contains(&format!("`{name}`")));
    missing.map(|(number, name)| Finding::new(TUNABLES, number, format!("`{name}` is not in {DOCUMENT}"))).collect()
}

fn public_field(code: &str) -> Option<&str> {
    let (name, _) = code.strip_prefix("pub ")?.split_once(':')?;
    name.chars().all(is_identifier).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn a_field_missing_from_the_document_is_found() {
        let source = "//! T.\npub struct Tunables {\n    pub expire_ms: u64,\n    pub ratio: u8,\n    hidden: u8,\n}\n\
                      impl X {\n    pub fn f(x: u8) {}\n}\n";
        let files = [(TUNABLES, source), (DOCUMENT, "`ratio` and `expire_ms_max`\n")];
        assert_eq!(places(tunables, &files), ["crates/engine/src/tunables.rs:3"]);
    }
}
