//! All nodes of a volume, found by walking from its root.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use slackwater::backend::{Call, DirEntryPlus, Found, Node, NodeKind};
use slackwater_arena::FRAME_BYTES;
use slackwater_testkit::conformance::{Answer, Volume};

use crate::tree::{Content, Seen};

/// The nodes by path, each as the walk saw it and as the backend found it.
pub(crate) type Walk = BTreeMap<String, (Seen, Found)>;

pub(crate) fn walk(volume: &Volume) -> Answer<Walk> {
    let root = volume.ask(|done| Call::Root { done })?;
    let mut walker = Walker { volume, first_names: BTreeMap::new(), seen: Walk::new() };
    walker.see(root, "/".into())?;
    Ok(walker.seen)
}

struct Walker<'a> {
    volume: &'a Volume,
    /// The first path of each inode number.
    first_names: BTreeMap<u64, String>,
    seen: Walk,
}

impl Walker<'_> {
    fn see(&mut self, found: Found, path: String) -> Answer<()> {
        let (node, attr) = (found.node.clone(), found.attr);
        let first_name = self.first_names.entry(attr.id.ino).or_insert_with(|| path.clone()).clone();
        let content = match attr.kind {
            NodeKind::File => Content::File(Arc::new(self.read_all(&node, attr.size_bytes)?)),
            NodeKind::Directory => Content::Directory,
            NodeKind::Symlink => {
                let link = node.clone();
                let target = self.volume.ask(|done| Call::Readlink { node: link, done })?;
                Content::Symlink(target.into_string().unwrap())
            }
            NodeKind::Special => Content::Special(attr.mode & 0o170_000),
        };
        if attr.kind == NodeKind::Directory {
            for DirEntryPlus { entry, found } in self.entries(&node)? {
                let found = found.expect("a name that was not removed leads to a node");
                assert_eq!(entry.ino, found.attr.id.ino);
                self.see(found, format!("{path}{}/", entry.name.to_str().unwrap()))?;
            }
        }
        let mut xattrs = BTreeMap::new();
        for name in self.xattr_names(&node)? {
            let (own, key) = (node.clone(), name.to_str().unwrap().to_owned());
            xattrs.insert(key, self.volume.ask(|done| Call::Getxattr { node: own, name, done })?);
        }
        let (mode, names) = (attr.mode & 0o7777, attr.nlink as usize);
        self.seen.insert(path, (Seen { first_name, content, mode, xattrs, names }, found));
        Ok(())
    }

    /// All bytes of a file of `size` bytes.
    fn read_all(&self, node: &Node, size: u64) -> Answer<Vec<u8>> {
        const UNIT: u64 = 256 << 10;
        let mut bytes = Vec::new();
        for at in (0..size.max(1)).step_by(UNIT as usize) {
            let len = (size - at).clamp(1, UNIT) as usize;
            bytes.extend(self.volume.read(node, at, len.next_multiple_of(FRAME_BYTES))?);
        }
        Ok(bytes)
    }

    fn xattr_names(&self, node: &Node) -> Answer<Vec<OsString>> {
        let node = node.clone();
        self.volume.ask(|done| Call::Listxattr { node, done })
    }

    fn entries(&self, dir: &Node) -> Answer<Vec<DirEntryPlus>> {
        let mut entries: Vec<DirEntryPlus> = Vec::new();
        loop {
            let (node, cookie) = (dir.clone(), entries.last().map_or(0, |last| last.entry.cookie));
            let more = self.volume.ask(|done| Call::ReaddirPlus { node, cookie, done })?;
            if more.is_empty() {
                entries.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
                return Ok(entries);
            }
            entries.extend(more);
        }
    }
}
