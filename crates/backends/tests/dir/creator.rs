//! New nodes belong to their creator from their first moment.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use slackwater::backend::{Creator, NewNode};
use slackwater_testkit::conformance::is_root;

use crate::fixture::TempDir;
use crate::open;

const CREATOR: Creator = Creator { uid: 12, gid: 34, umask: 0o027 };

/// Every kind of node, with the mode that is asked for and the one that it gets.
fn nodes() -> [(&'static str, NewNode, u32, u32); 4] {
    let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
    [
        ("file", NewNode::File, 0o6775, 0o6750),
        ("dir", NewNode::Directory, 0o1777, 0o1750),
        ("link", NewNode::Symlink("target".into()), 0, 0o777),
        ("fifo", fifo, 0o666, 0o640),
    ]
}

/// Runs `test` in a thread without some of root's capabilities, which its volumes then do not have either.
fn without(taken: CapabilitySet, test: impl FnOnce() + Send) {
    if !is_root() {
        return println!("skipped: only root creates nodes for others");
    }
    let body = || {
        let mut sets = capabilities(None).expect("a thread may ask");
        sets.effective -= taken;
        sets.permitted -= taken;
        set_capabilities(None, sets).expect("a thread may give up capabilities");
        test();
    };
    std::thread::scope(|scope| scope.spawn(body).join()).expect("the test passes");
}

/// A directory that only root may write to.
fn roots_directory() -> TempDir {
    let dir = TempDir::new();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).expect("ours to change");
    dir
}

/// A node was created as root's, and given to its creator by a second system call. A process that was killed in between
/// left a node of root, and its successor answered that the user had created it. Here, the second call is not permitted.
#[test]
fn a_node_belongs_to_its_creator_before_any_second_call() {
    let dir = roots_directory();
    without(CapabilitySet::CHOWN | CapabilitySet::FOWNER, || {
        let (_, volume) = open(dir.path());
        let root = volume.root();
        for (name, what, asked, mode) in nodes() {
            let made = volume.make_as(&root, name, what, asked, CREATOR).expect("it can be made").attr;
            assert_eq!((made.uid, made.gid, made.mode & 0o7777), (12, 34, mode), "{name}");
            let found = std::fs::symlink_metadata(dir.path().join(name)).expect("it was made");
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (12, 34, mode), "{name}");
        }
        if let Ok(made) = volume.tmpfile(&root, 0o666, Some(CREATOR)) {
            assert_eq!((made.attr.uid, made.attr.gid, made.attr.mode), (12, 34, 0o100_640));
        }
    });
}

/// The file system refuses the creator, and not this process.
#[test]
fn a_node_that_its_creator_may_not_create_is_created_for_it() {
    let dir = roots_directory();
    without(CapabilitySet::DAC_OVERRIDE, || {
        let (_, volume) = open(dir.path());
        let root = volume.root();
        for (name, what, asked, mode) in nodes() {
            let made = volume.make_as(&root, name, what, asked, CREATOR).expect("it can be made").attr;
            assert_eq!((made.uid, made.gid, made.mode & 0o7777), (12, 34, mode), "{name}");
        }
    });
}
