//! Durability of the memory backend. The conformance suite tests what it has in common with every backend. File sizes
//! stand for file contents here.

use std::sync::mpsc;

use super::*;
use crate::backend::{AttrChange, Done, Found, NewNode, Node, Removal, RenameMode, SyncScope, XattrMode};
use crate::error::{BackendError, ErrorKind};

type Answer<T> = Result<T, BackendError>;

/// A backend with a blocking function for each call.
struct Disk(MemBackend);

impl Disk {
    fn new() -> Self {
        Self(MemBackend::new())
    }

    fn call<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Answer<T> {
        let (send, answers) = mpsc::channel();
        self.0.submit(call(Done::new(move |answer| send.send(answer).expect("the receiver lives"))));
        answers.try_recv().expect("answered inside submit")
    }

    fn root(&self) -> Node {
        self.call(|done| Call::Root { done }).expect("a volume has a root").node
    }

    fn make(&self, dir: &Node, name: &str, what: NewNode) -> Found {
        let (dir, name) = (dir.clone(), name.into());
        self.call(|done| Call::Make { dir, name, what, mode: 0o600, creator: None, done }).expect("the name is free")
    }

    fn file(&self, dir: &Node, name: &str, size_bytes: u64) -> Found {
        let found = self.make(dir, name, NewNode::File);
        self.resize(&found.node, size_bytes);
        found
    }

    fn resize(&self, node: &Node, size_bytes: u64) {
        self.change(node, AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() });
    }

    fn change(&self, node: &Node, change: AttrChange) {
        let node = node.clone();
        self.call(|done| Call::Setattr { node, change, done }).expect("the node takes the change");
    }

    fn rename(&self, from: (&Node, &str), to: (&Node, &str), mode: RenameMode) {
        let (from_dir, from, to_dir, to) = (from.0.clone(), from.1.into(), to.0.clone(), to.1.into());
        self.call(|done| Call::Rename { from_dir, from, to_dir, to, mode, done }).expect("may be renamed");
    }

    fn remove(&self, dir: &Node, name: &str, removal: Removal) {
        let (dir, name) = (dir.clone(), name.into());
        self.call(|done| Call::Remove { dir, name, removal, done }).expect("may be removed");
    }

    fn sync_as(&self, node: &Node, scope: SyncScope) -> Result<(), ErrorKind> {
        let node = node.clone();
        self.call(|done| Call::Sync { node, scope, done }).map_err(|error| error.kind())
    }

    fn sync(&self, node: &Node) -> Result<(), ErrorKind> {
        self.sync_as(node, SyncScope::All)
    }

    fn sync_volume(&self) -> Result<(), ErrorKind> {
        self.call(|done| Call::SyncVolume { done }).map_err(|error| error.kind())
    }

    fn mode(&self, node: &Node) -> u32 {
        let node = node.clone();
        self.call(|done| Call::Getattr { node, done }).expect("the node exists").mode
    }

    fn size(&self, path: &str) -> Option<usize> {
        self.0.volatile_file(path).map(|bytes| bytes.len())
    }
}

#[test]
fn a_synced_file_survives_with_its_name_and_an_unsynced_one_is_stale() {
    let disk = Disk::new();
    let dir = disk.make(&disk.root(), "dir", NewNode::Directory).node;
    let kept = disk.file(&dir, "kept", 10);
    let gone = disk.file(&dir, "gone", 10);
    assert_eq!(disk.sync(&kept.node), Ok(()));
    assert_eq!(disk.0.durable_file("dir/kept"), Some(vec![0; 10]));
    assert_eq!(disk.0.durable_file(kept.attr.id), Some(vec![0; 10]));
    assert_eq!(disk.0.durable_file(gone.attr.id), None);
    assert_eq!(disk.0.volatile_file(gone.attr.id), Some(vec![0; 10]));
    disk.0.crash();
    assert_eq!(disk.size("dir/kept"), Some(10));
    assert_eq!(disk.size("dir/gone"), None);
    assert_eq!(disk.sync(&gone.node), Err(ErrorKind::Stale));
    let Found { handle, attr, .. } = gone;
    let reopened = disk.call(|done| Call::Reopen { handle, id: Some(attr.id), nameless: false, done });
    assert_eq!(reopened.expect_err("it never became durable").kind(), ErrorKind::Stale);
}

