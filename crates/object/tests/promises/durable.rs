//! P1 and P3: what fsync, sync or an unmount has acknowledged is in the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::backend::{NewNode, RenameMode};
use slackwater::{ErrorKind, File, UmountError, UmountOptions};
use slackwater_object::layers::{Failure, Rule};
use slackwater_testkit::pattern;

use crate::rig::{PAGE, assert_same};
use crate::volume::{Volume, slow};

/// At this age the backend commits by itself.
const COMMIT_AGE: Duration = Duration::from_secs(5);

#[test]
fn p01_what_fsync_acknowledged_is_in_the_store_with_its_size() {
    let volume = Volume::new(slow());
    let mut wanted = pattern(1, 3 * PAGE + 17);
    let file = volume.create("small");
    file.write_at(0, &wanted).unwrap();
    file.fsync().unwrap();
    file.write_at(900_000, b"behind a hole").unwrap();
    wanted.resize(900_000, 0);
    wanted.extend_from_slice(b"behind a hole");
    file.fdatasync().unwrap();
    // Larger than a segment of the commit, and than one unit.
    let large = pattern(2, 3_000_001);
    let other = volume.create("large");
    other.write_at(0, &large).unwrap();
    other.fsync().unwrap();
    other.set_len(2_000_003).unwrap();
    other.fsync().unwrap();
    drop((file, other));
    let volume = volume.crash();
    assert_same(&volume.content("small").unwrap(), &wanted, "small");
    assert_same(&volume.content("large").unwrap(), &large[..2_000_003], "large");
}

#[test]
fn p01_an_fsync_of_a_new_file_makes_its_name_durable() {
    let volume = Volume::new(slow());
    let root = volume.volume.root().unwrap();
    let dir = volume.volume.make(&root, "dir", NewNode::Directory, 0o755).unwrap();
    let file = File::open(&volume.volume.make(&dir, "new", NewNode::File, 0o600).unwrap()).unwrap();
    file.write_at(0, b"new").unwrap();
    file.fsync().unwrap();
    drop((root, dir, file));
    assert_eq!(volume.crash().content("dir/new").unwrap(), b"new");
}

#[test]
fn p01_what_sync_acknowledged_is_in_the_store_with_all_names() {
    let volume = Volume::new(slow());
    for nth in 0..100_u64 {
        volume.create(&format!("f{nth}")).write_at(nth * 100, &pattern(nth, 5000)).unwrap();
    }
    volume.volume.sync().unwrap();
    let begun = Instant::now();
    volume.create("later").write_at(0, b"lost").unwrap();
    let volume = volume.crash();
    let is_young = begun.elapsed() < COMMIT_AGE;
    for nth in 0..100_u64 {
        let mut wanted = vec![0; nth as usize * 100];
        wanted.extend_from_slice(&pattern(nth, 5000));
        assert_same(&volume.content(&format!("f{nth}")).unwrap(), &wanted, "synced");
    }
    if is_young {
        assert_eq!(volume.content("later"), None, "neither synced nor old");
    }
}

/// The store has the state of one moment: a file that was replaced is the old one or the new one.
#[test]
fn p01_a_file_that_is_replaced_is_old_or_new_after_a_crash() {
    for syncs in [false, true] {
        let volume = Volume::new(slow());
        let (old, new) = (pattern(1, 50_000), pattern(2, 70_000));
        volume.create("file").write_at(0, &old).unwrap();
        volume.volume.sync().unwrap();
        let file = volume.create("file.new");
        file.write_at(0, &new).unwrap();
        if syncs {
            file.fsync().unwrap();
        }
        drop(file);
        let root = volume.volume.root().unwrap();
        volume.volume.rename(&root, "file.new", &root, "file", RenameMode::Replace).unwrap();
        drop(root);
        let volume = volume.crash();
        let found = volume.content("file").unwrap();
        assert!(found == old || found == new, "{} bytes", found.len());
    }
}

#[test]
fn p03_an_unmount_leaves_everything_in_the_store() {
    let wanted = pattern(3, 3_000_001);
    let volume = Volume::new(slow());
    volume.create("a").write_at(0, &wanted).unwrap();
    volume.create("empty").set_len(12_345).unwrap();
    let bucket = volume.end();
    bucket.lose_memory();
    let volume = Volume::again(bucket);
    assert_same(&volume.content("a").unwrap(), &wanted, "a");
    assert_same(&volume.content("empty").unwrap(), &[0; 12_345], "empty");
}

#[test]
fn p03_an_unmount_that_cannot_reach_the_store_changes_nothing() {
    let volume = Volume::new(slow());
    let wanted = pattern(4, 200_000);
    volume.create("a").write_at(0, &wanted).unwrap();
    volume.fault.add(Rule::fail(Failure::Unreachable));
    let short = UmountOptions { deadline: Some(Duration::from_millis(300)), ..UmountOptions::default() };
    let error = volume.volume.umount(short).unwrap_err();
    assert!(matches!(error, UmountError::Deadline { .. }), "{error:?}");
    assert_same(&volume.content("a").unwrap(), &wanted, "still readable");
    volume.open("a").write_at(0, &[9; 10]).unwrap();
    volume.fault.clear();
    let bucket = volume.end();
    bucket.lose_memory();
    let found = Volume::again(bucket).content("a").unwrap();
    assert_same(&found[..10], &[9; 10], "still writable");
    assert_same(&found[10..], &wanted[10..], "nothing was lost");
}

/// P4: another volume of the process, whose store hangs, delays no unmount.
#[test]
fn p04_an_unmount_does_not_wait_for_another_store() {
    let volume = Volume::new(slow());
    let (_bucket, fault, other) = volume.beside("other");
    crate::rig::create(&other, "stuck").write_at(0, &pattern(1, 500_000)).unwrap();
    fault.add(Rule::hang());
    let syncing = crate::rig::spawn("a sync that hangs", {
        let other: Arc<_> = other.clone();
        move || other.sync().map_err(|error| error.kind())
    });
    volume.create("a").write_at(0, &pattern(2, 500_000)).unwrap();
    let mine = volume.volume.clone();
    crate::rig::within("an unmount", move || mine.umount(UmountOptions::default())).unwrap();
    fault.clear();
    fault.release();
    let ended = syncing.wait();
    assert!(ended.is_ok() || ended == Err(ErrorKind::TimedOut) || ended == Err(ErrorKind::Io), "{ended:?}");
    other.umount(UmountOptions::default()).unwrap();
}
