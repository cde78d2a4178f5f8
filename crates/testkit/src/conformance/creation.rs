//! New nodes: their creator, special nodes, and files without a name.

use slackwater::ErrorKind;
use slackwater::backend::{AttrChange, Creator, NewNode, NodeKind, Removal};

use super::volume::{Volume, is_root, myself};

const FIFO: NewNode = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
const SOCKET: NewNode = NewNode::Special { type_bits: 0o140_000, rdev: 0 };

/// Another user if this process may create nodes for one.
fn creator() -> Creator {
    if is_root() { Creator { uid: 12, gid: 34, umask: 0 } } else { myself() }
}

pub(super) fn the_umask_of_the_creator_clears_mode_bits(volume: &Volume) {
    let root = volume.root();
    for umask in [0, 0o022, 0o077, 0o777] {
        let creator = Creator { umask, ..creator() };
        for (what, mode) in [(NewNode::File, 0o666), (NewNode::Directory, 0o1777), (FIFO, 0o666), (SOCKET, 0o777)] {
            let name = format!("{what:?} {umask:o}");
            let made = volume.make_as(&root, &name, what, mode, creator).expect("it can be made");
            assert_eq!(made.attr.mode & 0o7777, mode & !umask, "{name}");
            assert_eq!(volume.attr(&made.node), made.attr);
        }
        if let Some(found) = tmpfile(volume, 0o666, Some(creator)) {
            assert_eq!(found.attr.mode, 0o100_666 & !umask);
        }
    }
}

pub(super) fn a_node_for_a_creator_has_its_owner_and_all_mode_bits(volume: &Volume) {
    let (root, creator) = (volume.root(), creator());
    for what in [NewNode::File, NewNode::Directory, FIFO] {
        let name = format!("{what:?}");
        let attr = volume.make_as(&root, &name, what, 0o7755, creator).expect("it can be made").attr;
        assert_eq!((attr.uid, attr.gid, attr.mode & 0o7777), (creator.uid, creator.gid, 0o7755), "{name}");
        assert_eq!(volume.lookup(&root, &name).expect("it was made").attr, attr);
    }
    let link = volume.make_as(&root, "link", NewNode::Symlink("target".into()), 0, creator).expect("it can be made");
    assert_eq!((link.attr.uid, link.attr.gid), (creator.uid, creator.gid));
}

pub(super) fn a_setgid_directory_passes_its_group_on(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let gid = if is_root() { 4321 } else { myself().gid };
    let change = AttrChange { gid: Some(gid), mode: Some(0o2755), ..AttrChange::default() };
    volume.setattr(&dir, change).expect("a directory can be made setgid");
    for (name, what) in [("link", NewNode::Symlink("target".into())), ("file", NewNode::File), ("fifo", FIFO)] {
        let attr = volume.make_as(&dir, name, what, 0o750, creator()).expect("it can be made").attr;
        assert_eq!((attr.uid, attr.gid), (creator().uid, gid), "{name}");
        assert_eq!(attr.mode & 0o2000, 0, "{name}");
    }
    let inner = volume.make_as(&dir, "dir", NewNode::Directory, 0o750, creator()).expect("it can be made");
    assert_eq!((inner.attr.gid, inner.attr.mode), (gid, 0o042_750));
    // The group is passed on even if it is that of this process, which looks as if none had been set.
    let own = AttrChange { gid: Some(myself().gid), mode: Some(0o2755), ..AttrChange::default() };
    volume.setattr(&dir, own).expect("a group can be set");
    let file = volume.make_as(&dir, "second", NewNode::File, 0o640, creator()).expect("it can be made");
    assert_eq!((file.attr.uid, file.attr.gid, file.attr.mode), (creator().uid, myself().gid, 0o100_640));
}

pub(super) fn special_nodes_have_the_type_and_device_asked_for(volume: &Volume) {
    let root = volume.root();
    let mut nodes = vec![(0o010_000, 0), (0o140_000, 0)];
    if is_root() {
        nodes.extend([(0o020_000, 0x0103), (0o060_000, 0x1234_0567)]);
    }
    for (type_bits, rdev) in nodes {
        let name = format!("{type_bits:o}");
        let what = NewNode::Special { type_bits, rdev };
        let made = match volume.make(&root, &name, what, 0o640) {
            Err(ErrorKind::NotPermitted) if rdev != 0 => continue, // root without CAP_MKNOD
            made => made.expect("it can be made"),
        };
        assert_eq!((made.attr.kind, made.attr.mode, made.attr.rdev), (NodeKind::Special, type_bits | 0o640, rdev));
        assert_eq!((made.attr.nlink, made.attr.size_bytes), (1, 0));
        assert_eq!(volume.lookup(&root, &name).expect("it was made").attr, made.attr);
        let entries = volume.entries(&root);
        assert_eq!((entries.len(), entries[0].kind), (1, Some(NodeKind::Special)));
        assert!(volume.write(&made.node, 0, b"x").is_err());
        assert!(volume.read(&made.node, 0, 4096).is_err());
        let mode = AttrChange { mode: Some(0o600), ..AttrChange::default() };
        assert_eq!(volume.setattr(&made.node, mode).expect("it has a mode").mode, type_bits | 0o600);
        let again = volume.reopen(&made.handle, made.attr.id).expect("it has a handle");
        assert_eq!(again.attr.id, made.attr.id);
        assert_eq!(volume.remove(&root, &name, Removal::Directory), Err(ErrorKind::NotDirectory));
        assert_eq!(volume.removed(&root, &name, Removal::File).expect("it can be removed").attr.nlink, 0);
    }
}

