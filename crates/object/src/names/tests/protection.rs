//! Immutable and append-only nodes refuse what Linux lets them refuse.

use std::ffi::OsStr;

use slackwater::backend::file_flags::{APPEND, IMMUTABLE};
use slackwater::backend::{AttrChange, NewNode, Protection, Removal, RenameMode, XattrMode};
use slackwater::{ErrorKind, Timestamp};

use super::Names;
use crate::format::ROOT;
use crate::names;

const REFUSED: ErrorKind = ErrorKind::NotPermitted;

impl Names {
    fn set_flags(&self, ino: u64, flags: u32) {
        let (_, inode) = self.run(|view| names::setflags(view, ino, flags)).expect("flags can be set");
        assert_eq!(inode.flags, flags);
        assert_eq!(self.run(|view| names::getflags(view, ino)), Ok(flags));
    }

    fn remove(&self, dir: u64, name: &str) -> Result<(), ErrorKind> {
        self.run(|view| names::remove(view, dir, OsStr::new(name), Removal::File)).map(drop)
    }

    fn rename(&self, from: (u64, &str), to: (u64, &str)) -> Result<(), ErrorKind> {
        let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
        self.run(|view| names::rename(view, from, to, RenameMode::Replace)).map(drop)
    }

    fn set(&self, ino: u64, change: AttrChange) -> Result<(), ErrorKind> {
        self.run(|view| names::setattr(view, ino, change)).map(drop)
    }
}

#[test]
fn a_protected_file_cannot_be_changed_or_lose_its_name() {
    for (flags, protection) in [(IMMUTABLE, Protection::Immutable), (APPEND, Protection::AppendOnly)] {
        let names = Names::new();
        let (file, _) = (names.file("file"), names.file("other"));
        names.set_flags(file, flags);
        assert_eq!(names::attr_of(0, file, &names.inode(file)).protection, protection);
        let none = AttrChange::default();
        for change in [
            AttrChange { mode: Some(0o600), ..none },
            AttrChange { uid: Some(1), ..none },
            AttrChange { size_bytes: Some(0), ..none },
            AttrChange { mtime: Some(Timestamp(0)), ..none },
        ] {
            assert_eq!(names.set(file, change), Err(REFUSED), "{change:?}");
        }
        let (name, value) = (OsStr::new("user.a"), b"1");
        let set = names.run(|view| names::setxattr(view, file, name, value, XattrMode::Set));
        assert_eq!(set.map(drop), Err(REFUSED));
        let linked = names.run(|view| names::link(view, file, ROOT, OsStr::new("link")));
        assert_eq!(linked.map(drop), Err(REFUSED));
        assert_eq!(names.remove(ROOT, "file"), Err(REFUSED));
        assert_eq!(names.rename((ROOT, "file"), (ROOT, "moved")), Err(REFUSED));
        assert_eq!(names.rename((ROOT, "other"), (ROOT, "file")), Err(REFUSED));
        names.set_flags(file, 0);
        assert_eq!(names.set(file, AttrChange { mode: Some(0o600), ..none }), Ok(()));
        assert_eq!(names.remove(ROOT, "file"), Ok(()));
    }
}

#[test]
fn an_append_only_directory_gets_names_and_keeps_them() {
    let names = Names::new();
    let dir = names.directory("dir");
    names.make(dir, "file", NewNode::File, 0o644).expect("it can be made");
    names.file("outside");
    names.set_flags(dir, APPEND);
    names.make(dir, "new", NewNode::File, 0o644).expect("a name can be added");
    assert_eq!(names.rename((ROOT, "outside"), (dir, "inside")), Ok(()));
    assert_eq!(names.remove(dir, "file"), Err(REFUSED));
    assert_eq!(names.rename((dir, "file"), (dir, "other")), Err(REFUSED));
    assert_eq!(names.rename((dir, "file"), (dir, "new")), Err(REFUSED));
}

#[test]
fn an_immutable_directory_keeps_its_names() {
    let names = Names::new();
    let dir = names.directory("dir");
    names.make(dir, "file", NewNode::File, 0o644).expect("it can be made");
    let outside = names.file("outside");
    names.set_flags(dir, IMMUTABLE);
    assert_eq!(names.make(dir, "new", NewNode::File, 0o644).map(drop), Err(REFUSED));
    assert_eq!(names.make(dir, "file", NewNode::File, 0o644).map(drop), Err(ErrorKind::Exists));
    assert_eq!(names.run(|view| names::tmpfile(view, dir, 0o600, None)).map(drop), Err(REFUSED));
    assert_eq!(names.run(|view| names::link(view, outside, dir, OsStr::new("link"))).map(drop), Err(REFUSED));
    assert_eq!(names.remove(dir, "file"), Err(REFUSED));
    assert_eq!(names.rename((ROOT, "outside"), (dir, "inside")), Err(REFUSED));
    assert_eq!(names.rename((dir, "file"), (ROOT, "moved")), Err(REFUSED));
}

#[test]
fn flags_that_mean_nothing_here_are_refused() {
    const NO_DUMP: u32 = 0x40;
    const COMPRESSED: u32 = 0x4;
    let names = Names::new();
    let (file, link) = (names.file("file"), names.make(ROOT, "link", NewNode::Symlink("file".into()), 0));
    let link = link.expect("it can be made").0;
    let set = |ino, flags| names.run(|view| names::setflags(view, ino, flags)).map(drop);
    assert_eq!(set(file, COMPRESSED), Err(ErrorKind::Unsupported));
    assert_eq!(set(link, NO_DUMP), Err(ErrorKind::Unsupported));
    assert_eq!(names.run(|view| names::getflags(view, link)), Err(ErrorKind::Unsupported));
    let dir = names.directory("dir");
    names.set_flags(dir, NO_DUMP | APPEND);
    let (_, inner) = names.make(dir, "inner", NewNode::File, 0o644).expect("it can be made");
    assert_eq!(inner.flags, NO_DUMP, "what is inherited is no protection");
}
