//! Shared mappings: stores are in the kernel's page cache until it writes them back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use slackwater::Tunables;
use slackwater_mount::UmountRequest;
use slackwater_testkit::{Rule, pattern};

use crate::mapper::Mapper;
use crate::programs::{LONG, spawn, until, wait};
use crate::rig::{Rig, assert_same, within};

/// A store to page 1.
const STORE: &str = "store a 5000 mmap!";

#[test]
fn msync_and_sync_write_back_stores_of_a_mapping() {
    for how in ["msync", "nothing"] {
        let rig = Rig::new();
        let mut wanted = pattern(1, 10_001);
        fs::write(rig.file("a"), &wanted).unwrap();
        wanted[5000..5005].copy_from_slice(b"mmap!");
        let mut mapper = Mapper::of(&rig.file("a"));
        mapper.run(STORE);
        if how == "msync" {
            mapper.run("msync a");
        }
        rig.mounted.sync().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
        assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
        mapper.end();
        rig.umount().unwrap();
    }
}

#[test]
fn stores_of_a_removed_mapping_are_kept() {
    let rig = Rig::new();
    let mut wanted = pattern(2, 10_001);
    fs::write(rig.file("a"), &wanted).unwrap();
    wanted[5000..5005].copy_from_slice(b"mmap!");
    let mut mapper = Mapper::of(&rig.file("a"));
    mapper.run(STORE);
    mapper.kill();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
}

/// The kernel keeps a store for 30 s unless it is flushed.
#[test]
fn p05_stores_are_flushed_at_the_age_limit_the_first_and_the_next() {
    let second = Duration::from_secs(1);
    let rig = Rig::with(32 << 20, Tunables { dirty_writeback: second, dirty_expire: second, ..Tunables::default() });
    let mut wanted = pattern(3, 200_000);
    fs::write(rig.file("a"), &wanted).unwrap();
    let mut mapper = Mapper::of(&rig.file("a"));
    for (at, what) in [(5000, "first"), (150_000, "other"), (5000, "again")] {
        let stored = Instant::now();
        mapper.run(&format!("store a {at} {what}"));
        wanted[at..at + what.len()].copy_from_slice(what.as_bytes());
        until("it is in the source", || fs::read(rig.stored("a")).unwrap() == wanted);
        assert!(stored.elapsed() < 20 * second, "the kernel wrote it back on its own");
    }
    mapper.end();
    rig.umount().unwrap();
}

#[test]
fn stores_to_a_file_are_in_the_source_when_it_has_replaced_another() {
    let rig = Rig::new();
    fs::write(rig.file("old"), pattern(4, 20_000)).unwrap();
    let mut wanted = pattern(5, 10_001);
    fs::write(rig.file("new"), &wanted).unwrap();
    let mut mapper = Mapper::of(&rig.file("new"));
    mapper.run(STORE);
    wanted[5000..5005].copy_from_slice(b"mmap!");
    fs::rename(rig.file("new"), rig.file("old")).unwrap();
    assert_same(&fs::read(rig.stored("old")).unwrap(), &wanted);
    mapper.end();
    rig.umount().unwrap();
}

/// Ways to set the size of a file.
#[derive(Copy, Clone)]
enum Sized {
    Zeroes,
    Truncate,
    Fallocate,
}

const ALL_SIZED: [Sized; 3] = [Sized::Zeroes, Sized::Truncate, Sized::Fallocate];

impl Sized {
    fn make(self, rig: &Rig, len: usize) {
        let file = File::create(rig.file("a")).unwrap();
        match self {
            Self::Zeroes => file.write_all_at(&vec![0; len], 0).unwrap(),
            Self::Truncate => file.set_len(len as u64).unwrap(),
            Self::Fallocate => fallocate(&file, FallocateFlags::empty(), 0, len as u64).unwrap(),
        }
    }
}

/// A page is read for the mapping and stored to while a `write` of the same page waits for a frame. The kernel writes
/// the page back after the `write`, and the page is older where the `write` was.
#[test]
fn a_write_beside_a_store_to_the_same_page_is_kept() {
    for (how, is_opened_first) in ALL_SIZED.into_iter().flat_map(|how| [(how, false), (how, true)]) {
        let rig = Rig::with(32 << 20, Tunables { dirty_percent: 100, ..Tunables::default() });
        how.make(&rig, 10_001);
        rig.mounted.sync().unwrap();
        let open = || File::options().write(true).open(rig.file("a")).unwrap();
        let early = is_opened_first.then(open);
        let mut mapper = Mapper::of(&rig.file("a"));
        let file = early.unwrap_or_else(open);
        rig.faults.add(Rule::hold().on("write"));
        let full = format!("of={}", rig.file("b").display());
        let mut filler = spawn("dd", &["if=/dev/zero", &full, "bs=1M", "count=32"]);
        // A write may also wait for a moment before, while pages of `a` can still be reclaimed.
        let mut looks = 0;
        until("the share is used up", || {
            looks = if rig.mounted.parked_writes() == 1 { looks + 1 } else { 0 };
            looks == 100
        });
        let writer = std::thread::spawn(move || file.write_all_at(b"written!", 5100).unwrap());
        until("the write waits", || rig.mounted.parked_writes() == 2);
        mapper.run(STORE);
        rig.let_through();
        writer.join().unwrap();
        assert!(wait(&mut filler).unwrap().success());
        let mut wanted = vec![0; 10_001];
        wanted[5000..5005].copy_from_slice(b"mmap!");
        wanted[5100..5108].copy_from_slice(b"written!");
        assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
        assert_eq!((mapper.run("load a 5000 5"), mapper.run("load a 5100 8")), ("mmap!".into(), "written!".into()));
        mapper.run("msync a");
        assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
        mapper.end();
        rig.umount().unwrap();
        assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    }
}

