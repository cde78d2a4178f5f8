//! An arena with a damaged record costs the data of that record alone, and not silently.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::bytes;
use crate::rig::arena::{damage_record, frame_of};
use crate::rig::{Scratch, need_fuse, wait_until};

#[test]
fn p09_a_damaged_record_is_named_and_the_other_data_is_written_back() {
    need_fuse();
    let scratch = Scratch::new();
    let (source, mountpoint) = scratch.pair("a");
    let arena = scratch.arena("a-mount");
    let kept = arena.with_extension("arena.damaged");
    let (good, bad) = (bytes(1, 100_000), bytes(2, 10_000));
    let mut mount = scratch.mount(&source, &mountpoint, &["--dirty-expire", "1h"]);
    fs::write(mountpoint.join("good"), &good).unwrap();
    fs::write(mountpoint.join("bad"), &bad).unwrap();
    mount.kill();
    assert!(fs::read(source.join("good")).unwrap_or_default().is_empty(), "it is only in the cache");
    let frame = damage_record(&arena, &bad[4096..8192]);

    let mount = scratch.mount(&source, &mountpoint, &[]);
    let record = format!("frame[{frame}].check is 0x");
    let words = [&record, "in total, 4.0 KiB cannot be written back", "rm ", "it is kept", kept.to_str().unwrap()];
    for words in words {
        wait_until(words, || mount.said(words) > 0);
    }
    assert!(fs::read(source.join("good")).unwrap() == good);
    let mut rest = bad.clone();
    rest[4096..8192].fill(0);
    assert!(fs::read(source.join("bad")).unwrap() == rest, "the other pages of the file are there");
    let left = fs::read(&kept).unwrap();
    assert!(frame_of(&left, frame) == &bad[4096..8192], "its bytes can be examined");
    assert_ne!(fs::metadata(&kept).unwrap().ino(), fs::metadata(&arena).unwrap().ino(), "the mount has a new arena");
    scratch.umount(&mountpoint);
    assert!(kept.exists() && !arena.exists());
}
