//! Files that are unlinked while open, and what remains of them.

use slackwater_testkit::pattern;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::programs::until;
use crate::rig::{Rig, assert_same};

#[test]
fn an_unlinked_file_works_until_it_is_closed() {
    let rig = Rig::new();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("a")).unwrap();
    file.write_all_at(&pattern(1, 50_000), 0).unwrap();
    fs::remove_file(rig.file("a")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(&pattern(2, 50_000), 50_000).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"again", 0).unwrap();
    let mut found = vec![0; 100_000];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found[5..50_000], &pattern(1, 50_000)[5..]);
    assert_same(&found[50_000..], &pattern(2, 50_000));
    file.set_len(10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    drop(file);
    until("its dirty pages are gone", || rig.mounted.super_block().status().dirty_bytes == 0);
    rig.umount().unwrap();
    assert_eq!(fs::read_dir(&rig.source).unwrap().count(), 0);
}

#[test]
fn a_replaced_file_works_until_it_is_closed() {
    let rig = Rig::new();
    let old = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("a")).unwrap();
    old.write_all_at(b"old", 0).unwrap();
    fs::write(rig.file("b"), b"new").unwrap();
    fs::rename(rig.file("b"), rig.file("a")).unwrap();
    old.write_all_at(b"older", 0).unwrap();
    let mut found = [0; 5];
    old.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"older");
    assert_eq!(fs::read(rig.file("a")).unwrap(), b"new");
    drop(old);
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("a")).unwrap(), b"new");
}

#[test]
fn data_of_a_removed_file_never_reaches_the_source() {
    let rig = Rig::new();
    for round in 0..20 {
        fs::write(rig.file("a"), pattern(round, 1 << 20)).unwrap();
        fs::remove_file(rig.file("a")).unwrap();
    }
    until("all data is written back or dropped", || rig.mounted.super_block().status().bytes_left() == 0);
    until("the kernel has forgotten the nodes", || rig.mounted.super_block().status().inodes <= 1);
}
