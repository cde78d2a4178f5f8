//! A power cut: the mount process is killed, its arena is gone, and the disk of the source keeps what it has.
//!
//! Programs make files durable in every possible way. At a random moment everything ends, and the disk is checked for
//! all acknowledged data.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod disk;
mod model;
#[path = "../rig/mod.rs"]
mod rig;
mod sys;
mod writer;

use std::fs;
use std::thread;
use std::time::Duration;

use crate::disk::Disk;
use crate::rig::{Scratch, need_fuse};

/// Number of power cuts.
const CUTS_VARIABLE: &str = "SLACKWATER_POWER_CUTS";
const CUTS: u64 = 5;
/// The longest and the shortest time that the programs work.
const LIFE_MS: u64 = 900;
const LIFE_MS_MIN: u64 = 100;
const WRITERS: u64 = 2;

#[test]
fn p1_a_power_cut_loses_nothing_that_was_made_durable() {
    need_fuse();
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch);
    let mountpoint = scratch.dir("mount", 0o755);
    let cuts = std::env::var(CUTS_VARIABLE).ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS);
    let mut acknowledged = 0;
    for cut in 0..cuts {
        let source = disk.path.join(format!("source-{cut}"));
        fs::create_dir(&source).unwrap();
        for writer in 0..WRITERS {
            fs::create_dir(source.join(writer.to_string())).unwrap();
        }
        fs::File::open(&source).unwrap().sync_all().unwrap();
        let seed = (u64::from(std::process::id()) << 24 ^ cut).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut mount = scratch.mount(&source, &mountpoint, &["--cache", "32MiB", "--dirty-expire", "200ms"]);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let directory = mountpoint.join(writer.to_string());
                thread::spawn(move || writer::work(&directory, seed.rotate_left(writer as u32 * 8)))
            })
            .collect();
        thread::sleep(Duration::from_millis(LIFE_MS_MIN + seed % (LIFE_MS - LIFE_MS_MIN)));
        mount.kill();
        disk.cut_power();
        let models: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        fs::remove_file(scratch.arena("mount")).unwrap();
        drop(mount);
        for (writer, model) in models.iter().enumerate() {
            let wrong = model.check(&source.join(writer.to_string()));
            assert!(wrong.is_empty(), "cut {cut}, seed {seed:#x}, writer {writer}: {wrong:#?}");
            acknowledged += model.acknowledged;
        }
        fs::remove_dir_all(&source).unwrap();
    }
    println!("{cuts} cuts, {acknowledged} times something was made durable");
    assert!(acknowledged > cuts, "no operation completed");
}
