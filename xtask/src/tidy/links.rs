//! Links between the documents lead somewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::tree::{File, Tree};
use crate::markdown;

/// Each link to a file of the checkout finds it, with its anchor. Each name of a link is defined, and each definition
/// is used.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut anchors = BTreeMap::new();
    for file in documents(tree) {
        anchors.insert(&*file.path, markdown::anchors(&file.text));
    }
    documents(tree).flat_map(|file| broken(tree, &anchors, file).chain(unnamed(file))).collect()
}

fn documents(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files.iter().filter(|file| file.path.ends_with(".md"))
}

fn broken<'t>(
    tree: &'t Tree,
    anchors: &'t BTreeMap<&str, Vec<String>>,
    file: &'t File,
) -> impl Iterator<Item = Finding> {
    markdown::links(&file.text).into_iter().filter_map(move |link| {
        let (path, anchor) = link.local()?;
        let target = markdown::resolve(&file.path, path).filter(|target| tree.has(target));
        let message = match target {
            None => format!("`{path}` does not exist"),
            Some(target) => {
                let has_anchor = |all: &Vec<String>| all.iter().any(|one| one == anchor);
                if anchor.is_empty() || anchors.get(&*target).is_some_and(has_anchor) {
                    return None;
                }
                format!("`{target}` has no heading `#{anchor}`")
            }
        };
        Some(Finding::new(&file.path, link.line, message))
    })
}

fn unnamed(file: &File) -> impl Iterator<Item = Finding> {
    let names = markdown::names(&file.text);
    let of = |is_definition| -> BTreeSet<&str> {
        names.iter().filter(|name| name.is_definition == is_definition).map(|name| name.name).collect()
    };
    let (defined, used) = (of(true), of(false));
    names.into_iter().filter_map(move |name| {
        let message = match name.is_definition {
            true if !used.contains(name.name) => format!("no link uses `[{}]`", name.name),
            false if !defined.contains(name.name) => format!("`[{}]` is not defined in this file", name.name),
            _ => return None,
        };
        Some(Finding::new(&file.path, name.line, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::places;

    #[test]
    fn links_find_files_folders_and_headings() {
        let files = [
            ("README.md", "[a](docs/A.md#one-two) [b](docs) [c](#x)\n# X\n[d](docs/B.md)\n[e](docs/A.md#three)\n"),
            (
                "docs/A.md",
                "# One, two\n[a](../README.md) [b](../../out.md)\n[c][web] [d][none]\n\n[web]: https://x\n[w]: y://z\n",
            ),
        ];
        assert_eq!(places(links, &files), ["README.md:3", "README.md:4", "docs/A.md:2", "docs/A.md:3", "docs/A.md:6"]);
    }
}
