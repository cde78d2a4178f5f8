//! Names: making, finding, linking, removing and moving them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use slackwater::ErrorKind;
use slackwater::backend::{Call, Creator, NewNode, Node, NodeKind, Removal, RenameMode};

use super::volume::{Volume, is_root};

pub(super) fn a_new_node_has_exactly_its_mode(volume: &Volume) {
    let root = volume.root();
    for mode in [0o777, 0o666, 0o600, 0o444, 0o000, 0o4711] {
        let file = volume.make(&root, format!("file {mode:o}"), NewNode::File, mode).expect("a file can be made");
        assert_eq!((file.attr.mode, file.attr.kind), (0o100_000 | mode, NodeKind::File));
        assert_eq!((file.attr.size_bytes, file.attr.nlink), (0, 1));
        assert_eq!(volume.attr(&file.node), file.attr);
        assert_eq!(volume.write(&file.node, 0, b"by its maker"), Ok(12));
    }
    for mode in [0o777, 0o700, 0o1777] {
        let name = format!("directory {mode:o}");
        let dir = volume.make(&root, name, NewNode::Directory, mode).expect("a directory can be made");
        assert_eq!((dir.attr.mode, dir.attr.kind), (0o040_000 | mode, NodeKind::Directory));
    }
}

pub(super) fn a_new_node_has_its_owner(volume: &Volume) {
    let root = volume.root();
    let owner = if is_root() { (12, 34) } else { (volume.attr(&root).uid, volume.attr(&root).gid) };
    for what in [NewNode::File, NewNode::Directory, NewNode::Symlink("target".into())] {
        let (dir, name) = (root.clone(), OsString::from(format!("{what:?}")));
        let creator = Some(Creator { uid: owner.0, gid: owner.1, umask: 0 });
        let call = |done| Call::Make { dir, name, what, mode: 0o2755, creator, done };
        let made = volume.ask(call).expect("it can be made").attr;
        assert_eq!((made.uid, made.gid), owner);
        if made.kind != NodeKind::Symlink {
            assert_eq!(made.mode & 0o7777, 0o2755);
        }
    }
}

pub(super) fn a_name_is_found_in_its_own_directory_only(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let file = volume.file(&dir, "file");
    let found = volume.lookup(&dir, "file").expect("it was made there");
    assert_eq!(found.node.id(), file.id());
    assert_eq!(found.attr.id, file.id());
    assert_eq!(volume.lookup(&root, "file").err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.lookup(&file, "file").err(), Some(ErrorKind::NotDirectory));
    for what in [NewNode::File, NewNode::Directory, NewNode::Symlink("target".into())] {
        assert_eq!(volume.make(&root, "dir", what.clone(), 0o755).err(), Some(ErrorKind::Exists));
        assert_eq!(volume.make(&file, "below", what, 0o755).err(), Some(ErrorKind::NotDirectory));
    }
    assert_eq!(volume.lookup(&root, "dir").expect("untouched").node.id(), dir.id());
}

/// The engine does not pass names that are not one component. A backend refuses them all the same.
pub(super) fn a_name_that_is_not_one_component_is_refused_by_every_call(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let file = volume.file(&dir, "file");
    let invalid = Some(ErrorKind::Invalid);
    for name in ["", ".", "..", "/", "a/b", "../dir", "/etc", "file/", "a\0b"].map(OsStr::new) {
        assert_eq!(volume.lookup(&dir, name).err(), invalid, "{name:?}");
        assert_eq!(volume.make(&dir, name, NewNode::File, 0o644).err(), invalid, "{name:?}");
        assert_eq!(volume.make(&dir, name, NewNode::Directory, 0o755).err(), invalid, "{name:?}");
        assert_eq!(volume.link(&file, &dir, name).err(), invalid, "{name:?}");
        assert_eq!(volume.remove(&dir, name, Removal::File).err(), invalid, "{name:?}");
        assert_eq!(volume.remove(&dir, name, Removal::Directory).err(), invalid, "{name:?}");
        let (good, bad) = ((&dir, OsStr::new("file")), (&dir, name));
        assert_eq!(volume.rename_os(good, bad, RenameMode::Replace).err(), invalid, "{name:?}");
        assert_eq!(volume.rename_os(bad, good, RenameMode::Replace).err(), invalid, "{name:?}");
    }
    assert_eq!(volume.entries(&dir).len(), 1);
}

