//! Permission bits of new nodes are removed by the creator's umask or by a default ACL, never by the umask of the
//! process.

use rustix::fs::Mode;
use rustix::process::umask;
use slackwater::ErrorKind;
use slackwater::backend::{Creator, NewNode, XattrMode};
use slackwater_testkit::conformance::{is_root, myself};

use crate::fixture::TempDir;
use crate::open;
use crate::sys::part_from_the_umask_of_other_threads;

/// Runs `test` in a thread whose own umask removes all permissions of others. The threads of a volume that is opened
/// there inherit this umask.
fn with_strict_umask(test: impl FnOnce() + Send) {
    let strict = Mode::RWXG | Mode::RWXO;
    let body = || {
        part_from_the_umask_of_other_threads();
        umask(strict);
        test();
        assert_eq!(umask(strict), strict, "nobody has changed it");
    };
    std::thread::scope(|scope| scope.spawn(body).join()).expect("the test passes");
}

#[test]
fn the_umask_of_the_process_neither_counts_nor_changes() {
    let dir = TempDir::new();
    with_strict_umask(|| {
        let (_, volume) = open(dir.path());
        let root = volume.root();
        let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
        for (name, what, mode) in
            [("file", NewNode::File, 0o666), ("dir", NewNode::Directory, 0o1777), ("fifo", fifo, 0o666)]
        {
            let creator = Creator { umask: 0o002, ..myself() };
            let made = volume.make_as(&root, name, what.clone(), mode, creator).expect("it can be made");
            assert_eq!(made.attr.mode & 0o7777, mode & !0o002, "{name}");
            let exact = volume.make(&root, format!("exact {name}"), what, mode).expect("it can be made");
            assert_eq!(exact.attr.mode & 0o7777, mode, "{name}");
        }
    });
}

/// An ACL of owner, one named user, group, mask and others, in the form the kernel takes.
fn acl(owner: u16, named: (u32, u16), group: u16, mask: u16, others: u16) -> Vec<u8> {
    let entries = [(1, owner, u32::MAX), (2, named.1, named.0), (4, group, u32::MAX), (16, mask, u32::MAX)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.into_iter().chain([(32, others, u32::MAX)]) {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn a_default_acl_gives_the_permissions_of_new_nodes() {
    const DEFAULT: &str = "system.posix_acl_default";
    const ACCESS: &str = "system.posix_acl_access";
    let dir = TempDir::new();
    with_strict_umask(|| {
        let (_, volume) = open(dir.path());
        let root = volume.root();
        let (plain, ruled) = (volume.directory(&root, "plain"), volume.directory(&root, "ruled"));
        let acl = acl(7, (77, 7), 5, 7, 4);
        match volume.setxattr(&ruled, DEFAULT, &acl, XattrMode::Set) {
            Err(ErrorKind::Unsupported) => return println!("skipped: no ACLs on the file system of the build"),
            set => set.expect("the owner may set it"),
        };
        let creator = match is_root() {
            true => Creator { uid: 12, gid: 34, umask: 0o027 },
            false => Creator { umask: 0o027, ..myself() },
        };
        let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
        let nodes = [("file", NewNode::File, 0o4666), ("dir", NewNode::Directory, 0o777), ("fifo", fifo, 0o666)];
        for (name, what, mode) in nodes {
            let by_umask = volume.make_as(&plain, name, what.clone(), mode, creator).expect("it can be made");
            assert_eq!(by_umask.attr.mode & 0o7777, mode & !0o027, "{name}");
            let by_acl = volume.make_as(&ruled, name, what, mode, creator).expect("it can be made");
            assert_eq!(by_acl.attr.mode & 0o7777, mode & 0o7774, "{name}");
            assert_eq!((by_acl.attr.uid, by_acl.attr.gid), (creator.uid, creator.gid), "{name}");
            assert_eq!(volume.attr(&by_acl.node), by_acl.attr);
            let access = volume.getxattr(&by_acl.node, ACCESS).expect("the named user has come along");
            assert_eq!(access.len(), acl.len());
        }
        let inner = volume.lookup(&ruled, "dir").expect("it was made").node;
        assert_eq!(volume.getxattr(&inner, DEFAULT).as_ref(), Ok(&acl));
        if let Ok(nameless) = volume.tmpfile(&ruled, 0o666, Some(creator)) {
            assert_eq!(nameless.attr.mode, 0o100_664);
        }
        // Setting an ACL changes the mode, whose group bits show the ACL's mask.
        let file = volume.lookup(&plain, "file").expect("it was made").node;
        let attr = volume.setxattr(&file, ACCESS, &acl, XattrMode::Set).expect("the owner may set it");
        assert_eq!(attr.mode & 0o777, 0o774);
        let made = volume
            .removexattr(&ruled, DEFAULT)
            .and_then(|_| volume.make_as(&ruled, "late", NewNode::File, 0o666, creator));
        assert_eq!(made.expect("it can be made").attr.mode, 0o100_640, "the umask counts again");
    });
}

#[test]
fn a_default_acl_counts_from_the_moment_it_is_set() {
    const DEFAULT: &str = "system.posix_acl_default";
    let dir = TempDir::new();
    let (_, volume) = open(dir.path());
    let ruled = volume.directory(&volume.root(), "ruled");
    let acl = acl(7, (77, 7), 5, 7, 4);
    let creator = Creator { umask: 0o027, ..myself() };
    let mode_of_new = |name: String| {
        let made = volume.make_as(&ruled, name, NewNode::File, 0o666, creator).expect("it can be made");
        made.attr.mode & 0o777
    };
    let again = volume.lookup(&volume.root(), "ruled").expect("it was made").node;
    for round in 0..50 {
        assert_eq!(mode_of_new(format!("without {round}")), 0o640);
        match volume.setxattr(&again, DEFAULT, &acl, XattrMode::Set) {
            Err(ErrorKind::Unsupported) => return println!("skipped: no ACLs on the file system of the build"),
            set => set.expect("the owner may set it"),
        };
        assert_eq!(mode_of_new(format!("with {round}")), 0o664, "through another node of the directory");
        volume.removexattr(&again, DEFAULT).expect("it was set");
    }
    assert_eq!(mode_of_new("without".to_owned()), 0o640);
    rustix::fs::setxattr(dir.path().join("ruled"), DEFAULT, &acl, rustix::fs::XattrFlags::empty()).expect("a path");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(mode_of_new("by another process".to_owned()), 0o664, "a second later");
}
