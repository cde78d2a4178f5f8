//! The child: random steps until it is killed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use slackwater_arena::{
    Arena, ArenaConfig, FileHandleBytes, FrameId, InodeRecord, InodeSlot, Pool, Survivors, VolumeId, VolumeRecord,
    VolumeSlot,
};

use crate::step::{Random, Report, Step, WRITERS, Write4K, blank};

const INODES_PER_WRITER: usize = 6;
const PAGES_PER_INODE: u64 = 40;

struct Writer {
    arena: Arc<Arena>,
    volume: VolumeSlot,
    number: u64,
    random: Random,
    inodes: BTreeMap<u64, Inode>,
}

struct Inode {
    slot: InodeSlot,
    pages: BTreeMap<u64, Page>,
}

struct Page {
    frame: FrameId,
    version: u64,
    /// Frames of earlier versions, still dirty: as if under write-back.
    older: Vec<FrameId>,
}

/// Continues with the file, or creates it. Never returns.
pub(crate) fn work(path: &Path, seed: u64) {
    let (arena, survivors) = match path.exists() {
        true => Arena::open(path).expect("the parent could open it"),
        false => {
            let arena = Arena::create(&ArenaConfig::file(path, 6 << 20).with_inodes(64).with_volumes(2));
            (arena.expect("there is space"), Survivors::default())
        }
    };
    let volume = survivors.volumes.first().map(|volume| volume.slot).unwrap_or_else(|| {
        let id = VolumeId::new(b"volume").expect("six bytes");
        arena.alloc_volume(&VolumeRecord { id }).expect("two slots")
    });
    let mut inodes = [BTreeMap::new(), BTreeMap::new()];
    for survivor in survivors.volumes.into_iter().flat_map(|volume| volume.inodes) {
        let page = |(index, frame)| (index, Page { frame, version: arena.version(frame), older: Vec::new() });
        let pages = survivor.pages.into_iter().map(page).collect();
        let ino = survivor.record.ino;
        inodes[(ino % WRITERS) as usize].insert(ino, Inode { slot: survivor.slot, pages });
    }
    std::thread::scope(|scope| {
        for (number, inodes) in (0..).zip(inodes) {
            let random = Random::new(seed ^ (number + 1) << 60);
            let mut writer = Writer { arena: Arc::clone(&arena), volume, number, random, inodes };
            scope.spawn(move || {
                loop {
                    writer.step();
                }
            });
        }
    });
}

impl Writer {
    fn step(&mut self) {
        match self.random.below(100) {
            0..3 => self.new_inode(),
            3..5 => self.free_inode(),
            5..10 => self.set_attribute(),
            10..50 => self.write_frame(),
            50..70 => self.write_in_place(),
            70..80 => self.free_older(),
            _ => self.clean(),
        }
    }

    fn new_inode(&mut self) {
        if self.inodes.len() == INODES_PER_WRITER {
            return;
        }
        let ino = self.random.below(1 << 30) * WRITERS + self.number;
        let handle = FileHandleBytes::new(&ino.to_le_bytes()).expect("eight bytes");
        let record = InodeRecord { ino, generation: !ino, handle, ..InodeRecord::new(self.volume) };
        let slot = told(Step::NewInode { ino }, || self.arena.alloc_inode(&record).expect("64 slots"));
        self.inodes.insert(ino, Inode { slot, pages: BTreeMap::new() });
    }

    fn free_inode(&mut self) {
        let Some(ino) = self.any_inode() else { return };
        while let Some(index) = self.inodes[&ino].pages.keys().next().copied() {
            self.clean_page(ino, index);
        }
        let slot = self.inodes[&ino].slot;
        told(Step::FreeInode { ino }, || self.arena.free_inode(slot));
        self.inodes.remove(&ino);
    }