pub(super) fn names_have_up_to_255_bytes(volume: &Volume) {
    let root = volume.root();
    let longest = OsString::from("n".repeat(255));
    // Not UTF-8, but a valid name.
    let odd = OsStr::from_bytes(b"\xff\xfe new\nline");
    for name in [longest.as_os_str(), odd] {
        let file = volume.file(&root, name);
        assert_eq!(volume.lookup(&root, name).expect("it was made").node.id(), file.id());
    }
    let mut names: Vec<_> = volume.entries(&root).into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, [&longest, odd]);
    let too_long = "n".repeat(256);
    assert_eq!(volume.lookup(&root, &too_long).err(), Some(ErrorKind::NameTooLong));
    assert_eq!(volume.make(&root, &too_long, NewNode::File, 0o644).err(), Some(ErrorKind::NameTooLong));
}

pub(super) fn a_link_is_another_name_of_the_same_node(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let file = volume.file(&root, "file");
    assert_eq!(volume.link(&file, &dir, "link").expect("a file can be linked").nlink, 2);
    let link = volume.lookup(&dir, "link").expect("it was made").node;
    assert_eq!(link.id(), file.id());
    volume.fill(&file, b"seen by both");
    assert_eq!(volume.read(&link, 0, 4096).as_deref(), Ok(&b"seen by both"[..]));
    assert_eq!(volume.link(&file, &root, "dir").err(), Some(ErrorKind::Exists));
    assert_eq!(volume.link(&dir, &root, "other").err(), Some(ErrorKind::NotPermitted));
    assert_eq!(volume.remove(&root, "file", Removal::File), Ok(()));
    assert_eq!(volume.attr(&link).nlink, 1);
    // A symbolic link can be linked too; the new name belongs to the link, not to its target.
    let symlink = volume.make(&root, "symlink", NewNode::Symlink("dir".into()), 0).expect("it can be made").node;
    assert_eq!(volume.link(&symlink, &root, "second").expect("it can be linked").nlink, 2);
    assert_eq!(volume.lookup(&root, "second").expect("it was made").attr.kind, NodeKind::Symlink);
    assert_eq!(volume.remove(&dir, "link", Removal::File), Ok(()));
    assert_eq!(volume.link(&link, &root, "again").err(), Some(ErrorKind::NotFound));
}

pub(super) fn removal_checks_the_kind_of_node(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    volume.file(&dir, "file");
    assert_eq!(volume.remove(&root, "dir", Removal::File), Err(ErrorKind::IsDirectory));
    assert_eq!(volume.remove(&dir, "file", Removal::Directory), Err(ErrorKind::NotDirectory));
    assert_eq!(volume.remove(&root, "dir", Removal::Directory), Err(ErrorKind::NotEmpty));
    assert_eq!(volume.remove(&root, "nothing", Removal::File), Err(ErrorKind::NotFound));
    assert_eq!(volume.attr(&root).nlink, 3);
    assert_eq!(volume.remove(&dir, "file", Removal::File), Ok(()));
    assert_eq!(volume.remove(&root, "dir", Removal::Directory), Ok(()));
    assert_eq!(volume.lookup(&root, "dir").err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.attr(&root).nlink, 2);
}

pub(super) fn removal_returns_the_node_with_its_remaining_links(volume: &Volume) {
    let root = volume.root();
    let made = volume.make(&root, "file", NewNode::File, 0o640).expect("it can be made");
    volume.link(&made.node, &root, "link").expect("it can be linked");
    let removed = volume.removed(&root, "file", Removal::File).expect("it can be removed");
    assert_eq!((removed.attr.id, removed.attr.nlink, removed.attr.mode), (made.attr.id, 1, 0o100_640));
    assert_eq!(removed.handle, made.handle);
    drop((made, removed));
    let removed = volume.removed(&root, "link", Removal::File).expect("it can be removed");
    assert_eq!(removed.attr.nlink, 0);
    assert_eq!(volume.write(&removed.node, 0, b"late"), Ok(4), "it is open");
    assert_eq!(volume.attr(&removed.node).size_bytes, 4);
    assert_eq!(volume.reopen(&removed.handle, removed.attr.id).err(), Some(ErrorKind::Stale));
    let dir = volume.directory(&root, "dir");
    let removed = volume.removed(&root, "dir", Removal::Directory).expect("it can be removed");
    assert_eq!((removed.attr.id, removed.attr.kind, removed.attr.nlink), (dir.id(), NodeKind::Directory, 0));
}

