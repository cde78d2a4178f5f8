//! Records that contradict each other, or have impossible values: each fails the calls that need it, with `Io`, and no
//! other.

use std::ffi::OsStr;

use bytes::Bytes;
use slackwater::ErrorKind;
use slackwater::backend::{Removal, RenameMode};

use super::Names;
use crate::format::{Decode, Encode, Entries, Entry, FILE_BYTES_MAX, Inode, Key, Orphan, ROOT, hash_of_name};
use crate::names;
use crate::tree::Counters;

impl Names {
    fn damage(&self, ino: u64, change: impl Fn(&mut Inode)) {
        let changed = self.run(|view| {
            let mut inode = names::inode(view, ino)?;
            change(&mut inode);
            names::put_inode(view, ino, &inode);
            Ok(())
        });
        changed.expect("it exists");
    }

    fn lose_inode(&self, ino: u64) {
        let lost = self.run(|view| {
            view.delete(Key::Inode(ino));
            Ok(())
        });
        lost.expect("memory does not fail");
    }

    fn lookup(&self, name: &str) -> Result<u64, ErrorKind> {
        self.run(|view| names::lookup(view, ROOT, OsStr::new(name))).map(|(ino, _)| ino)
    }

    fn unlink(&self, name: &str, removal: Removal) -> Result<(), ErrorKind> {
        self.run(|view| names::remove(view, ROOT, OsStr::new(name), removal)).map(drop)
    }
}

#[test]
fn a_name_that_leads_nowhere_fails_alone() {
    let names = Names::new();
    let (lost, sound) = (names.file("lost"), names.file("sound"));
    names.lose_inode(lost);
    assert_eq!(names.lookup("lost"), Err(ErrorKind::Io));
    assert_eq!(names.unlink("lost", Removal::File), Err(ErrorKind::Io));
    assert_eq!(names.lookup("sound"), Ok(sound));
    let listed = names.run(|view| names::readdir_plus(view, ROOT, 0)).expect("it can be listed");
    let mut listed: Vec<_> = listed.into_iter().map(|(entry, inode)| (entry.name, inode.is_some())).collect();
    listed.sort();
    assert_eq!(listed, [("lost".into(), false), ("sound".into(), true)]);
}

#[test]
fn parents_that_form_a_cycle_end_a_rename() {
    for length in 1..9 {
        let names = Names::new();
        let moved = names.directory("moved");
        let cycle: Vec<u64> = (0..length).map(|n| names.directory(&n.to_string())).collect();
        for n in 0..length {
            names.damage(cycle[n], |inode| inode.parent = cycle[(n + 1) % length]);
        }
        let name = OsStr::new("moved");
        let rename = names.run(|view| names::rename(view, (ROOT, name), (cycle[0], name), RenameMode::Replace));
        assert_eq!(rename.map(drop), Err(ErrorKind::Io), "a cycle of {length}");
        assert_eq!(names.lookup("moved"), Ok(moved));
    }
}

#[test]
fn links_are_not_counted_below_zero() {
    let names = Names::new();
    let (file, _) = (names.file("file"), names.directory("dir"));
    names.damage(file, |inode| inode.nlink = 0);
    assert_eq!(names.unlink("file", Removal::File), Err(ErrorKind::Io));
    names.damage(ROOT, |inode| inode.nlink = 0);
    assert_eq!(names.unlink("dir", Removal::Directory), Err(ErrorKind::Io));
}

#[test]
fn a_directory_that_is_full_of_subdirectories_gets_no_other_in_any_way() {
    let names = Names::new();
    let (full, inner) = (names.directory("full"), names.directory("dir"));
    let file = names.make(full, "file", super::NewNode::File, 0o644).expect("it can be made").0;
    names.damage(full, |inode| inode.nlink = u32::MAX);
    let made = names.make(full, "new", super::NewNode::Directory, 0o755);
    assert_eq!(made.map(drop), Err(ErrorKind::TooManyLinks));
    for (to, mode) in [("dir", RenameMode::Replace), ("file", RenameMode::Exchange)] {
        let (from, to) = ((ROOT, OsStr::new("dir")), (full, OsStr::new(to)));
        let moved = names.run(|view| names::rename(view, from, to, mode));
        assert_eq!(moved.map(drop), Err(ErrorKind::TooManyLinks), "{mode:?}");
        let moved = names.run(|view| names::rename(view, to, from, RenameMode::Exchange));
        let expected = if mode == RenameMode::Exchange { ErrorKind::TooManyLinks } else { ErrorKind::NotFound };
        assert_eq!(moved.map(drop), Err(expected));
    }
    assert_eq!((names.lookup("dir"), names.inode(file).nlink), (Ok(inner), 1));
}

#[test]
fn the_record_of_an_orphan_does_not_free_a_file_with_names() {
    let names = Names::new();
    let file = names.file("file");
    let recorded = names.run(|view| {
        view.put(Key::Orphan(file), Orphan { never_named: false }.encode());
        Ok(())
    });
    recorded.expect("memory does not fail");
    assert_eq!(names.run(|view| names::free_step(view, file)), Ok(true));
    assert_eq!(names.lookup("file"), Ok(file));
    assert_eq!(names.run(|view| names::orphans(view, 0, 10)), Ok(vec![]));
}

#[test]
fn more_names_of_one_hash_than_cookies_are_refused() {
    let names = Names::new();
    let file = names.file("file");
    let damaged = names.run(|view| {
        let entry = |name: &str| Entry { name: name.into(), ino: file, type_bits: 0o100_000 };
        let entries = Entries(["file", "b", "c", "d", "e"].map(entry).to_vec());
        let hash = hash_of_name(view.salt(), OsStr::new("file"));
        view.put(Key::Entries { dir: ROOT, hash }, entries.encode());
        Ok(())
    });
    damaged.expect("memory does not fail");
    assert_eq!(names.lookup("file"), Err(ErrorKind::Io));
    assert_eq!(names.run(|view| names::readdir(view, ROOT, 0)).map(|found| found.len()), Err(ErrorKind::Io));
}

#[test]
fn numbers_that_nothing_can_have_are_refused() {
    let names = Names::new();
    let inode = names.inode(ROOT);
    for change in [
        |inode: &mut Inode| inode.size_bytes = FILE_BYTES_MAX + 1,
        |inode: &mut Inode| inode.allocated_bytes = u64::MAX,
        |inode: &mut Inode| inode.next_xattr = u64::MAX,
    ] {
        let mut damaged = inode.clone();
        change(&mut damaged);
        assert!(Inode::decode(&damaged.encode()).is_err(), "{damaged:?}");
    }
    for counters in [
        Counters { next_ino: ROOT, ..Counters::EMPTY },
        Counters { next_ino: u64::MAX, ..Counters::EMPTY },
        Counters { commit: u64::MAX, ..Counters::EMPTY },
    ] {
        assert!(Counters::decode(&counters.encode()).is_err(), "{counters:?}");
    }
    let counted = names.run(|view| {
        view.count(i64::MAX, 0);
        view.put(Key::Inode(0), Bytes::new());
        Ok(())
    });
    counted.expect("memory does not fail");
    names
        .run(|view| {
            view.count(i64::MAX, i64::MAX);
            view.put(Key::Inode(0), Bytes::new());
            Ok(())
        })
        .expect("memory does not fail");
    let statfs = names.run(|view| Ok(names::statfs(view))).expect("it is answered");
    assert!(statfs.files_free < statfs.files && statfs.blocks_free < statfs.blocks, "{statfs:?}");
}
