//! Which mount is on which place of which other: searched inside a read section, changed under the namespace's locks.
//!
//! # Invariants
//! T1. A bucket is never changed, but replaced by a copy. So who searches it finds each mount or does not, and what he
//!     searches lives as long as his section.
//! T2. An entry has the hash of its mount's place: names are compared, and mounts looked at, only where that is the same.
//!
//! # Kernel counterpart
//! `mount_hashtable`, `__lookup_mnt`.

use std::hash::RandomState;

use slackwater_sync::rcu::{Domain, Guard, RcuArc};
use slackwater_sync::shim::Arc;

use crate::namespace::mount::Mount;
use crate::namespace::path::Place;

/// Chains; of ten thousand mounts each has ten.
const BUCKETS: usize = 1024;

/// The mounts of one chain, each with the whole hash of its place (T2).
type Bucket = Vec<(u64, Arc<Mount>)>;

/// See the [module documentation](self).
pub(super) struct MountTable {
    buckets: Box<[RcuArc<Bucket>]>,
    pub(super) random: RandomState,
}

impl MountTable {
    pub(super) fn new(domain: &Domain) -> Self {
        let empty = Arc::new(Bucket::new());
        let buckets = (0..BUCKETS).map(|_| RcuArc::new(domain, Arc::clone(&empty))).collect();
        Self { buckets, random: RandomState::new() }
    }

    fn bucket(&self, hash: u64) -> &RcuArc<Bucket> {
        &self.buckets[hash as usize % BUCKETS]
    }

    /// The mount on `place`.
    pub(super) fn find<'s>(&self, section: &'s Guard<'_>, place: &Place<'_>) -> Option<&'s Arc<Mount>> {
        let hash = place.hash();
        let is_there = |mount: &Mount| place.is(mount.on(), &mount.at);
        let mut bucket = self.bucket(hash).read(section).iter();
        bucket.find(|(other, mount)| *other == hash && is_there(mount)).map(|(_, mount)| mount)
    }

    /// All mounts, with the namespace's locks held.
    pub(super) fn all(&self, domain: &Domain) -> Vec<Arc<Mount>> {
        let section = domain.read_lock();
        self.buckets.iter().flat_map(|bucket| bucket.read(&section)).map(|(_, mount)| Arc::clone(mount)).collect()
    }

    /// Adds a mount, of whose place `hash` is, with the namespace's locks held.
    pub(super) fn insert(&self, domain: &Domain, hash: u64, mount: &Arc<Mount>) {
        let new = (hash, Arc::clone(mount));
        self.change(domain, hash, |bucket| bucket.iter().cloned().chain([new]).collect());
    }

    /// Takes a mount out, with the namespace's locks held.
    pub(super) fn remove(&self, domain: &Domain, mount: &Mount) {
        let hash = self.hash_of(mount);
        let stays = |(other, kept): &&(u64, Arc<Mount>)| *other != hash || kept.id != mount.id;
        self.change(domain, hash, |bucket| bucket.iter().filter(stays).cloned().collect());
    }

    fn hash_of(&self, mount: &Mount) -> u64 {
        Place::of(mount.on(), &mount.at, &self.random).hash()
    }

    /// Puts the copy that `change` makes in the place of a bucket (T1).
    fn change(&self, domain: &Domain, hash: u64, change: impl FnOnce(&Bucket) -> Bucket) {
        let bucket = self.bucket(hash);
        let changed = change(bucket.read(&domain.read_lock()));
        bucket.replace(domain, Arc::new(changed));
    }
}