pub(super) fn a_removed_directory_accepts_no_names(volume: &Volume) {
    let root = volume.root();
    let (dir, file) = (volume.directory(&root, "dir"), volume.file(&root, "file"));
    assert_eq!(volume.remove(&root, "dir", Removal::Directory), Ok(()));
    let not_found = Some(ErrorKind::NotFound);
    assert_eq!(volume.make(&dir, "new", NewNode::File, 0o644).err(), not_found);
    assert_eq!(volume.link(&file, &dir, "new").err(), not_found);
    assert_eq!(volume.rename((&root, "file"), (&dir, "new"), RenameMode::Replace).err(), not_found);
    assert_eq!(volume.lookup(&dir, "new").err(), not_found);
    assert_eq!(volume.entries(&dir), []);
}

pub(super) fn a_symbolic_link_is_never_followed(volume: &Volume) {
    let root = volume.root();
    for target in ["/etc", "..", "nothing", "dir"] {
        let name = format!("to {}", target.replace('/', " "));
        let link = volume.make(&root, &name, NewNode::Symlink(target.into()), 0).expect("it can be made");
        assert_eq!((link.attr.kind, link.attr.size_bytes), (NodeKind::Symlink, target.len() as u64));
        let found = volume.lookup(&root, &name).expect("it was made");
        assert_eq!(found.attr.kind, NodeKind::Symlink);
        assert_eq!(volume.readlink(&found.node), Ok(target.into()));
        assert_eq!(volume.lookup(&found.node, "passwd").err(), Some(ErrorKind::NotDirectory));
        assert_eq!(volume.make(&found.node, "new", NewNode::File, 0o644).err(), Some(ErrorKind::NotDirectory));
        assert_eq!(volume.readdir(&found.node, 0).err(), Some(ErrorKind::NotDirectory));
    }
    assert_eq!(volume.readlink(&root).err(), Some(ErrorKind::Invalid));
    assert_eq!(volume.readlink(&volume.file(&root, "file")).err(), Some(ErrorKind::Invalid));
}

pub(super) fn a_directory_has_a_parent_until_it_is_removed(volume: &Volume) {
    let root = volume.root();
    let parent = |dir: &Node| {
        let dir = dir.clone();
        volume.ask(|done| Call::Parent { dir, done }).map(|found| found.node.id())
    };
    let (outer, other) = (volume.directory(&root, "outer"), volume.directory(&root, "other"));
    let inner = volume.directory(&outer, "inner");
    assert_eq!(parent(&root), Err(ErrorKind::Stale), "the root");
    assert_eq!(parent(&outer), Ok(root.id()));
    assert_eq!(parent(&inner), Ok(outer.id()));
    assert_eq!(volume.rename((&outer, "inner"), (&other, "moved"), RenameMode::Replace), Ok(()));
    assert_eq!(parent(&inner), Ok(other.id()), "after a rename");
    assert_eq!(volume.remove(&other, "moved", Removal::Directory), Ok(()));
    assert_eq!(parent(&inner), Err(ErrorKind::Stale), "after its removal");
    assert_eq!(parent(&volume.file(&root, "file")), Err(ErrorKind::NotDirectory));
}

