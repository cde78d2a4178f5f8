//! Removing, replacing and reopening files whose pages are cached.

use slackwater::backend::{NewNode, Removal, RenameMode};
use slackwater::{ErrorKind, File, FileError};
use slackwater_testkit::pattern;

use crate::rig::{PAGE, Rig, assert_same, read_all};

/// The inode of a closed file stays cached for its pages, while its backend node is closed.
#[test]
fn a_closed_file_with_cached_pages_can_be_removed() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[1; 100_000]).unwrap();
    file.fsync().unwrap();
    drop(file);
    let root = rig.volume.root().unwrap();
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    drop(root);
    let arena = rig.engine.arena();
    assert_eq!(arena.free_frames(), u64::from(arena.frames()), "its pages went with it");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_closed_file_with_cached_pages_can_be_replaced() {
    let rig = Rig::by_hand();
    for name in ["old", "new"] {
        let file = rig.create(name);
        file.write_at(0, name.as_bytes()).unwrap();
        file.fsync().unwrap();
    }
    let root = rig.volume.root().unwrap();
    rig.volume.rename(&root, "new", &root, "old", RenameMode::Replace).unwrap();
    drop(root);
    assert_eq!(read_all(&rig.open("old")), b"new");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_replaced_file_takes_its_dirty_pages_with_it_when_it_is_closed() {
    let rig = Rig::by_hand();
    let (old, new) = (rig.create("old"), rig.create("new"));
    old.write_at(0, &[1; 50_000]).unwrap();
    new.write_at(0, &[2; 60_000]).unwrap();
    let root = rig.volume.root().unwrap();
    rig.volume.rename(&root, "new", &root, "old", RenameMode::Replace).unwrap();
    drop(root);
    assert_same(&read_all(&old), &[1; 50_000], "still open");
    drop(old);
    assert_eq!(rig.volume.bdi().pinned_frames(), 60_000_u64.div_ceil(PAGE as u64));
    drop(new);
    assert_same(&read_all(&rig.open("old")), &[2; 60_000], "replaced");
    rig.unmount_and_find_nothing_left();
}

#[test]
fn a_file_with_a_second_name_keeps_its_bytes_when_the_first_is_removed() {
    let rig = Rig::by_hand();
    let wanted = pattern(1, 50_000);
    let file = rig.create("a");
    file.write_at(0, &wanted).unwrap();
    let root = rig.volume.root().unwrap();
    rig.volume.link(file.inode(), &root, "b").unwrap();
    drop(file);
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    assert_same(&read_all(&rig.open("b")), &wanted, "b");
    drop(root);
    let mem = rig.disk.mem.clone();
    rig.unmount_and_find_nothing_left();
    assert_same(&mem.durable_file("b").unwrap(), &wanted, "b");
}

#[test]
fn a_name_that_is_made_again_is_another_file() {
    let rig = Rig::by_hand();
    for round in 0..20_u8 {
        let file = rig.create("a");
        assert_eq!(read_all(&file), b"");
        file.write_at(1000, &[round + 1; 5000]).unwrap();
        let mut wanted = vec![0; 1000];
        wanted.resize(6000, round + 1);
        if round % 2 == 0 {
            file.fsync().unwrap();
        }
        assert_same(&read_all(&file), &wanted, "a");
        drop(file);
        rig.unlink("a");
        assert_eq!(rig.volume.walk("a").unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(rig.volume.bdi().pinned_frames(), 0);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn data_calls_on_directories_and_links_are_refused() {
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    assert!(matches!(File::open(&root), Err(FileError::NotAFile(id)) if id == root.id()));
    let link = rig.volume.make(&root, "link", NewNode::Symlink("a".into()), 0o777).unwrap();
    assert!(matches!(File::open(&link), Err(FileError::NotAFile(_))));
    for (name, kind) in [("", ErrorKind::Invalid), ("..", ErrorKind::Invalid), ("a/b", ErrorKind::Invalid)] {
        assert_eq!(rig.volume.lookup(&root, name).unwrap_err().kind(), kind);
    }
    assert_eq!(rig.volume.lookup(&root, "x".repeat(256)).unwrap_err().kind(), ErrorKind::NameTooLong);
    assert_eq!(rig.volume.make(&root, "link", NewNode::File, 0o644).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(rig.volume.lookup(&link, "x").unwrap_err().kind(), ErrorKind::NotDirectory);
    drop((link, root));
    rig.unmount_and_find_nothing_left();
}
