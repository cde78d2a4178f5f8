//! Cost of a thousand idle volumes.
//!
//! Run by hand, on an idle machine: `cargo test --release -p slackwater-fuse --test volumes -- --ignored --nocapture`.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::programs::{in_own_process, until};
use crate::rig::{Rig, descriptors, threads};

const VOLUMES: usize = 1000;
/// How long the process is observed.
const IDLE: Duration = Duration::from_secs(10);

/// CPU time that this process has used, in ticks.
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Private memory of this process in bytes; shared memory is the arena.
fn memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Medians of the first and the last hundred times.
fn ends(times: &[Duration]) -> String {
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2]
    };
    format!("{:?} each at first, {:?} at the end", median(&times[..100]), median(&times[times.len() - 100..]))
}

#[test]
#[ignore = "long: a minute, and it measures"]
fn a_thousand_idle_volumes() {
    in_own_process("thousand::a_thousand_idle_volumes", || {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        let rig = Rig::new(256 << 20);
        let first = rig.mount();
        fs::write(first.file("a"), b"a").unwrap();
        first.umount().unwrap();
        // Memory that the second thousand adds to the first is never given back.
        (0..2).for_each(|_| round(&rig));
    });
}

fn round(rig: &Rig) {
    let before = (memory_bytes(), descriptors());
    let mut times = Vec::with_capacity(VOLUMES);
    let volumes: Vec<_> = (0..VOLUMES)
        .map(|_| {
            let start = Instant::now();
            let volume = rig.mount();
            times.push(start.elapsed());
            volume
        })
        .collect();
    println!("mounting: {}", ends(&times));
    for volume in &volumes {
        fs::write(volume.file("a"), b"a").unwrap();
        assert_eq!(fs::read(volume.file("a")).unwrap(), b"a");
    }
    println!("in use: {:?}", threads());
    let is_dirty = || volumes.iter().any(|volume| volume.mounted.super_block().status().bytes_left() > 0);
    until("all data is written back", || !is_dirty());
    let of_volumes = ["slackwater-dir", "sw-worker", "sw-fuse-notify", "sw-own-mount"];
    until("no volume has a thread", || {
        let threads = threads();
        threads.keys().all(|name| !of_volumes.contains(&name.as_str()))
    });
    println!("threads: {:?}", threads());
    let (memory, descriptors_more) = (memory_bytes().saturating_sub(before.0), descriptors() - before.1);
    println!("each has {} bytes of memory and {} descriptors", memory / VOLUMES as u64, descriptors_more / VOLUMES);
    let used = ticks();
    std::thread::sleep(IDLE);
    println!("CPU ticks in {IDLE:?}: {}", ticks() - used);
    times.clear();
    for volume in &volumes {
        let start = Instant::now();
        volume.umount().unwrap();
        times.push(start.elapsed());
    }
    println!("unmounting: {}", ends(&times));
    drop(volumes);
    println!("afterwards: {} bytes, {} descriptors", memory_bytes(), descriptors());
}
