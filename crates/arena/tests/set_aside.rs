//! Damaged records among sound ones of several volumes, one of each kind: the sound ones are recovered, the damaged
//! ones are named, and their bytes stay where they are.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use slackwater_arena::{
    Arena, ArenaConfig, FRAME_BYTES, FrameId, InodeRecord, Pool, SetAsideFrame, SetAsidePage, Survivors, VolumeId,
    VolumeRecord,
};

const VOLUMES_AT: u64 = 4096;
const INODES_AT: u64 = 8192;
const FRAME_TABLE_AT: u64 = 12288;
/// The word of the header that says where the frame table is in an arena of any size.
const FRAME_TABLE_FIELD: u64 = 14 * 8;

const VOLUMES: u32 = 4;
const INODES_OF_EACH: u32 = 2;
const PAGES_OF_EACH: u32 = 3;

/// An arena with a file of pages in each of some inodes, in each of some volumes. Volume `v` has the inodes `2v` and
/// `2v + 1`. Inode `i` has the frames from `3i` on. Each frame is filled with its number.
fn filled() -> File {
    let config = ArenaConfig::memfd((64 * FRAME_BYTES) as u64).with_inodes(12).with_volumes(6);
    let arena = Arena::create(&config).expect("256 KiB");
    for volume in 0..VOLUMES {
        let id = VolumeId::new(format!("volume {volume}").as_bytes()).expect("short");
        let volume = arena.alloc_volume(&VolumeRecord { id }).expect("six slots");
        for _ in 0..INODES_OF_EACH {
            let inode = arena.alloc_inode(&InodeRecord::new(volume)).expect("twelve slots");
            for index in 0..PAGES_OF_EACH {
                let frame = arena.alloc(Pool::Normal).expect("frames");
                assert_eq!(frame.as_u32(), inode.as_u32() * PAGES_OF_EACH + index);
                arena.write(frame).fill(frame.as_u32() as u8);
                arena.publish_dirty(frame, inode, index.into(), 1);
            }
        }
    }
    File::from(arena.try_clone_fd().expect("a descriptor"))
}

fn flip(file: &File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).and_then(|()| file.write_all_at(&[byte[0] ^ 4], at)).expect("a memfd");
}

fn open(file: &File) -> (Arc<Arena>, Survivors) {
    Arena::open_fd(OwnedFd::from(file.try_clone().expect("a descriptor"))).expect("its header is valid")
}

/// The frames of each surviving inode, after a look at their bytes.
fn pages(arena: &Arena, survivors: &Survivors) -> BTreeMap<u32, Vec<u32>> {
    let inodes = survivors.volumes.iter().flat_map(|volume| &volume.inodes);
    let frames = |pages: &[(u64, FrameId)]| {
        let frames = pages.iter().map(|(_, frame)| frame.as_u32());
        frames.inspect(|frame| assert_eq!(arena.read(arena.frame(*frame).expect("a frame"))[7], *frame as u8)).collect()
    };
    inodes.map(|inode| (inode.slot.as_u32(), frames(&inode.pages))).collect()
}

fn all_but(inodes: &[u32], frame: u32) -> BTreeMap<u32, Vec<u32>> {
    let left = (0..VOLUMES * INODES_OF_EACH).filter(|inode| !inodes.contains(inode));
    let frames = |inode| (inode * PAGES_OF_EACH..(inode + 1) * PAGES_OF_EACH).filter(|own| *own != frame).collect();
    left.map(|inode| (inode, frames(inode))).collect()
}

/// The record of frame `3i + n` is that of page `n` of inode `i`.
fn frame_aside(arena: &Arena, number: u32, is_readable: bool) -> SetAsideFrame {
    let page = SetAsidePage { inode: number / PAGES_OF_EACH, index: u64::from(number % PAGES_OF_EACH), version: 1 };
    SetAsideFrame { frame: arena.frame(number).expect("a frame"), page: is_readable.then_some(page) }
}

#[test]
fn a_damaged_record_of_each_kind_leaves_the_others() {
    let file = filled();
    flip(&file, VOLUMES_AT + 192 + 20); // the name of volume 1, which has the inodes 2 and 3
    flip(&file, INODES_AT + 5 * 256 + 16); // the number of inode 5, of volume 2
    flip(&file, FRAME_TABLE_AT + 19 * 32 + 8); // the index of frame 19, of inode 6
    flip(&file, FRAME_TABLE_AT + 22 * 32); // the state of frame 22, of inode 7
    for _ in 0..2 {
        let (arena, survivors) = open(&file);
        let names = survivors.damages.iter().map(|damage| damage.mismatch.field.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["volume[1].check", "inode[5].check", "frame[19].check", "frame[22].state"]);
        let counts = survivors.damages.iter().map(|damage| (damage.inodes, damage.frames)).collect::<Vec<_>>();
        assert_eq!(counts, [(2, 6), (0, 3), (0, 0), (0, 0)]);
        let names = survivors.volumes.iter().map(|volume| volume.record.id.as_slice()).collect::<Vec<_>>();
        assert_eq!(names, [b"volume 0", b"volume 2", b"volume 3"]);
        assert_eq!(arena.volumes().count(), 3);
        let mut left = all_but(&[2, 3, 5], 19);
        left.get_mut(&7).expect("it is sound").retain(|frame| *frame != 22);
        assert_eq!(pages(&arena, &survivors), left);
        let aside = (6..12).chain(15..18).map(|frame| frame_aside(&arena, frame, true));
        let aside = aside.chain([frame_aside(&arena, 19, false), frame_aside(&arena, 22, true)]).collect::<Vec<_>>();
        assert_eq!(survivors.frames_set_aside, aside);
        assert!(aside.iter().all(|set| arena.read(set.frame)[..] == [set.frame.as_u32() as u8; FRAME_BYTES]));
        // Nothing of it is allocated.
        let mut free = Vec::new();
        arena.alloc_many(Pool::Reserve, usize::MAX, &mut free);
        assert!(free.len() == 64 - 24 && free.iter().all(|frame| frame.as_u32() >= 24));
        free.into_iter().for_each(|frame| arena.free(frame));
        let volumes = std::iter::from_fn(|| arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }));
        let volumes = volumes.collect::<Vec<_>>();
        assert_eq!(volumes.iter().map(|slot| slot.as_u32()).collect::<Vec<_>>(), [4, 5]);
        let inodes = std::iter::from_fn(|| arena.alloc_inode(&InodeRecord::new(volumes[0]))).collect::<Vec<_>>();
        assert_eq!(inodes.iter().map(|slot| slot.as_u32()).collect::<Vec<_>>(), [8, 9, 10, 11]);
        inodes.into_iter().for_each(|slot| arena.free_inode(slot));
        volumes.into_iter().for_each(|slot| arena.free_volume(slot));
    }
}

