//! Open files and directories, by the handle numbers that the kernel uses.
//!
//! # Invariants
//! H1. A number is given to one handle at a time. Its low bits say in which shard the handle is.
//! H2. Each call that works on a handle has its own reference. A RELEASE during a running call only removes the handle
//!     from the table.
//!
//! # Lock order
//! A shard's lock is a leaf.

use slackwater_sync::lock::RwLock;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use crate::volume::directories::OpenDirectory;
use crate::volume::lock_order::LEAF;
use crate::volume::open_files::OpenFile;

const SHARDS: usize = 16;

/// An open file or directory.
#[derive(Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Directory(Arc<OpenDirectory>),
}

#[derive(Default)]
struct Shard {
    slots: Vec<Option<Handle>>,
    free: Vec<usize>,
}

/// All open handles.
pub(super) struct Handles {
    shards: [RwLock<Shard>; SHARDS],
    next: AtomicUsize,
}

impl Handles {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::new(LEAF, Shard::default())), next: AtomicUsize::new(0) }
    }

    /// Adds an open file and returns its number.
    pub(super) fn add_file(&self, file: Arc<OpenFile>) -> u64 {
        self.add(Handle::File(file))
    }

    /// Adds an open directory and returns its number.
    pub(super) fn add_directory(&self, directory: Arc<OpenDirectory>) -> u64 {
        self.add(Handle::Directory(directory))
    }

    /// The open file with this number.
    pub(super) fn file(&self, number: u64) -> Option<Arc<OpenFile>> {
        match self.get(number)? {
            Handle::File(file) => Some(file),
            Handle::Directory(_) => None,
        }
    }

    /// The open directory with this number.
    pub(super) fn directory(&self, number: u64) -> Option<Arc<OpenDirectory>> {
        match self.get(number)? {
            Handle::File(_) => None,
            Handle::Directory(directory) => Some(directory),
        }
    }

    /// Removes a handle. It is closed when the last call that uses it returns.
    pub(super) fn remove(&self, number: u64) {
        let (number, shard) = split(number);
        let removed = {
            let mut shard = self.shards[shard].write();
            let removed = shard.slots.get_mut(number).and_then(Option::take);
            if removed.is_some() {
                shard.free.push(number);
            }
            removed
        };
        drop(removed);
    }

    /// How many files are open.
    pub(super) fn open_files(&self) -> usize {
        let is_file = |slot: &&Option<Handle>| matches!(slot, Some(Handle::File(_)));
        self.shards.iter().map(|shard| shard.read().slots.iter().filter(is_file).count()).sum()
    }

    /// Closes everything: the connection is gone.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let removed = std::mem::take(&mut *shard.write());
            drop(removed);
        }
    }

    fn add(&self, handle: Handle) -> u64 {
        let nth = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[nth].write();
        let slot = shard.free.pop().unwrap_or_else(|| {
            shard.slots.push(None);
            shard.slots.len() - 1
        });
        shard.slots[slot] = Some(handle);
        (slot * SHARDS + nth) as u64
    }

    fn get(&self, number: u64) -> Option<Handle> {
        let (number, shard) = split(number);
        self.shards[shard].read().slots.get(number)?.clone()
    }
}

fn split(number: u64) -> (usize, usize) {
    (number as usize / SHARDS, number as usize % SHARDS)
}
