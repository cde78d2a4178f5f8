//! Paths of inodes for messages, from the names that are known.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::format::{Decode, Entries, Key, ROOT};
use crate::tree::View;

/// A path has at most this many names: a cycle ends here.
const DEPTH_MAX: usize = 4096;

/// Where inodes are.
#[derive(Default)]
pub(crate) struct Paths {
    /// A directory that names the inode, and the name.
    places: HashMap<u64, (u64, OsString)>,
}

impl Paths {
    /// The names that a tree has in memory.
    pub(crate) fn in_memory(view: &View<'_>) -> Self {
        let mut paths = Self::default();
        let (first, last) = (Key::Entries { dir: 0, hash: 0 }, Key::Entries { dir: u64::MAX, hash: u64::MAX });
        for (key, value) in view.scan_memory(first, last) {
            let Key::Entries { dir, .. } = key else { continue };
            for entry in Entries::decode(&value).unwrap_or_default().0.into_iter().filter(|entry| !entry.is_free()) {
                paths.insert(entry.ino, dir, entry.name);
            }
        }
        paths
    }

    pub(crate) fn insert(&mut self, ino: u64, dir: u64, name: OsString) {
        self.places.insert(ino, (dir, name));
    }

    /// The directories of all names.
    pub(crate) fn directories(&self) -> impl Iterator<Item = u64> {
        self.places.values().map(|(dir, _)| *dir)
    }

    /// The path of an inode, if its names are known up to the root.
    pub(crate) fn of(&self, ino: u64) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut current = ino;
        while current != ROOT {
            let (dir, name) = self.places.get(&current).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(name);
            current = *dir;
        }
        Some(std::iter::once(OsStr::new("/")).chain(names.into_iter().rev().map(OsString::as_os_str)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use slackwater::backend::NewNode;

    use super::*;
    use crate::names;
    use crate::tree::Tree;

    #[test]
    fn names_in_memory_lead_to_paths() {
        let tree = Tree::in_memory();
        let make = |dir, name: &str, what| {
            let made = tree.run_in_memory(|view| names::make(view, dir, name.as_ref(), &what, 0o755, None));
            made.expect("all is in memory").0
        };
        let root = tree.run_in_memory(|view| {
            names::make_root(view, 0o755, (0, 0));
            Ok(())
        });
        root.expect("all is in memory");
        let dir = make(ROOT, "dir", NewNode::Directory);
        let file = make(dir, "file", NewNode::File);
        let paths = tree.run_in_memory(|view| Ok(Paths::in_memory(view))).expect("all is in memory");
        let of = |ino| paths.of(ino);
        assert_eq!((of(ROOT).as_deref(), of(dir).as_deref()), (Some(Path::new("/")), Some(Path::new("/dir"))));
        assert_eq!((of(file).as_deref(), of(99)), (Some(Path::new("/dir/file")), None));
    }
}
