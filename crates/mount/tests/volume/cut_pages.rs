//! Pages of a shared mapping that the kernel clears in part or drops without a write: stores to them are kept.

use std::fs::{self, File};
use std::time::Duration;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use slackwater::Tunables;
use slackwater_mount::MountPoint;
use slackwater_testkit::Rule;

use crate::mapper::Mapper;
use crate::programs::LONG;
use crate::rig::{Rig, assert_same};

/// fallocate(2) clears a page that it covers in part in place, and the kernel keeps the page. Later stores to the
/// cleared part counted as older than the hole, and were lost.
#[test]
fn stores_to_the_cleared_part_of_a_page_are_kept() {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zeroes = FallocateFlags::ZERO_RANGE;
    for how in [hole, zeroes, zeroes | FallocateFlags::KEEP_SIZE] {
        for before in ["load", "store"] {
            let rig = Rig::new();
            fs::write(rig.file("a"), [b'X'; 12_288]).unwrap();
            // Opening a file for writing drops its pages from the kernel's cache.
            let file = File::options().write(true).open(rig.file("a")).unwrap();
            let mut mapper = Mapper::of(&rig.file("a"));
            for at in [3000, 5000, 9000] {
                mapper.run(&format!("{before} a {at} {}", if before == "load" { "5" } else { "older" }));
            }
            fallocate(&file, how, 2048, 8192).unwrap();
            assert_eq!(mapper.run("load a 3000 3"), "\0\0\0");
            let mut wanted = vec![b'X'; 12_288];
            wanted[2048..10_240].fill(0);
            for at in [3000, 5000, 9000] {
                mapper.run(&format!("store a {at} newer"));
                wanted[at..at + 5].copy_from_slice(b"newer");
            }
            mapper.run("msync a");
            assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
            assert_same(&fs::read(rig.file("a")).unwrap(), &wanted);
            mapper.end();
            drop(file);
            rig.umount().unwrap();
        }
    }
}

/// The kernel drops a page that copy_file_range(2) has copied to, with all stores to the rest of it. The volume copied
/// to a mapped file if no page of it was in the kernel's cache when the copy began.
#[test]
fn a_store_beside_bytes_that_are_being_copied_is_kept() {
    let rig = Rig::new();
    fs::write(rig.stored("from"), [b'c'; 4096]).unwrap();
    fs::write(rig.file("a"), [b'X'; 8192]).unwrap();
    let mut mapper = Mapper::of(&rig.file("a"));
    rig.faults.add(Rule::hold().on("read"));
    let (from, to) = (File::open(rig.file("from")).unwrap(), File::options().write(true).open(rig.file("a")).unwrap());
    let copy = move || copy_file_range(&from, Some(&mut 0), &to, Some(&mut 100), 200);
    let copy = std::thread::spawn(copy);
    assert_eq!(rig.faults.wait_held(1, LONG).len(), 1, "the copy reads");
    mapper.run("store a 3000 stored");
    rig.let_through();
    assert_eq!(copy.join().unwrap(), Ok(200));
    let mut wanted = vec![b'X'; 8192];
    wanted[100..300].fill(b'c');
    wanted[3000..3006].copy_from_slice(b"stored");
    assert_eq!(mapper.run("load a 3000 6"), "stored");
    mapper.run("msync a");
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    mapper.end();
    rig.umount().unwrap();
}

/// Operations of the random history; more with a number in `SLACKWATER_WALK`.
const OPERATIONS: usize = 4000;

#[test]
fn random_histories_of_a_mapped_file_at_two_mount_points_match_a_plain_model() {
    let operations = std::env::var("SLACKWATER_WALK").map_or(OPERATIONS, |count| count.parse().unwrap());
    for seed in [1, 42, 20_260_101] {
        // The volume asks the kernel for stores all the time.
        let often = Duration::from_millis(40);
        let tunables = Tunables { dirty_writeback: often, dirty_expire: often, ..Tunables::default() };
        let rig = Rig::with(32 << 20, tunables);
        let second = rig.source.parent().unwrap().join("second");
        fs::create_dir(&second).unwrap();
        rig.mounted.attach(&MountPoint::here(second.clone())).unwrap();
        let mut mapper = Mapper::new();
        let paths = [rig.file("a"), second.join("a")];
        mapper.run(&format!("walk {seed} {operations} {} {}", paths[0].display(), paths[1].display()));
        assert_same(&fs::read(rig.stored("a")).unwrap(), &fs::read(rig.file("a")).unwrap());
        mapper.end();
        slackwater_fuse::mount::unmount(&second, false).unwrap();
        fs::remove_dir(&second).unwrap();
        rig.umount().unwrap();
    }
}
