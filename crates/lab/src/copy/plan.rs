//! The list of the tree that is copied.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use slackwater::Timestamp;

use crate::interrupt;

/// The kind of an entry.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(crate) enum Kind {
    Directory,
    File { size_bytes: u64 },
    Symlink { target: OsString },
}

/// One name of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Relative to the source.
    pub(crate) path: PathBuf,
    /// 1 for an entry directly in the source.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) mtime: Timestamp,
}

/// A whole tree, each directory directly before its entries.
pub(crate) struct Plan {
    pub(crate) source: PathBuf,
    pub(crate) root_mode: u32,
    pub(crate) root_mtime: Timestamp,
    pub(crate) entries: Vec<Entry>,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Sockets, FIFOs and devices, which are not copied.
    pub(crate) skipped: u64,
}

impl Plan {
    /// Lists the tree below `source`.
    ///
    /// # Errors
    /// A directory or link that cannot be read, or an interrupt.
    pub(crate) fn of(source: &Path) -> Result<Self> {
        let metadata = fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?;
        let mut plan = Self {
            source: source.to_path_buf(),
            root_mode: metadata.mode() & 0o7777,
            root_mtime: mtime_of(&metadata),
            entries: Vec::new(),
            files: 0,
            bytes: 0,
            skipped: 0,
        };
        let mut pending = plan.names_in(Path::new(""), 1)?;
        while let Some((path, depth)) = pending.pop() {
            interrupt::check()?;
            if plan.add(&path, depth)? == Some(Kind::Directory) {
                pending.extend(plan.names_in(&path, depth + 1)?);
            }
        }
        Ok(plan)
    }

    /// The names in a directory in descending order, so that popping them gives them in ascending order.
    fn names_in(&self, directory: &Path, depth: usize) -> Result<Vec<(PathBuf, usize)>> {
        let path = self.source.join(directory);
        let cannot = || format!("cannot list {}", path.display());
        let names = fs::read_dir(&path).with_context(cannot)?.map(|entry| Ok(directory.join(entry?.file_name())));
        let mut names = names.collect::<std::io::Result<Vec<_>>>().with_context(cannot)?;
        names.sort_by(|one, other| other.cmp(one));
        Ok(names.into_iter().map(|name| (name, depth)).collect())
    }

    fn add(&mut self, path: &Path, depth: usize) -> Result<Option<Kind>> {
        let full = self.source.join(path);
        let cannot = || format!("cannot read {}", full.display());
        let metadata = fs::symlink_metadata(&full).with_context(cannot)?;
        let kind = if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_file() {
            self.files += 1;
            self.bytes += metadata.len();
            Kind::File { size_bytes: metadata.len() }
        } else if metadata.is_symlink() {
            Kind::Symlink { target: fs::read_link(&full).with_context(cannot)?.into_os_string() }
        } else {
            self.skipped += 1;
            return Ok(None);
        };
        let (mode, mtime) = (metadata.mode() & 0o7777, mtime_of(&metadata));
        self.entries.push(Entry { path: path.to_path_buf(), depth, kind: kind.clone(), mode, mtime });
        Ok(Some(kind))
    }
}

pub(crate) fn mtime_of(metadata: &fs::Metadata) -> Timestamp {
    Timestamp(metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_directory_comes_directly_before_its_entries() {
        let scratch = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let root = scratch.path();
        fs::create_dir_all(root.join("b/d")).unwrap();
        fs::write(root.join("b/d/e"), "12345").unwrap();
        fs::write(root.join("c"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("a")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("s")).unwrap();
        let plan = Plan::of(root).unwrap();
        let names: Vec<_> = plan.entries.iter().map(|entry| (entry.path.to_str().unwrap(), entry.depth)).collect();
        assert_eq!(names, [("a", 1), ("b", 1), ("b/d", 2), ("b/d/e", 3), ("c", 1)]);
        assert_eq!((plan.files, plan.bytes, plan.skipped), (2, 5, 1));
        assert_eq!(plan.entries[0].kind, Kind::Symlink { target: "nowhere".into() });
    }
}