#[test]
fn the_later_of_a_store_and_a_write_to_the_same_bytes_is_kept() {
    let rig = Rig::new();
    Sized::Zeroes.make(&rig, 10_001);
    let mut mapper = Mapper::of(&rig.file("a"));
    let file = File::options().write(true).open(rig.file("a")).unwrap();
    for round in 0..3 {
        mapper.run("store a 5000 stored");
        file.write_all_at(b"WRI", 5000).unwrap();
        assert_eq!(mapper.run("load a 5000 6"), "WRIred");
        mapper.run("store a 5002 s");
        if round == 1 {
            mapper.run("msync a");
        }
        file.write_all_at(b"T", 5004).unwrap();
        assert_eq!(mapper.run("load a 5000 6"), "WRsrTd");
        assert_eq!(fs::read(rig.file("a")).unwrap()[5000..5006], *b"WRsrTd");
    }
    drop(file);
    mapper.end();
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("a")).unwrap()[5000..5006], *b"WRsrTd");
}

#[test]
fn concurrent_stores_and_writes_to_the_same_pages_lose_nothing() {
    let rig = Rig::new();
    let mut mapper = Mapper::new();
    for how in ALL_SIZED.into_iter().cycle().take(9) {
        how.make(&rig, 4 << 20);
        mapper.run(&format!("open a {}", rig.file("a").display()));
        mapper.run(&format!("open b {}", rig.file("a").display()));
        mapper.run("map a");
        mapper.run("map b");
        mapper.run("race a a");
        assert_eq!(mapper.run("lost a a"), "0");
        mapper.run("unmap a");
        mapper.run("race b a");
        assert_eq!(mapper.run("lost b a"), "0");
        ["unmap b", "close a", "close b"].iter().for_each(|what| drop(mapper.run(what)));
        fs::remove_file(rig.file("a")).unwrap();
    }
    mapper.end();
    rig.umount().unwrap();
}

#[test]
fn concurrent_stores_and_writes_of_two_programs_lose_nothing() {
    let rig = Rig::new();
    let mut mappers = [Mapper::new(), Mapper::new()];
    for how in ALL_SIZED.into_iter().cycle().take(9) {
        how.make(&rig, 4 << 20);
        let open = format!("open a {}", rig.file("a").display());
        mappers.iter_mut().for_each(|mapper| drop(mapper.run(&open)));
        mappers[0].run("map a");
        mappers[0].begin("stores a");
        mappers[1].begin("writes a");
        mappers.iter_mut().for_each(|mapper| drop(mapper.done()));
        assert_eq!(mappers[0].run("lost a a"), "0");
        mappers[1].run("map a");
        assert_eq!(mappers[1].run("lost a a"), "0");
        for mapper in &mut mappers {
            ["unmap a", "close a"].iter().for_each(|what| drop(mapper.run(what)));
        }
        fs::remove_file(rig.file("a")).unwrap();
    }
    mappers.into_iter().for_each(Mapper::end);
    rig.umount().unwrap();
}

/// A store whose page waits for a frame blocks its program in the kernel, and a killed program in its exit.
#[test]
fn a_killed_program_whose_pages_wait_exits_with_a_forced_unmount() {
    let rig = Rig::with(32 << 20, Tunables { dirty_percent: 100, ..Tunables::default() });
    File::create(rig.file("a")).unwrap().set_len(64 << 20).unwrap();
    let mut mapper = Mapper::of(&rig.file("a"));
    rig.faults.add(Rule::hold().on("write"));
    mapper.begin("fill a");
    mapper.begin("msync a");
    until("pages wait", || rig.mounted.parked_bytes() > 0);
    mapper.child.kill().unwrap();
    let mounted = rig.mounted.clone();
    let request = UmountRequest { deadline: Some(LONG), force: true, discard: true, ..UmountRequest::default() };
    within("the unmount", move || mounted.umount(request, &|_| {})).unwrap();
    assert!(wait(&mut mapper.child).is_some(), "the killed program hangs");
    // A page is answered before its payload is freed.
    until("no page waits any more", || rig.mounted.parked_bytes() == 0);
}