    fn set_attribute(&mut self) {
        let Some(ino) = self.any_inode() else { return };
        let slot = self.inodes[&ino].slot;
        let value = self.random.below(1 << 31) << 20 | self.random.below(1 << 20);
        if value.is_multiple_of(2) {
            told(Step::SetSize { ino, size_bytes: value }, || self.arena.set_size(slot, value));
        } else {
            told(Step::SetMtime { ino, mtime_ns: value }, || self.arena.set_mtime_ns(slot, value as i64));
        }
    }

    /// A page that is not dirty, or is under write-back: fills and publishes a new frame.
    fn write_frame(&mut self) {
        let Some(ino) = self.any_inode() else { return };
        let pool = if self.random.below(4) == 0 { Pool::Reserve } else { Pool::Normal };
        let Some(frame) = self.arena.alloc(pool) else { return self.clean() };
        let inode = &self.inodes[&ino];
        let index = self.random.below(PAGES_PER_INODE);
        let old = inode.pages.get(&index);
        let version = old.map_or(1, |old| old.version + 1);
        let write = random_write(&mut self.random, ino, index, version);
        told(Step::WriteFrame(write), || {
            let mut bytes = self.arena.try_write(frame).expect("no other thread has it");
            match old {
                Some(old) => bytes.copy_from_slice(&*self.arena.read(old.frame)),
                None => bytes.copy_from_slice(&blank(ino, index)),
            }
            write.apply(&mut bytes);
            drop(bytes);
            self.arena.publish_dirty(frame, inode.slot, index, version);
        });
        let pages = &mut self.inodes.get_mut(&ino).expect("it was found").pages;
        let page = pages.entry(index).or_insert(Page { frame, version, older: Vec::new() });
        if page.frame != frame {
            page.older.push(std::mem::replace(&mut page.frame, frame));
            page.version = version;
        }
    }

    fn write_in_place(&mut self) {
        let Some((ino, index)) = self.any_page() else { return };
        let Page { frame, version, .. } = self.inodes[&ino].pages[&index];
        let write = random_write(&mut self.random, ino, index, version);
        told(Step::WriteInPlace(write), || {
            write.apply(&mut self.arena.write(frame));
            self.arena.publish_dirty(frame, self.inodes[&ino].slot, index, version);
        });
    }

    /// The write-back of an earlier version ends, which is not visible after a crash.
    fn free_older(&mut self) {
        let Some((ino, index)) = self.any_page() else { return };
        let page = self.inodes.get_mut(&ino).and_then(|inode| inode.pages.get_mut(&index)).expect("it was found");
        page.older.drain(..).for_each(|frame| self.arena.free(frame));
    }

    fn clean(&mut self) {
        if let Some((ino, index)) = self.any_page() {
            self.clean_page(ino, index);
        }
    }

    fn clean_page(&mut self, ino: u64, index: u64) {
        let page = self.inodes.get_mut(&ino).and_then(|inode| inode.pages.remove(&index)).expect("it was found");
        told(Step::Clean { ino, index }, || {
            page.older.iter().for_each(|frame| self.arena.free(*frame));
            self.arena.mark_clean(page.frame);
        });
        self.arena.free(page.frame);
    }

    fn any_inode(&mut self) -> Option<u64> {
        let nth = self.random.below(self.inodes.len().max(1) as u64);
        self.inodes.keys().nth(nth as usize).copied()
    }

    fn any_page(&mut self) -> Option<(u64, u64)> {
        let ino = self.any_inode()?;
        let pages = &self.inodes[&ino].pages;
        let nth = self.random.below(pages.len().max(1) as u64);
        pages.keys().nth(nth as usize).map(|index| (ino, *index))
    }
}

fn random_write(random: &mut Random, ino: u64, index: u64, version: u64) -> Write4K {
    let from = random.below(4096 - 16);
    let to = from + 1 + random.below(4096 - 16 - from);
    Write4K { ino, index, version, from, to, byte: random.below(256) }
}

/// Runs a step between its two reports.
fn told<R>(step: Step, make: impl FnOnce() -> R) -> R {
    Report { step, is_done: false }.send();
    let result = make();
    Report { step, is_done: true }.send();
    result
}
