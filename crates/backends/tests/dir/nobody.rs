//! Refusals for a process without privileges are distinguished as the kernel does: EACCES from EPERM.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use slackwater::ErrorKind;
use slackwater::backend::{AttrChange, FallocateMode, NewNode, Removal, XattrMode};
use slackwater_testkit::conformance::is_root;

use crate::fixture::{TempDir, as_nobody};
use crate::open;

/// A directory owned by root. It has a readable file, a secret file, a closed directory, a directory that cannot be
/// searched, and one that is open to all users.
fn roots_directory() -> TempDir {
    let dir = TempDir::new_in("/tmp");
    let permit = |name: &str, mode| {
        let path = dir.path().join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours to change");
    };
    for (name, mode) in [("readable", 0o644), ("secret", 0o600)] {
        std::fs::write(dir.path().join(name), b"bytes").expect("ours to fill");
        permit(name, mode);
    }
    for (name, mode) in [("closed", 0o700), ("listed", 0o744), ("public", 0o1777)] {
        std::fs::create_dir(dir.path().join(name)).expect("ours to fill");
        std::fs::write(dir.path().join(name).join("file"), b"bytes").expect("ours to fill");
        permit(name, mode);
    }
    permit("", 0o755);
    dir
}

#[test]
fn refusals_are_distinguished() {
    if !is_root() {
        return println!("skipped: it takes root to make what others may not touch");
    }
    let dir = roots_directory();
    let path: &Path = dir.path();
    as_nobody(|_| {
        let (_, volume) = open(path);
        let root = volume.root();
        let node = |name: &str| volume.lookup(&root, name).expect("it is there").node;
        let (no_access, not_permitted) = (Some(ErrorKind::Permission), Some(ErrorKind::NotPermitted));
        assert_eq!(volume.read(&node("readable"), 0, 4096).as_deref(), Ok(&b"bytes"[..]));
        assert_eq!(volume.write(&node("readable"), 0, b"x").err(), no_access);
        assert_eq!(volume.read(&node("secret"), 0, 4096).err(), no_access);
        assert_eq!(volume.resize(&node("readable"), 0).err(), no_access);
        assert_eq!(volume.fallocate(&node("readable"), FallocateMode::Allocate, 0, 4096).err(), no_access);
        let change = |change| volume.setattr(&node("readable"), change).err();
        assert_eq!(change(AttrChange { mode: Some(0o666), ..AttrChange::default() }), not_permitted);
        assert_eq!(change(AttrChange { uid: Some(65_534), ..AttrChange::default() }), not_permitted);
        assert_eq!(
            change(AttrChange { mtime: Some(slackwater::Timestamp(5)), ..AttrChange::default() }),
            not_permitted
        );
        let set = volume.setxattr(&node("readable"), "user.one", b"1", XattrMode::Set).err();
        assert!(set == no_access || set == Some(ErrorKind::Unsupported), "{set:?}");
        assert_eq!(volume.setxattr(&node("readable"), "trusted.one", b"1", XattrMode::Set).err(), not_permitted);
        assert_eq!(volume.make(&root, "new", NewNode::File, 0o644).err(), no_access);
        assert_eq!(volume.make(&root, "new", NewNode::Directory, 0o755).err(), no_access);
        assert_eq!(volume.remove(&root, "readable", Removal::File).err(), no_access);
        assert_eq!(volume.lookup(&node("closed"), "file").err(), no_access);
        assert_eq!(volume.readdir(&node("closed"), 0).err(), no_access);
        let device = NewNode::Special { type_bits: 0o020_000, rdev: 0x0103 };
        assert_eq!(volume.make(&node("public"), "null", device, 0o666).err(), not_permitted);
        assert_eq!(volume.remove(&node("public"), "file", Removal::File).err(), not_permitted, "it is sticky");
        // Names that can be read, of nodes whose attributes cannot.
        let listed = volume.readdir_plus(&node("listed"), 0).expect("it may be read");
        assert!(listed.len() == 1 && listed[0].entry.name == "file" && listed[0].found.is_none(), "{listed:?}");
    });
    assert_eq!(std::fs::read(path.join("readable")).expect("it is there"), b"bytes");
}
