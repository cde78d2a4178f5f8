//! Handles: opening a node again that is no longer open.

use slackwater::ErrorKind;
use slackwater::backend::{Call, FileHandle, Found, NewNode, Removal, RenameMode};

use super::volume::Volume;

pub(super) fn a_handle_finds_its_node_after_a_rename(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let Found { node, handle, attr } = volume.make(&root, "file", NewNode::File, 0o644).expect("it can be made");
    volume.fill(&node, b"bytes");
    drop(node);
    assert_eq!(volume.rename((&root, "file"), (&dir, "moved"), RenameMode::Replace), Ok(()));
    let again = volume.reopen(&handle, attr.id).expect("it still exists");
    assert_eq!((again.attr.id, &again.handle), (attr.id, &handle));
    assert_eq!(volume.read(&again.node, 0, 4096).as_deref(), Ok(&b"bytes"[..]));
    assert_eq!(volume.write(&again.node, 0, b"BYTES"), Ok(5));
    assert_eq!(volume.lookup(&dir, "moved").expect("it moved").handle, handle);
}

pub(super) fn every_kind_of_node_has_a_handle(volume: &Volume) {
    let root = volume.ask(|done| Call::Root { done }).expect("a volume has a root");
    let dir = volume.make(&root.node, "dir", NewNode::Directory, 0o755).expect("it can be made");
    let link = volume.make(&root.node, "link", NewNode::Symlink("target".into()), 0).expect("it can be made");
    for Found { node, handle, attr } in [root, dir, link] {
        drop(node);
        let again = volume.reopen(&handle, attr.id).expect("it still exists");
        assert_eq!((again.attr.id, again.attr.kind), (attr.id, attr.kind));
    }
}

pub(super) fn a_handle_is_stale_once_the_node_has_no_name(volume: &Volume) {
    let root = volume.root();
    for what in [NewNode::File, NewNode::Directory] {
        let removal = if what == NewNode::File { Removal::File } else { Removal::Directory };
        let Found { node, handle, attr } = volume.make(&root, "node", what, 0o755).expect("it can be made");
        assert_eq!(volume.remove(&root, "node", removal), Ok(()));
        assert_eq!(volume.reopen(&handle, attr.id).err(), Some(ErrorKind::Stale), "open, but without a name");
        drop(node);
        assert_eq!(volume.reopen(&handle, attr.id).err(), Some(ErrorKind::Stale));
    }
    // A rename over it is a removal too.
    let Found { node, handle, attr } = volume.make(&root, "old", NewNode::File, 0o755).expect("it can be made");
    drop(node);
    volume.file(&root, "new");
    assert_eq!(volume.rename((&root, "new"), (&root, "old"), RenameMode::Replace), Ok(()));
    assert_eq!(volume.reopen(&handle, attr.id).err(), Some(ErrorKind::Stale));
}

pub(super) fn a_handle_never_finds_another_node(volume: &Volume) {
    let root = volume.root();
    let first = volume.make(&root, "first", NewNode::File, 0o644).expect("it can be made");
    let second = volume.make(&root, "second", NewNode::File, 0o644).expect("it can be made");
    assert_eq!(volume.reopen(&first.handle, second.attr.id).err(), Some(ErrorKind::Stale));
    let mut other = first.attr.id;
    other.generation ^= 1;
    assert_eq!(volume.reopen(&first.handle, other).err(), Some(ErrorKind::Stale));
    // Inode numbers are reused, identities are not.
    let Found { node, handle, attr } = first;
    assert_eq!(volume.remove(&root, "first", Removal::File), Ok(()));
    drop(node);
    for number in 0..50 {
        let id = volume.file(&root, format!("{number}")).id();
        assert_ne!(id, attr.id);
        assert_eq!(volume.reopen(&handle, attr.id).err(), Some(ErrorKind::Stale));
        assert_eq!(volume.remove(&root, format!("{number}"), Removal::File), Ok(()));
    }
}

pub(super) fn an_invalid_handle_finds_nothing(volume: &Volume) {
    let id = volume.root().id();
    for bytes in [&b""[..], b"\0", b"\x01", b"\x01\0\0\0\0", b"\x01\x01\0\0\0garbage!", b"\x02", &[0xff; 128]] {
        let handle = FileHandle::new(bytes).expect("not too many bytes");
        let mut stranger = id;
        stranger.ino = u64::MAX;
        let answer = volume.reopen(&handle, stranger).err();
        // A process that may not use kernel handles is refused before the handle is examined.
        assert!(matches!(answer, Some(ErrorKind::Stale | ErrorKind::NotPermitted)), "{bytes:?}: {answer:?}");
    }
}
