//! P9: what a killed process had acknowledged is there for the next process, bytes and names.

use slackwater::backend::{NewNode, Removal, RenameMode};
use slackwater::{ErrorKind, File};
use slackwater_object::layers::{Failure, Rule};
use slackwater_testkit::pattern;

use crate::rig::{PAGE, assert_same};
use crate::volume::{Volume, fast, slow};

#[test]
fn p09_written_bytes_and_changed_names_survive_a_kill() {
    for is_unreachable in [false, true] {
        let volume = Volume::new(slow());
        let wanted = |nth: u64| pattern(nth, 3000 + 40_000 * nth as usize);
        for nth in 0..8 {
            let file = volume.create(&format!("f{nth}"));
            file.write_at(0, &wanted(nth)).unwrap();
            if nth % 3 == 0 {
                file.fsync().unwrap();
            }
        }
        if is_unreachable {
            volume.fault.add(Rule::fail(Failure::Unreachable));
        }
        let root = volume.volume.root().unwrap();
        let dir = volume.volume.make(&root, "dir", NewNode::Directory, 0o750).unwrap();
        let inner = File::open(&volume.volume.make(&dir, "inner", NewNode::File, 0o640).unwrap()).unwrap();
        inner.write_at(PAGE as u64, b"inner").unwrap();
        volume.volume.rename(&root, "f1", &dir, "moved", RenameMode::Replace).unwrap();
        volume.volume.rename(&root, "f2", &root, "f3", RenameMode::Exchange).unwrap();
        volume.volume.remove(&root, "f4", Removal::File).unwrap();
        volume.open("f5").set_len(100).unwrap();
        drop((root, dir, inner));
        let volume = volume.kill();
        let found = |name: &str| volume.content(name);
        assert_same(&found("f0").unwrap(), &wanted(0), "f0");
        assert_same(&found("dir/moved").unwrap(), &wanted(1), "moved");
        assert_same(&found("f3").unwrap(), &wanted(2), "exchanged");
        assert_same(&found("f2").unwrap(), &wanted(3), "exchanged");
        assert!(found("f1").is_none() && found("f4").is_none());
        assert_same(&found("f5").unwrap(), &wanted(5)[..100], "cut");
        let mut inner = vec![0; PAGE];
        inner.extend_from_slice(b"inner");
        assert_same(&found("dir/inner").unwrap(), &inner, "inner");
        // All of it is durable after the next unmount.
        let bucket = volume.end();
        bucket.lose_memory();
        let volume = Volume::again(bucket);
        assert_same(&volume.content("dir/moved").unwrap(), &wanted(1), "moved");
        assert_same(&volume.content("dir/inner").unwrap(), &inner, "inner");
        assert_same(&volume.content("f6").unwrap(), &wanted(6), "f6");
    }
}

/// Data that was uploaded, and whose commit never came: the local log and the arena have it together.
#[test]
fn p09_uploaded_and_uncommitted_bytes_survive_a_kill() {
    let volume = Volume::new(fast());
    volume.volume.sync().unwrap();
    volume.fault.add(Rule::fail(Failure::Unreachable).under("meta/"));
    let wanted: Vec<_> = (0..4).map(|nth| pattern(nth, 500_000)).collect();
    for (nth, bytes) in wanted.iter().enumerate() {
        volume.create(&format!("f{nth}")).write_at(0, bytes).unwrap();
    }
    crate::rig::eventually("all units are uploaded", || volume.volume.status().dirty_bytes == 0);
    let volume = volume.kill();
    for (nth, bytes) in wanted.iter().enumerate() {
        assert_same(&volume.content(&format!("f{nth}")).unwrap(), bytes, "uploaded");
    }
}

/// Another machine has taken the volume over since: what the dead process left is older than the volume. It is not
/// mixed into it.
#[test]
fn p09_what_is_left_of_a_writer_that_was_replaced_is_not_mixed_into_the_volume() {
    let volume = Volume::new(slow());
    volume.create("both").write_at(0, b"first").unwrap();
    volume.volume.sync().unwrap();
    volume.create("late").write_at(0, b"never synced").unwrap();
    // The machine that takes over has neither the arena nor the log.
    let successor = volume.bucket.open_elsewhere();
    let error = volume.volume.sync().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stale, "the loser hears of it");
    successor.close().unwrap();
}