#[test]
fn extended_attributes_are_as_durable_as_the_mode() {
    let disk = Disk::new();
    let file = disk.file(&disk.root(), "file", 10).node;
    let set = |value: &[u8]| {
        let (node, name, value, mode) = (file.clone(), "user.one".into(), value.to_vec(), XattrMode::Set);
        disk.call(|done| Call::Setxattr { node, name, value, mode, done }).expect("it can be set");
    };
    set(b"synced");
    assert_eq!(disk.sync(&file), Ok(()));
    set(b"not synced");
    assert_eq!(disk.sync_as(&file, SyncScope::Data), Ok(()));
    disk.0.crash();
    let (node, name) = (file.clone(), "user.one".into());
    let value = disk.call(|done| Call::Getxattr { node, name, done });
    assert_eq!(value.expect("it was synced"), b"synced");
    assert_eq!(disk.sync(&file), Err(ErrorKind::Lost));
}

#[test]
fn a_nameless_file_survives_once_it_has_a_durable_name() {
    let disk = Disk::new();
    let nameless = || {
        let dir = disk.root();
        let node = disk.call(|done| Call::Tmpfile { dir, mode: 0o600, creator: None, done }).expect("may be made").node;
        disk.resize(&node, 10);
        assert_eq!(disk.sync(&node), Ok(()));
        node
    };
    let (named, gone) = (nameless(), nameless());
    let (node, dir, name) = (named.clone(), disk.root(), "named".into());
    disk.call(|done| Call::Link { node, dir, name, done }).expect("the name is free");
    assert_eq!(disk.sync(&disk.root()), Ok(()));
    disk.0.crash();
    assert_eq!(disk.size("named"), Some(10));
    assert_eq!(disk.sync(&named), Ok(()));
    assert_eq!(disk.sync(&gone), Err(ErrorKind::Stale));
}

#[test]
fn data_lost_in_a_crash_is_reported_once_per_node_and_once_per_volume() {
    let disk = Disk::new();
    let (a, b) = (disk.file(&disk.root(), "a", 10).node, disk.file(&disk.root(), "b", 10).node);
    assert_eq!(disk.sync_volume(), Ok(()));
    disk.resize(&a, 20);
    disk.0.crash();
    assert_eq!(disk.size("a"), Some(10));
    assert_eq!(disk.sync(&b), Ok(()));
    assert_eq!(disk.sync(&a), Err(ErrorKind::Lost));
    assert_eq!(disk.sync_volume(), Err(ErrorKind::Lost));
    disk.resize(&a, 20);
    assert_eq!(disk.sync(&a), Ok(()));
    assert_eq!(disk.sync_volume(), Ok(()));
    assert_eq!(disk.0.durable_file("a").map(|bytes| bytes.len()), Some(20));
}

#[test]
fn a_crash_that_loses_nothing_is_not_reported() {
    let disk = Disk::new();
    let file = disk.file(&disk.root(), "file", 10).node;
    assert_eq!(disk.sync_volume(), Ok(()));
    disk.resize(&file, 20);
    assert_eq!(disk.sync_as(&file, SyncScope::Data), Ok(()));
    disk.0.crash();
    assert_eq!(disk.sync(&file), Ok(()));
    assert_eq!(disk.sync_volume(), Ok(()));
}

#[test]
fn a_sync_of_data_leaves_the_mode_to_a_sync_of_all() {
    let disk = Disk::new();
    let file = disk.file(&disk.root(), "file", 10).node;
    assert_eq!(disk.sync(&file), Ok(()));
    disk.change(&file, AttrChange { mode: Some(0o640), ..AttrChange::default() });
    assert_eq!(disk.sync_as(&file, SyncScope::Data), Ok(()));
    disk.0.crash();
    assert_eq!(disk.mode(&file), 0o100_600);
    assert_eq!(disk.sync(&file), Err(ErrorKind::Lost));
}

#[test]
fn a_synced_directory_keeps_names_but_not_the_bytes_of_its_files() {
    let disk = Disk::new();
    let root = disk.root();
    let file = disk.file(&root, "file", 10).node;
    assert_eq!(disk.sync(&root), Ok(()));
    disk.0.crash();
    assert_eq!(disk.size("file"), Some(0));
    assert_eq!(disk.sync(&file), Err(ErrorKind::Lost));
}

