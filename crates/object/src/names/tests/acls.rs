//! ACLs, the mode, and new nodes.

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::{AttrChange, NewNode, XattrMode};

use super::Names;
use crate::format::ROOT;
use crate::names;
use crate::names::acl::{ACCESS, DEFAULT};

const NO_ID: u32 = u32::MAX;

/// The value of an ACL: user, one named user, group, mask and others.
fn extended(user: u16, named: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    value(&[(1, user, NO_ID), (2, named, 77), (4, group, NO_ID), (16, mask, NO_ID), (32, other, NO_ID)])
}

fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

impl Names {
    fn acl(&self, ino: u64, name: &str) -> Result<Vec<u8>, ErrorKind> {
        self.run(|view| names::getxattr(view, ino, OsStr::new(name))).map(|value| value.to_vec())
    }

    fn set_acl(&self, ino: u64, name: &str, value: &[u8]) -> Result<u32, ErrorKind> {
        let set = self.run(|view| names::setxattr(view, ino, OsStr::new(name), value, XattrMode::Set));
        set.map(|(_, inode)| inode.mode & 0o7777)
    }

    fn mode(&self, ino: u64) -> u32 {
        self.inode(ino).mode & 0o7777
    }
}

#[test]
fn an_access_acl_and_the_mode_follow_each_other() {
    let names = Names::new();
    let file = names.file("file");
    assert_eq!(names.set_acl(file, ACCESS, &extended(7, 6, 5, 4, 0)), Ok(0o740));
    assert_eq!(names.acl(file, ACCESS), Ok(extended(7, 6, 5, 4, 0)));
    let change = AttrChange { mode: Some(0o1461), ..AttrChange::default() };
    names.run(|view| names::setattr(view, file, change)).expect("it can be set");
    assert_eq!(names.acl(file, ACCESS), Ok(extended(4, 6, 5, 6, 1)), "the mask is the group of the mode");
    // An ACL that says what a mode says is not kept.
    let plain = value(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID)]);
    assert_eq!(names.set_acl(file, ACCESS, &plain), Ok(0o1644));
    assert_eq!(names.acl(file, ACCESS), Err(ErrorKind::NoData));
    // Without entries it is removed, and the mode stays.
    names.set_acl(file, ACCESS, &extended(7, 7, 7, 7, 7)).expect("it can be set");
    assert_eq!(names.set_acl(file, ACCESS, &value(&[])), Ok(0o1777));
    assert_eq!(names.acl(file, ACCESS), Err(ErrorKind::NoData));
    let removed = names.run(|view| names::removexattr(view, file, OsStr::new(ACCESS)));
    assert!(removed.is_ok(), "as in Linux");
}

#[test]
fn a_default_acl_applies_instead_of_the_umask() {
    let names = Names::new();
    let dir = names.directory("dir");
    assert_eq!(names.set_acl(dir, DEFAULT, &extended(7, 7, 5, 7, 5)), Ok(0o755), "it is not the directory's own");
    let (file, made) = names.make(dir, "file", NewNode::File, 0o666).expect("it can be made");
    assert_eq!(made.mode & 0o7777, 0o664, "the umask is 022");
    assert_eq!(names.acl(file, ACCESS), Ok(extended(6, 7, 5, 6, 4)));
    assert_eq!(names.acl(file, DEFAULT), Err(ErrorKind::NoData));
    let (inner, made) = names.make(dir, "inner", NewNode::Directory, 0o777).expect("it can be made");
    assert_eq!(made.mode & 0o7777, 0o775);
    assert_eq!(names.acl(inner, ACCESS), Ok(extended(7, 7, 5, 7, 5)));
    assert_eq!(names.acl(inner, DEFAULT), Ok(extended(7, 7, 5, 7, 5)));
    let (link, made) = names.make(dir, "link", NewNode::Symlink("file".into()), 0).expect("it can be made");
    assert_eq!((made.mode & 0o7777, made.xattrs.len()), (0o777, 0));
    assert_eq!(names.set_acl(link, ACCESS, &extended(7, 7, 5, 7, 5)), Err(ErrorKind::Unsupported));
    // A node made for no creator has exactly its mode.
    let made = names.run(|view| names::make(view, dir, OsStr::new("exact"), &NewNode::File, 0o640, None));
    let (exact, _) = made.expect("it can be made");
    assert_eq!((names.mode(exact), names.acl(exact, ACCESS)), (0o640, Ok(extended(6, 7, 5, 4, 0))));
    // A default ACL that says what a mode says leaves new files without an ACL.
    let plain = value(&[(1, 7, NO_ID), (4, 5, NO_ID), (32, 0, NO_ID)]);
    names.set_acl(dir, DEFAULT, &plain).expect("it can be set");
    let (file, made) = names.make(dir, "plain", NewNode::File, 0o666).expect("it can be made");
    assert_eq!((made.mode & 0o7777, names.acl(file, ACCESS)), (0o640, Err(ErrorKind::NoData)));
}

#[test]
fn only_directories_have_default_acls() {
    let names = Names::new();
    let file = names.file("file");
    assert_eq!(names.set_acl(file, DEFAULT, &extended(7, 7, 5, 7, 5)), Err(ErrorKind::Permission));
    assert_eq!(names.set_acl(file, DEFAULT, &value(&[])), Ok(0o644));
    assert_eq!(names.set_acl(ROOT, DEFAULT, b"nonsense"), Err(ErrorKind::Unsupported));
    assert_eq!(names.set_acl(ROOT, DEFAULT, &extended(7, 7, 5, 8, 5)), Err(ErrorKind::Invalid));
}
