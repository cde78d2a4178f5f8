//! Which mount is on which place of which other: searched inside a read section, changed under the namespace's locks.
//!
//! # Invariants
//! T1. A bucket is never changed, but replaced by a copy. So who searches it finds each mount or does not, and what he
//!     searches lives as long as his section.
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

/// The mounts whose places have one hash.
type Bucket = Vec<Arc<Mount>>;

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

    fn bucket(&self, place: &Place<'_>) -> &RcuArc<Bucket> {
        &self.buckets[place.hash() as usize % BUCKETS]
    }

    /// The mount on `place`.
    pub(super) fn find<'s>(&self, section: &'s Guard<'_>, place: &Place<'_>) -> Option<&'s Arc<Mount>> {
        self.bucket(place).read(section).iter().find(|mount| place.is(mount.on(), &mount.at))
    }

    /// All mounts, with the namespace's locks held.
    pub(super) fn all(&self, domain: &Domain) -> Vec<Arc<Mount>> {
        let section = domain.read_lock();
        self.buckets.iter().flat_map(|bucket| bucket.read(&section)).cloned().collect()
    }

    /// Adds a mount, with the namespace's locks held.
    pub(super) fn insert(&self, domain: &Domain, mount: &Arc<Mount>) {
        self.change(domain, mount, |bucket| bucket.push(Arc::clone(mount)));
    }

    /// Takes a mount out, with the namespace's locks held.
    pub(super) fn remove(&self, domain: &Domain, mount: &Mount) {
        self.change(domain, mount, |bucket| bucket.retain(|other| other.id != mount.id));
    }

    fn change(&self, domain: &Domain, mount: &Mount, change: impl FnOnce(&mut Bucket)) {
        let bucket = self.bucket(&Place::of(mount.on(), &mount.at, &self.random));
        let mut copy = Bucket::clone(&bucket.load(domain));
        change(&mut copy);
        bucket.replace(domain, Arc::new(copy));
    }
}