pub(super) fn an_invalid_special_type_is_refused(volume: &Volume) {
    let root = volume.root();
    for type_bits in [0, 0o100_000, 0o040_000, 0o120_000, 0o010_644, 0o170_000, u32::MAX] {
        let made = volume.make(&root, "name", NewNode::Special { type_bits, rdev: 0 }, 0o644);
        assert_eq!(made.err(), Some(ErrorKind::Invalid), "{type_bits:o}");
    }
    assert_eq!(volume.entries(&root), []);
}

pub(super) fn a_node_that_cannot_change_owner_is_not_left_behind(volume: &Volume) {
    let root = volume.root();
    let impossible = [Creator { uid: u32::MAX, ..myself() }, Creator { gid: u32::MAX, ..myself() }];
    let mut refused: Vec<_> = impossible.map(|creator| (creator, ErrorKind::Invalid)).into();
    if !is_root() && volume.make_as(&root, "probe", NewNode::File, 0o644, Creator { uid: 0, ..myself() }).is_err() {
        refused.push((Creator { uid: 0, ..myself() }, ErrorKind::NotPermitted));
    } else {
        volume.remove(&root, "probe", Removal::File).ok();
    }
    for (creator, kind) in refused {
        for what in [NewNode::File, NewNode::Directory, NewNode::Symlink("target".into()), FIFO] {
            assert_eq!(volume.make_as(&root, "name", what, 0o755, creator).err(), Some(kind));
        }
    }
    assert_eq!(volume.entries(&root), []);
}

/// A file without a name in the root, if the file system below offers such files.
fn tmpfile(volume: &Volume, mode: u32, creator: Option<Creator>) -> Option<slackwater::backend::Found> {
    match volume.tmpfile(&volume.root(), mode, creator) {
        Err(ErrorKind::Unsupported) => {
            println!("skipped: no files without a name here");
            None
        }
        made => Some(made.expect("it can be made")),
    }
}

pub(super) fn an_unnamed_file_lives_while_it_is_open(volume: &Volume) {
    let Some(made) = tmpfile(volume, 0o640, None) else { return };
    assert_eq!((made.attr.kind, made.attr.mode, made.attr.nlink), (NodeKind::File, 0o100_640, 0));
    assert_eq!(volume.entries(&volume.root()), []);
    volume.fill(&made.node, b"bytes");
    assert_eq!(volume.read(&made.node, 0, 4096).as_deref(), Ok(&b"bytes"[..]));
    assert_eq!(volume.sync(&made.node, slackwater::backend::SyncScope::All), Ok(()));
    assert_eq!(volume.reopen(&made.handle, made.attr.id).err(), Some(ErrorKind::Stale));
    let other = volume.tmpfile(&volume.root(), 0o600, None).expect("it can be made").node;
    assert_ne!(other.id(), made.node.id());
}

pub(super) fn an_unnamed_file_can_be_linked(volume: &Volume) {
    let Some(made) = tmpfile(volume, 0o640, Some(creator())) else { return };
    assert_eq!((made.attr.uid, made.attr.gid), (creator().uid, creator().gid));
    let root = volume.root();
    volume.fill(&made.node, b"bytes");
    assert_eq!(volume.link(&made.node, &root, "file").expect("it can be named").nlink, 1);
    let slackwater::backend::Found { node, handle, attr } = made;
    drop(node);
    // The handle works before any lookup of the name.
    assert_eq!(volume.reopen(&handle, attr.id).expect("it has a name").attr.nlink, 1);
    let found = volume.lookup(&root, "file").expect("it has a name");
    assert_eq!(found.attr.id, attr.id);
    assert_eq!(volume.read(&found.node, 0, 4096).as_deref(), Ok(&b"bytes"[..]));
    // Without a name for the second time, it is removed like any other file.
    assert_eq!(volume.removed(&root, "file", Removal::File).expect("it can be removed").attr.nlink, 0);
    assert_eq!(volume.link(&found.node, &root, "again").err(), Some(ErrorKind::NotFound));
}

pub(super) fn an_unnamed_file_needs_a_directory(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    assert_eq!(volume.tmpfile(&file, 0o600, None).err(), Some(ErrorKind::NotDirectory));
}
