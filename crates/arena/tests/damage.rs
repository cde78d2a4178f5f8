//! Opening a file with any bytes gives an arena, with the damaged records by name, or an error that names the field.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, memfd_create};
use slackwater_arena::{
    Arena, ArenaConfig, ArenaError, Damage, FRAME_BYTES, FileHandleBytes, InodeRecord, Pool, Survivors, VolumeId,
    VolumeRecord,
};

/// Where the tables of the small arena below begin. Each fits into a page.
const VOLUMES_AT: usize = 4096;
const INODES_AT: usize = 8192;
const FRAME_TABLE_AT: usize = 12288;
const FRAMES_AT: usize = 16384;
const FRAMES: usize = 16;

/// Two volumes, three inodes, five dirty pages in two versions, and slots that were used and freed.
fn valid() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let config = ArenaConfig::memfd((FRAMES * FRAME_BYTES) as u64).with_inodes(5).with_volumes(3);
        let arena = Arena::create(&config).expect("64 KiB");
        fill(&arena);
        let mut file = File::from(arena.try_clone_fd().expect("a descriptor"));
        drop(arena);
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a memfd can be read");
        assert_eq!(bytes.len(), FRAMES_AT + FRAMES * FRAME_BYTES);
        bytes
    })
}

fn fill(arena: &Arena) {
    let volumes = ["one", "two", "gone"].map(|name| {
        let id = VolumeId::new(name.as_bytes()).expect("short");
        arena.alloc_volume(&VolumeRecord { id }).expect("three slots")
    });
    let inodes = [0, 1, 1, 0].map(|volume| {
        let handle = FileHandleBytes::new(&[7; 20]).expect("short");
        let record = InodeRecord { ino: 5, handle, size_bytes: 1 << 40, ..InodeRecord::new(volumes[volume]) };
        arena.alloc_inode(&record).expect("five slots")
    });
    for (inode, index, version) in [(0, 3, 1), (0, 3, 2), (1, 0, 9), (1, u64::MAX, 1), (0, 2, u64::MAX)] {
        let frame = arena.alloc(Pool::Reserve).expect("16 frames");
        arena.write(frame).fill(version as u8);
        arena.publish_dirty(frame, inodes[inode], index, version);
    }
    for is_freed in [false, true] {
        let frame = arena.alloc(Pool::Reserve).expect("16 frames");
        arena.publish_dirty(frame, inodes[3], 0, 1);
        arena.mark_clean(frame);
        if is_freed {
            arena.free(frame);
        }
    }
    arena.free_inode(inodes[3]);
    arena.free_volume(volumes[2]);
}

