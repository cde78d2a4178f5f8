//! Committed values in memory.
//!
//! # Invariants
//! C1. A value here was that of its key in the store at some commit, and every later commit that changes the key is in
//!     one of the newer layers (see [`State`](super::state::State)) until it has reached this cache.
//! C2. All entries of a directory that is *whole* are here, so that a name that is not here does not exist.

use std::cell::Cell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};

use bytes::Bytes;

use crate::format::Key;

/// Memory that a cached key takes beside its value.
const SLOT_BYTES: usize = 160;
/// The most keys that one insertion spares because they were used: it holds the tree's mutex.
const SPARED_MAX: usize = 64;
/// The most directories that are known to be whole.
const WHOLE_MAX: usize = 16 << 10;

/// The cache, bounded by bytes.
pub(super) struct Cache {
    slots: BTreeMap<Key, Slot>,
    /// The order of eviction. A key that was used since it was last at the front goes to the back instead.
    order: VecDeque<Key>,
    bytes: usize,
    limit_bytes: usize,
    whole: HashSet<u64>,
    whole_order: VecDeque<u64>,
}

struct Slot {
    /// `None`: the store has no such key.
    value: Option<Bytes>,
    was_used: Cell<bool>,
}

impl Slot {
    fn bytes(&self) -> usize {
        SLOT_BYTES + self.value.as_ref().map_or(0, Bytes::len)
    }
}

impl Cache {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            limit_bytes,
            whole: HashSet::new(),
            whole_order: VecDeque::new(),
        }
    }

    /// The value of `key`, or that it has none; `None` if that is not known.
    pub(super) fn get(&self, key: &Key) -> Option<Option<Bytes>> {
        if let Some(slot) = self.slots.get(key) {
            slot.was_used.set(true);
            return Some(slot.value.clone());
        }
        match key {
            Key::Entries { dir, .. } if self.whole.contains(dir) => Some(None),
            Key::Entries { .. } | Key::Blob(_) | Key::Chunk { .. } | Key::Inode(_) => None,
            Key::Orphan(_) | Key::Segment(_) | Key::Volume(_) | Key::Xattr { .. } => None,
        }
    }

    /// Whether all keys of this range that exist are here.
    pub(super) fn covers(&self, first: &Key, last: &Key) -> bool {
        match (first, last) {
            (Key::Entries { dir, .. }, Key::Entries { dir: other, .. }) => dir == other && self.whole.contains(dir),
            _ => false,
        }
    }

    /// The keys of a range that are here and have values.
    pub(super) fn range(&self, first: Key, last: Key) -> impl Iterator<Item = (&Key, &Bytes)> {
        self.slots.range(first..=last).filter_map(|(key, slot)| {
            slot.was_used.set(true);
            Some((key, slot.value.as_ref()?))
        })
    }

    /// Says that all entries of `dir` are here or about to be inserted. The eviction of one ends that.
    pub(super) fn mark_whole(&mut self, dir: u64) {
        if self.whole.insert(dir) {
            self.whole_order.push_back(dir);
        }
        while self.whole_order.len() > WHOLE_MAX {
            if let Some(oldest) = self.whole_order.pop_front() {
                self.whole.remove(&oldest);
            }
        }
    }

    pub(super) fn insert(&mut self, key: Key, value: Option<Bytes>) {
        let slot = Slot { value, was_used: Cell::new(false) };
        self.bytes += slot.bytes();
        match self.slots.insert(key, slot) {
            Some(old) => self.bytes -= old.bytes(),
            None => self.order.push_back(key),
        }
        let mut spared = 0;
        while self.bytes > self.limit_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            let Entry::Occupied(slot) = self.slots.entry(oldest) else { continue };
            if slot.get().was_used.replace(false) && spared < SPARED_MAX {
                self.order.push_back(oldest);
                spared += 1;
                continue;
            }
            self.bytes -= slot.remove().bytes();
            if let Key::Entries { dir, .. } = oldest {
                self.whole.remove(&dir);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut cache = Cache::new(100 * (SLOT_BYTES + 100));
        cache.insert(Key::Inode(0), Some(Bytes::from_static(&[0; 100])));
        for ino in 1..1_000 {
            cache.insert(Key::Inode(ino), Some(Bytes::from_static(&[0; 100])));
            assert!(cache.get(&Key::Inode(0)).is_some());
            assert!(cache.bytes <= cache.limit_bytes);
        }
        assert_eq!((cache.slots.len(), cache.order.len()), (100, 100));
    }

    #[test]
    fn an_insertion_looks_at_few_keys_even_if_all_were_used() {
        const KEYS: u64 = 1_000;
        let mut cache = Cache::new(KEYS as usize * SLOT_BYTES);
        (0..KEYS).for_each(|ino| cache.insert(Key::Inode(ino), None));
        assert_eq!(cache.range(Key::Inode(0), Key::Inode(u64::MAX)).count(), 0, "none has a value");
        cache.insert(Key::Inode(KEYS), None);
        let still_used = cache.slots.values().filter(|slot| slot.was_used.get()).count();
        assert_eq!((cache.slots.len(), still_used), (KEYS as usize, KEYS as usize - SPARED_MAX - 1));
    }

    #[test]
    fn a_whole_directory_knows_what_it_lacks_until_an_entry_is_evicted() {
        let entry = |hash| Key::Entries { dir: 1, hash };
        let mut cache = Cache::new(10 * SLOT_BYTES);
        cache.insert(entry(4), Some(Bytes::new()));
        assert_eq!(cache.get(&entry(8)), None);
        cache.mark_whole(1);
        assert_eq!(cache.get(&entry(8)), Some(None));
        assert!(cache.covers(&entry(0), &entry(u64::MAX)));
        for ino in 0..20 {
            cache.insert(Key::Inode(ino), None);
        }
        assert_eq!(cache.get(&entry(4)), None);
        assert_eq!(cache.get(&entry(8)), None);
        assert!(!cache.covers(&entry(0), &entry(u64::MAX)));
    }
}
