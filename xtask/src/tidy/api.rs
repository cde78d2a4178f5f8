//! The listings of the public API below `docs/api` match the sources.

use std::fs;
use std::path::Path;

use super::Finding;
use super::tree::Tree;
use crate::api::{CRATES, listing, path};

/// Each listing is what [`rewrite`] would write now.
pub(super) fn listings(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, package, lib) in present(tree) {
        let path = path(package);
        let kept = tree.file(&path).map_or("", |file| file.text.as_str());
        match of(tree, folder, package) {
            Err(error) => findings.push(Finding::new(&lib, 1, format!("the public API cannot be listed: {error}"))),
            Ok(text) if text != kept => {
                let same = text.lines().zip(kept.lines()).take_while(|(new, old)| new == old).count();
                let line = text.lines().nth(same).map_or("nothing", str::trim);
                let message = format!("stale; the sources now have `{line}` here. Run `cargo xtask api` and review it");
                findings.push(Finding::new(&path, same + 1, message));
            }
            Ok(_) => {}
        }
    }
    findings
}

/// Rewrites every listing and reports which ones changed.
pub(crate) fn rewrite() -> Result<(), String> {
    let tree = Tree::read(Path::new("."))?;
    for (folder, package, _) in present(&tree) {
        let text = of(&tree, folder, package)?;
        let path = path(package);
        let is_new = tree.file(&path).is_none_or(|file| file.text != text);
        if is_new {
            fs::create_dir_all("docs/api").map_err(|error| format!("docs/api: {error}"))?;
            fs::write(&path, &text).map_err(|error| format!("{path}: {error}"))?;
        }
        println!("{path}: {} lines{}", text.lines().count(), if is_new { ", rewritten" } else { "" });
    }
    Ok(())
}

/// Folder, package and root file of each listed crate in the tree; inline trees of tests hold few.
fn present(tree: &Tree) -> impl Iterator<Item = (&'static str, &'static str, String)> {
    let all = CRATES.into_iter().map(|(folder, package)| (folder, package, format!("{folder}/src/lib.rs")));
    all.filter(|(_, _, lib)| tree.file(lib).is_some())
}

fn of(tree: &Tree, folder: &str, package: &str) -> Result<String, String> {
    listing(folder, package, &|path| tree.file(path).map(|file| file.text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    const LIB: &str = "crates/sync/src/lib.rs";
    const LISTING: &str = "# The public API of `slackwater-sync`. `cargo xtask api` writes this file: do not edit it.\n\
                           \n## slackwater_sync\n\npub fn f() {}\n";

    #[test]
    fn a_listing_that_matches_the_sources_passes() {
        let files = [(LIB, "pub fn f() {}\nfn g() {}\n"), ("docs/api/slackwater-sync.txt", LISTING)];
        assert!(places(listings, &files).is_empty());
    }

    #[test]
    fn a_stale_a_missing_and_an_impossible_listing_are_found() {
        let stale = [(LIB, "pub fn g() {}\n"), ("docs/api/slackwater-sync.txt", LISTING)];
        assert_eq!(places(listings, &stale), ["docs/api/slackwater-sync.txt:5"]);
        assert_eq!(places(listings, &[(LIB, "")]), ["docs/api/slackwater-sync.txt:1"]);
        assert_eq!(places(listings, &[(LIB, "pub fn")]), ["crates/sync/src/lib.rs:1"]);
    }
}
