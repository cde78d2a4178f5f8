//! Flags of files and directories, such as append-only and immutable.

use slackwater::ErrorKind;
use slackwater::backend::file_flags::{APPEND, IMMUTABLE};
use slackwater::backend::{Attr, AttrChange, Call, NewNode, Node, Protection, Removal, RenameMode};

use super::volume::{Answer, Volume, is_root};

/// A flag that the owner of a file may set, and that has no effect: it leaves the file out of a dump.
const NO_DUMP: u32 = 0x40;

fn get(volume: &Volume, node: &Node) -> Answer<u32> {
    let node = node.clone();
    volume.ask(|done| Call::Getflags { node, done })
}

fn set(volume: &Volume, node: &Node, flags: u32) -> Answer<Attr> {
    let node = node.clone();
    volume.ask(|done| Call::Setflags { node, flags, done })
}

/// A file and a directory with their flags, if the file system below has any.
fn nodes(volume: &Volume) -> Option<[(&'static str, Node, u32); 2]> {
    let root = volume.root();
    let nodes = [("file", volume.file(&root, "file")), ("directory", volume.directory(&root, "directory"))];
    if get(volume, &nodes[0].1) == Err(ErrorKind::Unsupported) {
        println!("skipped: no flags here");
        return None;
    }
    Some(nodes.map(|(name, node)| {
        let flags = get(volume, &node).expect("they can be read");
        (name, node, flags)
    }))
}

pub(super) fn flags_read_back_as_set(volume: &Volume) {
    for (name, node, flags) in nodes(volume).into_iter().flatten() {
        let before = volume.attr(&node);
        let attr = set(volume, &node, flags | NO_DUMP).expect("its owner may set it");
        assert_eq!(attr, volume.attr(&node), "{name}");
        assert!(attr.ctime >= before.ctime && attr.mtime == before.mtime, "{name}");
        assert_eq!(get(volume, &node), Ok(flags | NO_DUMP), "{name}");
        assert!(set(volume, &node, flags).is_ok(), "{name}");
        assert_eq!(get(volume, &node), Ok(flags), "{name}");
    }
}

pub(super) fn flags_outlive_the_open_node(volume: &Volume) {
    for (name, node, flags) in nodes(volume).into_iter().flatten() {
        assert!(set(volume, &node, flags | NO_DUMP).is_ok(), "{name}");
        drop(node);
        let again = volume.lookup(&volume.root(), name).expect("it has a name").node;
        assert_eq!(get(volume, &again), Ok(flags | NO_DUMP), "{name}");
    }
}

pub(super) fn a_protected_node_refuses_changes(volume: &Volume) {
    let Some(nodes) = nodes(volume) else { return };
    let root = volume.root();
    let protections = [(IMMUTABLE, Protection::Immutable), (APPEND, Protection::AppendOnly)];
    for (name, node, flags) in nodes {
        for (flag, protection) in protections {
            match set(volume, &node, flags | flag) {
                Ok(attr) => assert_eq!(attr.protection, protection, "{name}"),
                // A process may lack the capability, also as root.
                Err(kind) => {
                    assert_eq!(kind, ErrorKind::NotPermitted, "{name}");
                    return println!("skipped: {} may not protect files", if is_root() { "root" } else { "a user" });
                }
            }
            let chmod = AttrChange { mode: Some(0o700), ..AttrChange::default() };
            let removal = if name == "file" { Removal::File } else { Removal::Directory };
            let refused = [
                ("chmod", volume.setattr(&node, chmod).map(drop)),
                ("remove", volume.remove(&root, name, removal)),
                ("rename", volume.rename((&root, name), (&root, "new"), RenameMode::Replace)),
            ];
            // Before a check: the directory of a failed test must be removable.
            let unprotected = set(volume, &node, flags);
            for (what, answer) in refused {
                assert_eq!(answer, Err(ErrorKind::NotPermitted), "{what} of an {protection:?} {name}");
            }
            assert_eq!(unprotected.map(|attr| attr.protection), Ok(Protection::None), "{name}");
            assert!(volume.setattr(&node, chmod).is_ok(), "{name}");
        }
    }
}

pub(super) fn links_and_special_nodes_have_no_flags(volume: &Volume) {
    let root = volume.root();
    let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
    for (name, what) in [("link", NewNode::Symlink("file".into())), ("fifo", fifo)] {
        let node = volume.make(&root, name, what, 0o600).expect("it can be made").node;
        assert_eq!(get(volume, &node), Err(ErrorKind::Unsupported), "{name}");
        assert_eq!(set(volume, &node, 0).err(), Some(ErrorKind::Unsupported), "{name}");
    }
}
