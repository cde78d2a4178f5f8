//! The mounts by their places. Searched in a read section, and changed with the namespace's locks held.
//!
//! # Invariants
//! T1. A search of a chain finds each mount that is in it throughout the read section, whatever is added or removed
//!     meanwhile. A mount that it finds lives as long as the section.
//! T2. An entry has the hash of its mount's place. Names are compared, and mounts are accessed, only if the hash
//!     matches.
//!
//! # Kernel counterpart
//! `mount_hashtable`, `__lookup_mnt`.

use std::hash::RandomState;

use slackwater_sync::rcu::{Domain, Guard, RcuList};
use slackwater_sync::shim::Arc;

use crate::namespace::mount::Mount;
use crate::namespace::path::Place;

/// The number of hash chains: with ten thousand mounts, a chain has five.
const CHAINS: usize = 2048;

/// A mount with the full hash of its place (T2).
struct Entry {
    hash: u64,
    mount: Arc<Mount>,
}

/// See the [module documentation](self).
pub(super) struct MountTable {
    chains: Box<[RcuList<Entry>]>,
    pub(super) random: RandomState,
}

impl MountTable {
    pub(super) fn new(domain: &Domain) -> Self {
        Self { chains: (0..CHAINS).map(|_| RcuList::new(domain)).collect(), random: RandomState::new() }
    }

    fn chain(&self, hash: u64) -> &RcuList<Entry> {
        &self.chains[hash as usize % CHAINS]
    }

    /// The mount on `place`.
    pub(super) fn find<'s>(&'s self, section: &'s Guard<'_>, place: &Place<'_>) -> Option<&'s Arc<Mount>> {
        let hash = place.hash();
        let is_there = |mount: &Mount| place.is(mount.on(), &mount.at);
        let mut chain = self.chain(hash).iter(section);
        chain.find(|entry| entry.hash == hash && is_there(&entry.mount)).map(|entry| &entry.mount)
    }

    /// All mounts, with the namespace's locks held.
    pub(super) fn all(&self, domain: &Domain) -> Vec<Arc<Mount>> {
        let section = domain.read_lock();
        self.chains.iter().flat_map(|chain| chain.iter(&section)).map(|entry| Arc::clone(&entry.mount)).collect()
    }

    /// Adds a mount whose place has this `hash`, with the namespace's locks held.
    pub(super) fn insert(&self, hash: u64, mount: &Arc<Mount>) {
        self.chain(hash).push(Entry { hash, mount: Arc::clone(mount) });
    }

    /// Removes a mount, with the namespace's locks held.
    pub(super) fn remove(&self, domain: &Domain, mount: &Mount) {
        let hash = Place::of(mount.on(), &mount.at, &self.random).hash();
        let was_there = self.chain(hash).remove(domain, |entry| entry.hash == hash && entry.mount.id == mount.id);
        debug_assert!(was_there, "taken out twice");
    }
}