/// A new owner of the slot would get the data of the damaged records in the next process.
#[test]
fn a_free_slot_that_a_record_names_is_not_used() {
    let file = filled();
    file.write_all_at(&[0; 192], VOLUMES_AT + 192).expect("a memfd"); // volume 1, of the inodes 2 and 3
    file.write_all_at(&[0; 256], INODES_AT + 256).expect("a memfd"); // inode 1, of the frames 3, 4 and 5
    for _ in 0..2 {
        let (arena, survivors) = open(&file);
        let texts = survivors.damages.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts,
            [
                "inode[2].volume is 1, expected a volume slot in use",
                "inode[3].volume is 1, expected a volume slot in use",
                "frame[3].inode is 1, expected an inode slot in use",
                "frame[4].inode is 1, expected an inode slot in use",
                "frame[5].inode is 1, expected an inode slot in use",
            ]
        );
        assert_eq!(pages(&arena, &survivors), all_but(&[1, 2, 3], u32::MAX));
        let aside = (3..12).map(|frame| frame_aside(&arena, frame, true)).collect::<Vec<_>>();
        assert_eq!(survivors.frames_set_aside, aside);
        let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).expect("a slot");
        let inode = arena.alloc_inode(&InodeRecord::new(volume)).expect("a slot");
        assert_eq!((volume.as_u32(), inode.as_u32()), (4, 8));
        arena.free_inode(inode);
        arena.free_volume(volume);
    }
}

/// The next process must not take one of them for the page when the other's version is gone.
#[test]
fn two_frames_of_one_page_and_version_are_both_set_aside() {
    let file = filled();
    let (arena, survivors) = open(&file);
    let inode = survivors.volumes[0].inodes[0].slot;
    let frames = [0; 2].map(|_| arena.alloc(Pool::Normal).expect("frames"));
    for frame in frames {
        arena.publish_dirty(frame, inode, 0, 2);
    }
    drop(arena);
    let (arena, survivors) = open(&file);
    let texts = survivors.damages.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        texts,
        [
            "frame[24].version is 2, expected another than that of frame[25], which has the same page",
            "frame[25].version is 2, expected another than that of frame[24], which has the same page",
        ]
    );
    assert_eq!(pages(&arena, &survivors), all_but(&[], u32::MAX), "the version before is the newest sound one");
    let page = Some(SetAsidePage { inode: 0, index: 0, version: 2 });
    assert_eq!(survivors.frames_set_aside, frames.map(|frame| SetAsideFrame { frame, page }));
    // A newer write of the page, with the version that they have.
    let newer = arena.alloc(Pool::Normal).expect("frames");
    arena.publish_dirty(newer, inode, 0, 2);
    drop(arena);
    let (_arena, survivors) = open(&file);
    assert_eq!(survivors.volumes[0].inodes[0].pages[0], (0, newer));
    assert_eq!(survivors.frames_set_aside, frames.map(|frame| SetAsideFrame { frame, page: None }));
    assert!(survivors.damages.iter().all(|damage| damage.mismatch.field.ends_with(".check")));
}

/// The records of frames whose memory is allocated later are not cleared then.
#[test]
fn what_is_set_aside_stays_so_while_the_memory_is_allocated() {
    let (arena, _filler) = Arena::create_unfilled(&ArenaConfig::memfd(100 << 20)).expect("100 MiB");
    let volume = arena.alloc_volume(&VolumeRecord { id: VolumeId::EMPTY }).expect("a slot");
    // As many as it takes for all records to have memory.
    for _ in 0..arena.free_inodes() {
        assert!(arena.alloc_inode(&InodeRecord::new(volume)).is_some());
    }
    let file = File::from(arena.try_clone_fd().expect("a descriptor"));
    let mut table = [0; 8];
    file.read_exact_at(&mut table, FRAME_TABLE_FIELD).expect("a memfd");
    let (table, frame) = (u64::from_le_bytes(table), 20_000_u32);
    file.write_all_at(b"torn", table + u64::from(frame) * 32).expect("a memfd");
    let (next, survivors, filler) =
        Arena::open_inherited(arena.try_clone_lock().expect("a descriptor")).expect("it opens");
    assert_eq!(survivors.frames_set_aside.iter().map(|set| set.frame.as_u32()).collect::<Vec<_>>(), [frame]);
    filler.expect("frames are missing").run().expect("100 MiB");
    let mut free = Vec::new();
    next.alloc_many(Pool::Reserve, usize::MAX, &mut free);
    assert_eq!(free.len(), next.frames() as usize - 1);
    assert!(free.iter().all(|free| free.as_u32() != frame));
}
