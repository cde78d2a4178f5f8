//! Open files and directories, by the handle numbers that the kernel uses.
//!
//! # Invariants
//! H1. A number is given to one handle at a time. Its low half is the index of an entry, whose low bits say in which
//!     shard the handle is. Its high half counts the uses of that entry, so that no two handles have one number.
//! H2. Each call that works on a handle has its own reference. A RELEASE during a running call only removes the handle
//!     from the table.
//! H3. If the mount is kept, a handle is in the mount's record for as long as it is in the table.
//!
//! # Lock order
//! A shard's lock is a leaf.

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use crate::lock_order::LEAF;
use crate::takeover::{HandleRecord, MountRecord};
use crate::volume::directories::OpenDirectory;
use crate::volume::open_files::OpenFile;

const SHARDS: usize = 16;

/// An open file or directory.
#[derive(Clone)]
pub(super) enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
    /// A handle of an earlier process, whose file or directory cannot be found any more.
    Lost,
}

/// An entry of the table, and the number of handles that it has had.
#[derive(Default)]
struct Slot {
    generation: u32,
    handle: Option<Handle>,
}

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

/// All open handles.
pub(super) struct Handles {
    shards: [RwLock<Shard>; SHARDS],
    next: AtomicUsize,
    /// H3.
    record: Option<Arc<MountRecord>>,
}

impl Handles {
    pub(super) fn new(record: Option<Arc<MountRecord>>) -> Self {
        let shards = std::array::from_fn(|_| RwLock::new(LEAF, Shard::default()));
        let handles = Self { shards, next: AtomicUsize::new(0), record };
        if let Some(record) = &handles.record {
            record.entries().for_each(|(index, generation, is_open)| handles.continue_from(index, generation, is_open));
        }
        handles
    }

    /// Lets an entry continue after the uses that an earlier process made of it. Called in the order of the indices.
    fn continue_from(&self, index: usize, generation: u32, is_open: bool) {
        let mut shard = self.shards[index % SHARDS].write();
        while shard.slots.len() < index / SHARDS {
            let unused = shard.slots.len();
            shard.slots.push(Slot::default());
            shard.free.push(unused);
        }
        shard.slots.push(Slot { generation, handle: None });
        if !is_open {
            shard.free.push(index / SHARDS);
        }
    }

    /// Adds a handle, made by `record`, and returns its number.
    pub(super) fn add(&self, handle: Handle, record: &HandleRecord) -> u64 {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[nth].write();
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.slots.push(Slot::default());
            shard.slots.len() - 1
        });
        let slot = &mut shard.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.handle = Some(handle);
        let number = u64::from(slot.generation) << 32 | (index * SHARDS + nth) as u64;
        if let Some(kept) = &self.record {
            kept.open_handle(number, record);
        }
        number
    }

    /// Adds a handle of an earlier process under its number.
    pub(super) fn add_again(&self, number: u64, handle: Handle) {
        let (index, shard) = split(number);
        let mut shard = self.shards[shard].write();
        if let Some(slot) = shard.slots.get_mut(index) {
            slot.handle = Some(handle);
        }
    }

    /// The open file with this number.
    pub(super) fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        match self.get(number)? {
            Handle::File(file) => Some(file),
            Handle::Directory(_) | Handle::Lost => None,
        }
    }

    /// The open directory with this number.
    pub(super) fn directory(&self, number: u64) -> Option<Arc<OpenDirectory>> {
        match self.get(number)? {
            Handle::File(_) | Handle::Lost => None,
            Handle::Directory(directory) => Some(directory),
        }
    }

    /// Removes a handle. It is closed when the last call that uses it returns.
    pub(super) fn remove(&self, number: u64) {
        let (index, shard) = split(number);
        let removed = {
            let mut shard = self.shards[shard].write();
            let slot = shard.slots.get_mut(index).filter(|slot| is_meant(slot, number));
            let removed = slot.and_then(|slot| slot.handle.take());
            if removed.is_some() {
                shard.free.push(index);
                if let Some(record) = &self.record {
                    record.close_handle(number);
                }
            }
            removed
        };
        drop(removed);
    }

    /// How many files are open.
    pub(super) fn open_files(&self) -> usize {
        let is_file = |slot: &&Slot| matches!(slot.handle, Some(Handle::File(_)));
        self.shards.iter().map(|shard| shard.read().slots.iter().filter(is_file).count()).sum()
    }

    /// Closes everything: the connection is gone.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let removed = std::mem::take(&mut *shard.write());
            drop(removed);
        }
    }

    fn get(&self, number: u64) -> Option<Handle> {
        let (index, shard) = split(number);
        let shard = self.shards[shard].read();
        shard.slots.get(index).filter(|slot| is_meant(slot, number))?.handle.clone()
    }
}

fn is_meant(slot: &Slot, number: u64) -> bool {
    u64::from(slot.generation) == number >> 32
}

/// Index within the shard, and the shard.
fn split(number: u64) -> (usize, usize) {
    let index = number as u32 as usize;
    (index / SHARDS, index % SHARDS)
}
