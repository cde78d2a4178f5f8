//! Reading directories, while nothing changes and while much does.

use std::collections::BTreeSet;
use std::ffi::OsString;

use slackwater::ErrorKind;
use slackwater::backend::{DirEntry, NewNode, Node, NodeKind, Removal};

use crate::fixture::Volume;

crate::properties! {
    entries_say_what_they_lead_to,
    ten_thousand_entries_come_once_each,
    removed_entries_do_not_disturb_the_rest,
    new_entries_do_not_disturb_the_rest,
    only_directories_have_entries,
}

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

fn entries_say_what_they_lead_to(volume: &Volume) {
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

fn ten_thousand_entries_come_once_each(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 10_000);
    let entries = volume.entries(&dir);
    // Each cookie leads on, also when it is used a second time.
    for at in [0, 1, 5_000, 9_998] {
        let next = volume.readdir(&dir, entries[at].cookie).expect("the cookie is good");
        assert_eq!(next[0], entries[at + 1]);
    }
    assert_eq!(volume.readdir(&dir, entries[9_999].cookie), Ok(Vec::new()));
    assert_eq!(names_of(entries), names);
}

fn removed_entries_do_not_disturb_the_rest(volume: &Volume) {
    let dir = volume.directory(&volume.root(), "dir");
    let names = make_files(volume, &dir, 3_000);
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = volume.readdir(&dir, cookie).expect("a directory can be read");
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        // As `rm -r` does it, the entry of the cookie included.
        for entry in &entries {
            assert_eq!(volume.remove(&dir, &entry.name, Removal::File), Ok(()));
        }
        seen.extend(entries);
    }
    assert_eq!(names_of(seen), names);
    assert_eq!(volume.entries(&dir), []);
}

fn new_entries_do_not_disturb_the_rest(volume: &Volume) {
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

fn only_directories_have_entries(volume: &Volume) {
    let file = volume.file(&volume.root(), "file");
    assert_eq!(volume.readdir(&file, 0).err(), Some(ErrorKind::NotDirectory));
}
