//! Reading directories, with and without changes in between.

use std::collections::BTreeSet;
use std::ffi::OsString;

use slackwater::ErrorKind;
use slackwater::backend::{DirEntry, DirEntryPlus, NewNode, Node, NodeKind, Removal};

use super::volume::Volume;

fn make_files(volume: &Volume, dir: &Node, count: usize) -> BTreeSet<OsString> {
    let names: BTreeSet<_> = (0..count).map(|number| OsString::from(format!("file {number:05}"))).collect();
    for name in &names {
        volume.file(dir, name);
    }
    names
}

fn names_of(entries: Vec<DirEntry>) -> BTreeSet<OsString> {
    let count = entries.len();
    let names: BTreeSet<_> = entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), count, "no entry comes twice");
    names
}

pub(super) fn entries_have_the_number_and_kind_of_their_node(volume: &Volume) {
    let root = volume.root();
    assert_eq!(volume.entries(&root), []);
    let made = [
        ("file", NewNode::File, NodeKind::File),
        ("dir", NewNode::Directory, NodeKind::Directory),
        ("link", NewNode::Symlink("target".into()), NodeKind::Symlink),
    ];
    let mut expected = BTreeSet::new();
    for (name, what, kind) in made {
        let ino = volume.make(&root, name, what, 0o755).expect("it can be made").attr.id.ino;
        expected.insert((OsString::from(name), ino, format!("{kind:?}")));
    }
    let entries = volume.entries(&root);
    assert!(entries.iter().all(|entry| entry.cookie != 0));
    let kind = |entry: &DirEntry| format!("{:?}", entry.kind.expect("every tested backend knows it"));
    let seen: BTreeSet<_> = entries.iter().map(|entry| (entry.name.clone(), entry.ino, kind(entry))).collect();
    assert_eq!(seen, expected);
}

pub(super) fn ten_thousand_entries_are_listed_once_each(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 10_000);
    let entries = volume.entries(&dir);
    // Each cookie continues the listing, also when it is used a second time.
    for at in [0, 1, 5_000, 9_998] {
        let next = volume.readdir(&dir, entries[at].cookie).expect("the cookie is good");
        assert_eq!(next[0], entries[at + 1]);
    }
    assert_eq!(volume.readdir(&dir, entries[9_999].cookie), Ok(Vec::new()));
    assert_eq!(names_of(entries), names);
}

pub(super) fn removals_between_calls_skip_no_other_entry(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 3_000);
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = volume.readdir(&dir, cookie).expect("a directory can be read");
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        // As `rm -r` does, including the entry that the cookie belongs to.
        for entry in &entries {
            assert_eq!(volume.remove(&dir, &entry.name, Removal::File), Ok(()));
        }
        seen.extend(entries);
    }
    assert_eq!(names_of(seen), names);
    assert_eq!(volume.entries(&dir), []);
}

pub(super) fn additions_between_calls_skip_no_other_entry(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 2_000);
    let mut seen = Vec::new();
    let mut cookie = 0;
    for round in 0.. {
        let entries = volume.readdir(&dir, cookie).expect("a directory can be read");
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        seen.extend(entries);
        if round < 100 {
            volume.file(&dir, format!("new {round}"));
        }
    }
    assert!(names_of(seen).is_superset(&names));
}

pub(super) fn only_directories_have_entries(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    assert_eq!(volume.readdir(&file, 0).err(), Some(ErrorKind::NotDirectory));
    assert_eq!(volume.readdir_plus(&file, 0).err(), Some(ErrorKind::NotDirectory));
}

pub(super) fn readdir_plus_returns_the_node_of_each_entry(volume: &Volume) {
    let root = volume.root();
    assert!(volume.readdir_plus(&root, 0).expect("a directory can be read").is_empty());
    let fifo = NewNode::Special { type_bits: 0o010_000, rdev: 0 };
    for (name, what) in
        [("a", NewNode::File), ("b", NewNode::Directory), ("c", NewNode::Symlink("a".into())), ("d", fifo)]
    {
        volume.make(&root, name, what, 0o755).expect("it can be made");
    }
    let entries = volume.readdir_plus(&root, 0).expect("a directory can be read");
    assert_eq!(entries.len(), 4);
    for DirEntryPlus { entry, found } in entries {
        let (found, lookup) = (found.expect("it is there"), volume.lookup(&root, &entry.name).expect("it is there"));
        assert_eq!((found.attr, &found.handle), (lookup.attr, &lookup.handle));
        assert_eq!((found.attr.id.ino, Some(found.attr.kind)), (entry.ino, entry.kind));
        assert_eq!(volume.attr(&found.node), found.attr);
    }
}

pub(super) fn readdir_plus_and_readdir_share_cookies(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 700);
    let plain = volume.entries(&dir);
    let mut seen: Vec<DirEntry> = Vec::new();
    loop {
        let cookie = seen.last().map_or(0, |entry| entry.cookie);
        let more = volume.readdir_plus(&dir, cookie).expect("a directory can be read");
        if more.is_empty() {
            break;
        }
        // Each call continues where the other stopped, even if the name of the cookie was removed.
        let last = &more[more.len() - 1].entry;
        let next = volume.readdir(&dir, last.cookie).expect("the cookie is good");
        assert_eq!(next.first(), plain.get(seen.len() + more.len()));
        assert!(more.iter().all(|plus| plus.found.as_ref().is_some_and(|found| found.attr.id.ino == plus.entry.ino)));
        assert_eq!(volume.remove(&dir, &last.name, Removal::File), Ok(()));
        seen.extend(more.into_iter().map(|plus| plus.entry));
    }
    assert_eq!(seen, plain);
    assert_eq!(names_of(seen), names);
}
