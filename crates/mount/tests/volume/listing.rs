//! Directory listings.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};

use rustix::fs::{Dir, Mode, OFlags, open};

use crate::rig::Rig;

fn names(rig: &Rig, dir: &str) -> Vec<String> {
    fs::read_dir(rig.file(dir)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_large_directory_is_listed_with_each_entry_once() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    let wanted: BTreeSet<String> = (0..1500).map(|i| format!("a rather long name of a file, number {i:05}")).collect();
    wanted.iter().for_each(|name| fs::write(rig.file("d").join(name), b"").unwrap());
    let found = names(&rig, "d");
    assert_eq!(found.len(), wanted.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted);
    // With attributes, as for `ls -l`.
    for entry in fs::read_dir(rig.file("d")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().ino(), entry.ino());
    }
}

#[test]
fn dot_and_dot_dot_come_first_with_their_inode_numbers() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    fs::create_dir(rig.file("d/e")).unwrap();
    fs::write(rig.file("d/e/f"), b"").unwrap();
    let fd = open(rig.file("d/e"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let entries: Vec<_> = Dir::new(fd).unwrap().map(|entry| entry.unwrap()).collect();
    let found: Vec<_> = entries.iter().map(|entry| (entry.file_name().to_str().unwrap(), entry.ino())).collect();
    let ino = |path: &str| fs::metadata(rig.file(path)).unwrap().ino();
    assert_eq!(found, [(".", ino("d/e")), ("..", ino("d")), ("f", ino("d/e/f"))]);
}

#[test]
fn a_rewound_listing_sees_new_entries() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"").unwrap();
    let fd = open(&rig.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut dir = Dir::new(fd).unwrap();
    let list = |dir: &mut Dir| dir.by_ref().filter(|entry| entry.as_ref().unwrap().ino() != 0).count();
    assert_eq!(list(&mut dir), 3);
    fs::write(rig.file("b"), b"").unwrap();
    dir.rewind();
    assert_eq!(list(&mut dir), 4);
}

#[test]
fn removing_while_listing_misses_nothing() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    (0..800).for_each(|i| fs::write(rig.file(format!("d/{i:04}")), b"").unwrap());
    for entry in fs::read_dir(rig.file("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(names(&rig, "d"), Vec::<String>::new());
}
