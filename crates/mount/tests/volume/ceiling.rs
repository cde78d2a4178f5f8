//! P6 on a mount: the arena is the limit of memory for pages, whatever is read and written.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use slackwater::Tunables;

use crate::programs::in_own_process;
use crate::rig::Rig;

const MIB: u64 = 1 << 20;
const ARENA_BYTES: u64 = 32 * MIB;
/// Bytes read, and bytes that each writer writes.
const READ_BYTES: u64 = 4 * ARENA_BYTES;
const WRITTEN_BYTES: u64 = 2 * ARENA_BYTES;
const WRITERS: u64 = 2;
/// How much the process may grow besides the arena, which is allocated from the start: request memory of its threads,
/// and the test programs, which are threads of the same process.
const GROWTH_BYTES: u64 = 32 * MIB;

/// The memory of the process is measured, so the test has a process of its own.
#[test]
fn p06_on_a_mount_the_arena_is_the_ceiling_while_more_is_read_and_written() {
    in_own_process("ceiling::p06_on_a_mount_the_arena_is_the_ceiling_while_more_is_read_and_written", read_and_write);
}

fn read_and_write() {
    let rig = Rig::with(ARENA_BYTES, Tunables::default());
    write(&rig.stored("read"), 0, READ_BYTES);
    let memory = File::from(rig.engine.arena().try_clone_fd().unwrap());
    let (arena_before, before) = (memory.metadata().unwrap(), kib_of("VmRSS") << 10);
    let (stored, written): (Vec<PathBuf>, Vec<PathBuf>) =
        (1..=WRITERS).map(|nth| nth.to_string()).map(|name| (rig.stored(&name), rig.file(&name))).unzip();
    let programs: Vec<_> = (1..=WRITERS)
        .zip(&written)
        .map(|(seed, path)| {
            let path = path.clone();
            thread::spawn(move || write(&path, seed, WRITTEN_BYTES))
        })
        .collect();
    check(&rig.file("read"), 0, READ_BYTES);
    programs.into_iter().for_each(|program| program.join().unwrap());
    for (seed, path) in (1..=WRITERS).zip(&written) {
        check(path, seed, WRITTEN_BYTES);
    }
    let most = kib_of("VmHWM") << 10;
    println!("{} KiB at most, {} KiB before", most >> 10, before >> 10);
    assert!(most <= before + GROWTH_BYTES, "{most} bytes at most, {before} before");
    let arena_after = memory.metadata().unwrap();
    assert_eq!((arena_before.len(), arena_before.blocks()), (arena_after.len(), arena_after.blocks()));
    drop(memory);
    rig.umount().unwrap();
    for (seed, path) in (1..=WRITERS).zip(&stored) {
        check(path, seed, WRITTEN_BYTES);
    }
    assert_eq!(fs::metadata(rig.stored("read")).unwrap().len(), READ_BYTES);
}

/// A value from /proc/self/status, in KiB.
fn kib_of(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Fills the `nth` MiB of a file; no two are equal.
fn fill(piece: &mut [u8], seed: u64, nth: u64) {
    for (word, place) in (0_u64..).zip(piece.chunks_exact_mut(8)) {
        let number = (seed << 48 | nth << 24 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        place.copy_from_slice(&number.to_le_bytes());
    }
}

fn write(path: &Path, seed: u64, len_bytes: u64) {
    let (file, mut piece) = (File::create(path).unwrap(), vec![0; MIB as usize]);
    for nth in 0..len_bytes / MIB {
        fill(&mut piece, seed, nth);
        file.write_all_at(&piece, nth * MIB).unwrap();
    }
}

fn check(path: &Path, seed: u64, len_bytes: u64) {
    let file = File::open(path).unwrap();
    let (mut found, mut wanted) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    for nth in 0..len_bytes / MIB {
        file.read_exact_at(&mut found, nth * MIB).unwrap();
        fill(&mut wanted, seed, nth);
        assert!(found == wanted, "MiB {nth} of {}", path.display());
    }
    assert_eq!(file.metadata().unwrap().len(), len_bytes);
}