pub(super) fn a_rename_replaces_a_node_of_the_same_kind(volume: &Volume) {
    let root = volume.root();
    let (a, b) = (volume.directory(&root, "a"), volume.directory(&root, "b"));
    let file = volume.file(&a, "file");
    assert_eq!(volume.rename((&a, "file"), (&b, "moved"), RenameMode::Replace), Ok(()));
    assert_eq!(volume.lookup(&a, "file").err(), Some(ErrorKind::NotFound));
    assert_eq!(volume.lookup(&b, "moved").expect("it moved").node.id(), file.id());
    // Over another file, which remains usable while open.
    let replaced = volume.file(&b, "target");
    assert_eq!(volume.rename((&b, "moved"), (&b, "target"), RenameMode::Replace), Ok(()));
    assert_eq!(volume.lookup(&b, "target").expect("it moved").node.id(), file.id());
    assert_eq!(volume.attr(&replaced).nlink, 0);
    // A rename between two names of one file does nothing.
    volume.link(&file, &a, "link").expect("a file can be linked");
    assert_eq!(volume.rename((&a, "link"), (&b, "target"), RenameMode::Replace), Ok(()));
    assert_eq!(volume.attr(&file).nlink, 2);
    // Kinds must match, and a replaced directory must be empty.
    assert_eq!(volume.rename((&b, "target"), (&root, "a"), RenameMode::Replace), Err(ErrorKind::IsDirectory));
    assert_eq!(volume.rename((&root, "a"), (&b, "target"), RenameMode::Replace), Err(ErrorKind::NotDirectory));
    assert_eq!(volume.rename((&root, "a"), (&root, "b"), RenameMode::Replace), Err(ErrorKind::NotEmpty));
    assert_eq!(volume.rename((&root, "nothing"), (&root, "b"), RenameMode::Replace), Err(ErrorKind::NotFound));
    volume.directory(&root, "empty");
    assert_eq!(volume.rename((&root, "b"), (&root, "empty"), RenameMode::Replace), Ok(()));
    assert_eq!(volume.lookup(&root, "empty").expect("it moved").node.id(), b.id());
    assert_eq!(volume.attr(&root).nlink, 4);
}

pub(super) fn a_no_replace_rename_fails_if_the_name_exists(volume: &Volume) {
    let root = volume.root();
    let (a, b) = (volume.file(&root, "a"), volume.file(&root, "b"));
    assert_eq!(volume.rename((&root, "a"), (&root, "b"), RenameMode::NoReplace), Err(ErrorKind::Exists));
    assert_eq!(volume.lookup(&root, "b").expect("untouched").node.id(), b.id());
    assert_eq!(volume.rename((&root, "a"), (&root, "c"), RenameMode::NoReplace), Ok(()));
    assert_eq!(volume.lookup(&root, "c").expect("it moved").node.id(), a.id());
}

pub(super) fn an_exchange_swaps_two_names(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let (file, inner) = (volume.file(&root, "file"), volume.directory(&dir, "inner"));
    assert_eq!(volume.rename((&root, "file"), (&dir, "inner"), RenameMode::Exchange), Ok(()));
    assert_eq!(volume.lookup(&root, "file").expect("swapped").node.id(), inner.id());
    assert_eq!(volume.lookup(&dir, "inner").expect("swapped").node.id(), file.id());
    assert_eq!((volume.attr(&root).nlink, volume.attr(&dir).nlink), (4, 2));
    assert_eq!(volume.rename((&root, "file"), (&dir, "nothing"), RenameMode::Exchange), Err(ErrorKind::NotFound));
}

pub(super) fn a_whiteout_is_left_at_the_old_name(volume: &Volume) {
    let root = volume.root();
    let dir = volume.directory(&root, "dir");
    let (file, _) = (volume.file(&root, "file"), volume.file(&dir, "replaced"));
    assert_eq!(volume.rename((&root, "file"), (&dir, "replaced"), RenameMode::Whiteout), Ok(()));
    assert_eq!(volume.lookup(&dir, "replaced").expect("it moved").node.id(), file.id());
    let whiteout = volume.lookup(&root, "file").expect("a whiteout").attr;
    assert_eq!((whiteout.mode & 0o170_000, whiteout.rdev, whiteout.nlink), (0o020_000, 0, 1));
    assert_eq!(volume.remove(&root, "file", Removal::File), Ok(()));
}

pub(super) fn a_directory_cannot_be_moved_into_itself(volume: &Volume) {
    let root = volume.root();
    let outer = volume.directory(&root, "outer");
    let inner = volume.directory(&outer, "inner");
    assert_eq!(volume.rename((&root, "outer"), (&inner, "new"), RenameMode::Replace), Err(ErrorKind::Invalid));
    assert_eq!(volume.rename((&root, "outer"), (&outer, "new"), RenameMode::Replace), Err(ErrorKind::Invalid));
    volume.directory(&inner, "deep");
    assert_eq!(volume.rename((&root, "outer"), (&inner, "deep"), RenameMode::Exchange), Err(ErrorKind::Invalid));
    assert_eq!(volume.rename((&inner, "deep"), (&root, "outer"), RenameMode::Exchange), Err(ErrorKind::Invalid));
    assert_eq!(volume.lookup(&root, "outer").expect("untouched").node.id(), outer.id());
}