#[test]
fn a_removed_name_comes_back_unless_its_directory_was_synced() {
    let disk = Disk::new();
    let root = disk.root();
    for name in ["back", "gone"] {
        disk.file(&root, name, 10);
    }
    assert_eq!(disk.sync_volume(), Ok(()));
    disk.remove(&root, "gone", Removal::File);
    assert_eq!(disk.sync(&root), Ok(()));
    disk.remove(&root, "back", Removal::File);
    disk.0.crash();
    assert_eq!(disk.size("back"), Some(10));
    assert_eq!(disk.size("gone"), None);
    assert_eq!(disk.sync(&root), Err(ErrorKind::Lost));
}

#[test]
fn a_move_between_directories_is_durable_on_both_sides_or_on_none() {
    let disk = Disk::new();
    let root = disk.root();
    let (a, b) = (disk.make(&root, "a", NewNode::Directory).node, disk.make(&root, "b", NewNode::Directory).node);
    disk.file(&a, "file", 10);
    assert_eq!(disk.sync_volume(), Ok(()));
    disk.rename((&a, "file"), (&b, "file"), RenameMode::Replace);
    disk.0.crash();
    assert_eq!((disk.size("a/file"), disk.size("b/file")), (Some(10), None));
    assert_eq!(disk.sync(&a), Err(ErrorKind::Lost));
    assert_eq!(disk.sync(&b), Err(ErrorKind::Lost));
    disk.rename((&a, "file"), (&b, "file"), RenameMode::Replace);
    assert_eq!(disk.sync(&a), Ok(()));
    disk.0.crash();
    assert_eq!((disk.size("a/file"), disk.size("b/file")), (None, Some(10)));
}

#[test]
fn a_move_into_a_new_directory_makes_that_directory_durable_too() {
    let disk = Disk::new();
    let root = disk.root();
    let old = disk.make(&root, "old", NewNode::Directory).node;
    let file = disk.file(&old, "file", 10).node;
    assert_eq!(disk.sync(&file), Ok(()));
    let new = disk.make(&root, "new", NewNode::Directory).node;
    disk.rename((&old, "file"), (&new, "file"), RenameMode::Replace);
    assert_eq!(disk.sync(&old), Ok(()));
    disk.0.crash();
    assert_eq!(disk.size("new/file"), Some(10));
}

#[test]
fn a_file_renamed_over_another_replaces_it_once_synced() {
    let disk = Disk::new();
    let root = disk.root();
    disk.file(&root, "config", 10);
    assert_eq!(disk.sync_volume(), Ok(()));
    let new = disk.file(&root, "config.new", 20).node;
    disk.rename((&root, "config.new"), (&root, "config"), RenameMode::Replace);
    assert_eq!(disk.0.durable_file("config").map(|bytes| bytes.len()), Some(10));
    assert_eq!(disk.sync(&new), Ok(()));
    disk.0.crash();
    assert_eq!(disk.size("config"), Some(20));
    assert_eq!(disk.size("config.new"), None);
}

#[test]
fn a_reused_number_gets_another_generation() {
    let disk = Disk::new();
    let root = disk.root();
    let Found { node, handle, attr, .. } = disk.file(&root, "first", 1);
    disk.remove(&root, "first", Removal::File);
    let open = disk.file(&root, "while open", 1);
    assert_ne!(open.attr.id.ino, attr.id.ino);
    drop(node);
    let next = disk.file(&root, "second", 1);
    assert_eq!(next.attr.id.ino, attr.id.ino);
    assert_ne!(next.attr.id.generation, attr.id.generation);
    let reopened = disk.call(|done| Call::Reopen { handle, id: Some(attr.id), nameless: false, done });
    assert_eq!(reopened.expect_err("another file by now").kind(), ErrorKind::Stale);
}

#[test]
fn an_unlinked_file_exists_while_open_and_does_not_survive_a_crash() {
    let disk = Disk::new();
    let root = disk.root();
    let Found { node, attr, .. } = disk.file(&root, "file", 10);
    assert_eq!(disk.sync_volume(), Ok(()));
    disk.remove(&root, "file", Removal::File);
    assert_eq!(disk.sync(&root), Ok(()));
    disk.resize(&node, 20);
    disk.file(&root, "other", 1);
    assert_eq!(disk.0.volatile_file(attr.id).map(|bytes| bytes.len()), Some(20));
    disk.0.crash();
    assert_eq!(disk.sync(&node), Err(ErrorKind::Stale));
}
