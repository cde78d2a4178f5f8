//! Steps with nothing between them, so that a kill hits the middle of one.
//!
//! Reports through a pipe take a hundred times as long as the step they report. Here the size field of the
//! inode is the acknowledgement: one store, made after the step returned.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use slackwater_arena::{
    Arena, ArenaConfig, FileHandleBytes, FrameWrite, InodeRecord, Pool, Survivors, VolumeId, VolumeRecord, VolumeSlot,
};

const WRITERS: u64 = 2;
/// Inode numbers from here on belong to inodes that are created and freed again.
const SHORT_LIVED: u64 = 1 << 32;

/// The child. Never returns.
pub(crate) fn work(path: &Path) {
    let arena = Arena::create(&ArenaConfig::file(path, 64 << 10).with_inodes(16).with_volumes(4)).expect("64 KiB");
    let id = VolumeId::new(b"tight").expect("five bytes");
    let volume = arena.alloc_volume(&VolumeRecord { id }).expect("four slots");
    std::thread::scope(|scope| {
        for ino in 0..WRITERS {
            let arena = Arc::clone(&arena);
            scope.spawn(move || rewrite(&arena, volume, ino));
        }
        std::io::stderr().write_all(b"!").expect("the parent waits for it");
    });
}

fn rewrite(arena: &Arena, volume: VolumeSlot, ino: u64) {
    let inode = arena.alloc_inode(&InodeRecord { ino, ..InodeRecord::new(volume) }).expect("16 slots");
    let mut old = None;
    for version in 1.. {
        let frame = arena.alloc(Pool::Normal).expect("two frames each of eight");
        stamp(&mut arena.write(frame), ino, version);
        // A page index that changes with the version: a torn record is a wrong one.
        arena.publish_dirty(frame, inode, version % 2, version);
        arena.set_size(inode, version);
        // The page before the last one, of the same index, is freed before this one becomes clean.
        if let Some(old) = old.replace(frame) {
            arena.mark_clean(old);
            arena.free(old);
        }
        if version % 8 == 0 {
            let number = SHORT_LIVED + version;
            let handle = FileHandleBytes::new(&number.to_le_bytes()).expect("eight bytes");
            let record = InodeRecord { ino: number, generation: !number, handle, ..InodeRecord::new(volume) };
            arena.free_inode(arena.alloc_inode(&record).expect("16 slots"));
            arena.free_volume(arena.alloc_volume(&VolumeRecord { id: handle }).expect("four slots"));
        }
    }
}

fn stamp(bytes: &mut FrameWrite<'_>, ino: u64, version: u64) {
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..16].copy_from_slice(&ino.to_le_bytes());
    bytes[4088..].copy_from_slice(&version.to_le_bytes());
}

/// Checks the state that the parent finds: the complete acknowledged version or the next one. Returns how many versions
/// were acknowledged.
pub(crate) fn check(arena: &Arena, survivors: &Survivors) -> u64 {
    let mut acknowledged = 0;
    for inode in survivors.volumes.iter().flat_map(|volume| &volume.inodes) {
        let ino = inode.record.ino;
        if ino >= SHORT_LIVED {
            assert_eq!((inode.record.generation, inode.record.handle.as_slice()), (!ino, &ino.to_le_bytes()[..]));
            assert!(inode.pages.is_empty());
            continue;
        }
        let last = inode.record.size_bytes;
        acknowledged += last;
        for &(index, frame) in &inode.pages {
            let version = arena.version(frame);
            let bytes = arena.read(frame);
            assert!((last.saturating_sub(1)..=last + 1).contains(&version), "{version} beside acknowledged {last}");
            assert_eq!(index, version % 2);
            let (stamp, whose) = (version.to_le_bytes(), ino.to_le_bytes());
            assert_eq!((&bytes[..8], &bytes[8..16], &bytes[4088..]), (&stamp[..], &whose[..], &stamp[..]));
        }
        let newest = inode.pages.iter().map(|(_, frame)| arena.version(*frame)).max();
        assert!(newest.unwrap_or(0) >= last, "version {last} of inode {ino} was acknowledged, {newest:?} is there");
    }
    acknowledged
}