fn open(bytes: &[u8]) -> Result<(Arc<Arena>, Survivors), ArenaError> {
    let mut file = File::from(memfd_create("damaged", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.write_all(bytes).expect("a memfd takes bytes");
    Arena::open_fd(OwnedFd::from(file))
}

/// The operations that an opened arena must support, whatever it contains: everything in it is freed, and all that is
/// free is used for other pages. Frames that are set aside are untouched by that, and the next process sets the same ones aside.
fn use_up(arena: Arc<Arena>, survivors: &Survivors) {
    let set_aside = |survivors: &Survivors| survivors.frames_set_aside.iter().map(|set| set.frame).collect::<Vec<_>>();
    let aside = set_aside(survivors);
    assert!(aside.is_sorted() && aside.len() as u64 <= arena.frames().into());
    assert_eq!(aside.is_empty(), survivors.damages.iter().all(|damage| !is_about_frames(damage)));
    let content = |arena: &Arena| aside.iter().map(|frame| arena.read(*frame).to_vec()).collect::<Vec<_>>();
    let before = content(&arena);
    for volume in &survivors.volumes {
        for inode in &volume.inodes {
            for (_, frame) in &inode.pages {
                assert!(arena.is_dirty(*frame) && arena.try_read(*frame).is_some());
                arena.free(*frame);
            }
            arena.free_inode(inode.slot);
        }
        arena.free_volume(volume.slot);
    }
    let mut frames = Vec::new();
    arena.alloc_many(Pool::Reserve, usize::MAX, &mut frames);
    frames.extend(&aside);
    frames.sort_unstable();
    frames.dedup();
    assert_eq!(frames.len(), arena.frames() as usize, "each is free or set aside");
    frames.retain(|frame| !aside.contains(frame));
    let mut inodes = Vec::new();
    while let Some(volume) = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }) {
        inodes.extend(std::iter::from_fn(|| arena.alloc_inode(&InodeRecord::new(volume))));
    }
    for (number, frame) in (0..).zip(frames.iter().filter(|_| !inodes.is_empty())) {
        arena.write(*frame).fill(3);
        arena.publish_dirty(*frame, inodes[number as usize % inodes.len()], number / 5, number % 7);
    }
    let fd = arena.try_clone_fd().expect("a descriptor");
    drop(arena);
    let (arena, next) = Arena::open_fd(fd).expect("its header is valid");
    assert_eq!((set_aside(&next), content(&arena)), (aside, before));
    let records = |survivors: &Survivors| {
        let field = |damage: &Damage| damage.mismatch.field.split('.').next().unwrap_or_default().to_owned();
        survivors.damages.iter().map(field).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(records(&next), records(survivors));
}

fn is_about_frames(damage: &Damage) -> bool {
    damage.frames > 0 || damage.mismatch.field.starts_with("frame")
}

/// The damages of a file, one per line.
fn message(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = valid().to_vec();
    change(&mut bytes);
    let (arena, survivors) = open(&bytes).expect("its header is valid");
    let text = survivors.damages.iter().map(|damage| format!("{damage}\n")).collect();
    use_up(arena, &survivors);
    text
}

#[test]
fn the_undamaged_file_gives_its_newest_pages() {
    let (arena, survivors) = open(valid()).expect("undamaged");
    assert_eq!((&survivors.damages, &survivors.frames_set_aside), (&Vec::new(), &Vec::new()));
    let names = survivors.volumes.iter().map(|volume| volume.record.id.as_slice()).collect::<Vec<_>>();
    assert_eq!(names, [b"one", b"two"]);
    let pages = |volume: usize, inode: usize| {
        let pages = &survivors.volumes[volume].inodes[inode].pages;
        pages.iter().map(|(index, frame)| (*index, arena.read(*frame)[0])).collect::<Vec<_>>()
    };
    assert_eq!(pages(0, 0), [(2, 255), (3, 2)]);
    assert_eq!(pages(1, 0), [(0, 9), (u64::MAX, 1)]);
    assert_eq!(pages(1, 1), []);
    assert_eq!(survivors.volumes[0].inodes[0].record.size_bytes, 1 << 40);
    use_up(arena, &survivors);
}

#[test]
fn opening_twice_gives_the_same() {
    let mut file = File::from(memfd_create("twice", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.write_all(valid()).expect("a memfd takes bytes");
    let again = file.try_clone().expect("a descriptor");
    let first = Arena::open_fd(file.into()).map(|(_, survivors)| survivors);
    let second = Arena::open_fd(again.into()).map(|(_, survivors)| survivors);
    assert_eq!(first.expect("undamaged"), second.expect("only its superseded frames were freed"));
}

#[test]
fn damage_is_named_with_what_was_found_and_expected() {
    let handle_len = |bytes: &mut Vec<u8>| bytes[INODES_AT + 256 + 32..][..2].copy_from_slice(&300_u16.to_le_bytes());
    assert_eq!(message(handle_len), "inode[1].handle_len is 300, expected at most 128\n");
    let id_len = |bytes: &mut Vec<u8>| bytes[VOLUMES_AT + 8] = 129;
    assert_eq!(message(id_len), "volume[0].id_len is 129, expected at most 128\n");
    let state = message(|bytes| bytes[FRAME_TABLE_AT] ^= 1);
    assert!(state.starts_with("frame[0].state is 0x"), "{state}");
    let index = message(|bytes| bytes[FRAME_TABLE_AT + 8] ^= 1);
    assert!(index.starts_with("frame[0].check is 0x"), "{index}");
    let inode = message(|bytes| bytes[INODES_AT..INODES_AT + 256].fill(0));
    let unused = |frame| format!("frame[{frame}].inode is 0, expected an inode slot in use\n");
    assert_eq!(inode, [0, 1, 4].map(unused).concat());
    let volume = message(|bytes| bytes[VOLUMES_AT + 192..VOLUMES_AT + 384].fill(0));
    let unused = |inode| format!("inode[{inode}].volume is 1, expected a volume slot in use\n");
    assert_eq!(volume, [1, 2].map(unused).concat());
}

#[test]
fn a_record_in_the_place_of_another_is_damage() {
    let moved = message(|bytes| bytes.copy_within(INODES_AT..INODES_AT + 256, INODES_AT + 4 * 256));
    assert!(moved.starts_with("inode[4].check is 0x"), "{moved}");
}

#[test]
fn foreign_newer_and_truncated_files_are_distinguished() {
    let kind = |bytes: &[u8]| match open(bytes) {
        Err(error @ ArenaError::Foreign(_)) => format!("foreign: {error}"),
        Err(error @ ArenaError::Version(_)) => format!("version: {error}"),
        Err(error @ ArenaError::Length(_)) => format!("length: {error}"),
        other => panic!("{other:?}"),
    };
    assert!(kind(&[0; 8192]).starts_with("foreign: not an arena of this machine: header.magic is 0x0"));
    assert!(kind(b"#!/bin/sh\n").starts_with("length: "));
    assert!(kind(&[]).contains("file length is 0, expected at least"));
    assert!(kind(&valid()[..FRAMES_AT]).contains("file length is 16384, expected 81920"));
    let longer = [valid(), &[0]].concat();
    assert!(kind(&longer).contains("file length is 81921, expected 81920"));
    let mut newer = valid().to_vec();
    newer[16] += 1;
    assert!(kind(&newer).contains(&format!("header.version is {}, expected {}", newer[16], newer[16] - 1)));
    let mut swapped = valid().to_vec();
    swapped[8..16].reverse();
    assert!(kind(&swapped).contains("header.byte_order is 0x102030405060708, expected 0x807060504030201"));
}

#[test]
fn a_refused_file_is_not_changed() {
    let mut bytes = valid().to_vec();
    bytes[24] ^= 1;
    let mut file = File::from(memfd_create("refused", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.write_all(&bytes).expect("a memfd takes bytes");
    let mut again = file.try_clone().expect("a descriptor");
    assert!(Arena::open_fd(file.into()).is_err());
    let mut after = Vec::new();
    again.rewind().and_then(|()| again.read_to_end(&mut after)).expect("a memfd can be read");
    assert!(after == bytes);
}

/// The words in which a flipped bit may go undetected: unused ones, and those that change while in use.
fn is_unguarded(at: usize) -> bool {
    let within = |table: usize, record: usize| ((at - table) / record, (at - table) % record);
    match at {
        0..136 | FRAMES_AT.. => at >= FRAMES_AT,
        136..VOLUMES_AT => true,
        VOLUMES_AT..INODES_AT => {
            let (slot, offset) = within(VOLUMES_AT, 192);
            slot >= 3 || (slot == 2 && offset >= 4) || (4..8).contains(&offset) || offset >= 152
        }
        INODES_AT..FRAME_TABLE_AT => {
            let (slot, offset) = within(INODES_AT, 256);
            slot >= 5 || (slot >= 3 && offset >= 4) || offset >= 176
        }
        FRAME_TABLE_AT.. => {
            let (frame, offset) = within(FRAME_TABLE_AT, 32);
            frame >= FRAMES || (offset >= 4 && valid()[at - offset] != b'd')
        }
    }
}

#[test]
fn every_flipped_bit_that_matters_is_found() {
    for at in 0..FRAMES_AT {
        let mut bytes = valid().to_vec();
        bytes[at] ^= 1 << (at % 8);
        match open(&bytes) {
            Ok((_, survivors)) => {
                let damages = survivors.damages;
                assert!(at >= 136 && damages.len() == usize::from(!is_unguarded(at)), "byte {at}: {damages:?}");
            }
            Err(error) => {
                let is_typed =
                    matches!(error, ArenaError::Foreign(_) | ArenaError::Version(_) | ArenaError::Damaged(_));
                assert!(at < 136 && (is_typed || matches!(error, ArenaError::Length(_))), "byte {at}: {error:?}");
            }
        }
    }
}

/// A second implementation of the check words: as a malicious or faulty program might write them.
mod seal {
    use super::{FRAME_TABLE_AT, FRAMES, INODES_AT, VOLUMES_AT};

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    fn half(bytes: &[u8], at: usize) -> u64 {
        u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
    }

    fn sum(kind: u64, index: usize, words: impl IntoIterator<Item = u64>) -> u64 {
        let add = |sum: u64, word: u64| (sum.rotate_left(29) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let sum = words.into_iter().fold(add(kind << 32 | index as u64, 0), add);
        let mixed = (sum ^ sum >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        mixed ^ mixed >> 32
    }

    /// Makes every check word valid.
    pub(super) fn all(bytes: &mut [u8]) {
        let old = bytes.to_vec();
        let mut set = |at: usize, sum: u64| bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        let words = |bytes: &[u8], from: usize, count: usize| -> Vec<u64> {
            (0..count).map(|nth| word(bytes, from + nth * 8)).collect()
        };
        set(128, sum(0, 0, words(&old, 0, 16)));
        for slot in 0..3 {
            let at = VOLUMES_AT + slot * 192;
            set(at + 144, sum(1, slot, words(&old, at + 8, 17)));
        }
        for slot in 0..5 {
            let at = INODES_AT + slot * 256;
            let fields = [half(&old, at + 4)].into_iter().chain(words(&old, at + 8, 20));
            set(at + 168, sum(2, slot, fields));
        }
        for frame in 0..FRAMES {
            let at = FRAME_TABLE_AT + frame * 32;
            let fields = [half(&old, at + 4)].into_iter().chain(words(&old, at + 8, 2));
            set(at + 24, sum(3, frame, fields));
        }
    }
}

#[test]
fn the_second_implementation_of_check_words_agrees() {
    let mut bytes = valid().to_vec();
    bytes[INODES_AT + 256 + 16] ^= 1; // its number
    assert_eq!(open(&bytes).expect("a valid header").1.damages.len(), 1);
    seal::all(&mut bytes);
    let (arena, survivors) = open(&bytes).expect("another valid file");
    assert_eq!(survivors.damages, []);
    use_up(arena, &survivors);
}

/// A value of a field: random, or an edge case.
fn value() -> impl Strategy<Value = u64> {
    let states = [*b"LIVE", *b"dirt", *b"CLEA"].map(u32::from_le_bytes);
    prop_oneof![
        any::<u64>(),
        0_u64..20,
        prop::sample::select(vec![127, 128, 129, 255, 4096, 16384, 81920, u64::MAX, 1 << 63, u64::from(u32::MAX)]),
        prop::sample::select(states.to_vec()).prop_map(u64::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_damage_is_survived(
        changes in prop::collection::vec((0_usize..FRAMES_AT, any::<u8>()), 0..40),
        copies in prop::collection::vec((0_usize..FRAMES_AT / 32, 0_usize..FRAMES_AT / 32), 0..4),
        len in prop_oneof![3 => Just(usize::MAX), 1 => 0_usize..100_000],
    ) {
        let mut bytes = valid().to_vec();
        for (from, to) in copies {
            bytes.copy_within(from * 32..from * 32 + 32, to * 32);
        }
        for (at, value) in changes {
            bytes[at] = value;
        }
        if len != usize::MAX {
            bytes.resize(len, 0);
        }
        match open(&bytes) {
            Ok((arena, survivors)) => use_up(arena, &survivors),
            Err(ArenaError::Os { call, source }) => prop_assert!(false, "{call}: {source}"),
            Err(error) => prop_assert!(error.to_string().contains(", expected "), "{error}"),
        }
    }

    /// Any value in any field of the header and tables, with valid check words.
    #[test]
    fn damage_with_right_check_words_is_survived(
        words in prop::collection::vec((prop_oneof![
            1 => 0_usize..17,
            4 => VOLUMES_AT / 8..(VOLUMES_AT + 3 * 192) / 8,
            4 => INODES_AT / 8..(INODES_AT + 5 * 256) / 8,
            8 => FRAME_TABLE_AT / 8..FRAME_TABLE_AT / 8 + FRAMES * 4,
        ], any::<bool>(), value()), 1..12),
    ) {
        let mut bytes = valid().to_vec();
        for (word, is_half, value) in words {
            let (at, len) = if is_half { (word * 8 + 4, 4) } else { (word * 8, 8) };
            bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        seal::all(&mut bytes);
        match open(&bytes) {
            Ok((arena, survivors)) => use_up(arena, &survivors),
            Err(ArenaError::Os { call, source }) => prop_assert!(false, "{call}: {source}"),
            Err(error) => prop_assert!(error.to_string().contains(", expected "), "{error}"),
        }
    }
}
