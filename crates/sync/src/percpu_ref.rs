//! A reference count that many CPUs change, until its owner kills it.
//!
//! While a ref lives, a get or a put changes a shard that belongs to the CPU, and no call checks whether the count is
//! zero: the *initial reference* keeps it above. [`PercpuRef::kill`] drops that one. From then on, gets and puts change
//! one shared count, and after a grace period the shards are added to it. The put that brings it to zero runs the
//! release callback.
//!
//! ```text
//!          count                                     shards
//! live     BIAS + 1, the initial reference           every get and put
//! killed   BIAS + 1, the fold's own; gets and puts   sections that found the ref live
//! folded   all references, of shards too             left alone
//! ```
//!
//! # Invariants
//! P1. The references held are the sum of all shards and of the count, less BIAS until the fold. One shard alone may be
//!     below zero: a reference may be put on another CPU than it was got on.
//! P2. A shard changes only inside a read section that found the ref live.
//! P3. The count is zero only after the fold, and then stays zero. BIAS keeps it away from zero until the shards are in
//!     it. One addition adds the shards and subtracts BIAS, after all shards have been read: any other order passes
//!     through a count without some of them. The fold's own reference is put after that.
//! P4. Only the put that brings the count to zero takes the callback.
//!
//! # Memory ordering
//! O1. The grace period guarantees that the fold sees every change of a shard, and everything done under references put
//!     that way: sections that found the ref live have ended, and happen before the fold. The mark of death
//!     (`is_dying`) needs no order of its own, since the grace period begins after it.
//! O2. [`Site::PercpuRefPutRelease`] with [`Site::PercpuRefPutAcquire`]: everything done under any reference happens
//!     before the callback. The fold puts its own reference after the shards, so it passes on the order that O1 gives
//!     it. Without either, the callback may free the object while late writes of a user are still in flight.
//!
//! # Memory
//! A shard is one cache line: 64 bytes for each CPU that this process may use. About 230 bytes are added for the rest
//! and for allocator overhead; 360 were measured with two CPUs. A shard has no second line against prefetchers that
//! fetch lines in pairs: there is a ref for each cgroup on each volume, and two CPUs seldom use the same one all the
//! time.
//!
//! # Kernel counterpart
//! `percpu_ref`. Differs: a ref does not return from the shared count to shards; preemption cannot be
//! disabled, so the CPU number only chooses the shard; a second kill returns false instead of warning.

use crate::rcu::{Domain, Guard};
use crate::shim::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::shim::{Arc, Site, cpu_hint, nr_cpus, raw};

/// The excess of the count until the shards have been added to it.
const BIAS: u64 = 1 << 63;

/// The callback that runs when the last reference is put.
type Release = Box<dyn FnOnce() + Send>;

/// Changes made on one CPU, modulo 2^64.
#[repr(align(64))]
struct Shard(AtomicU64);

/// A sharded reference count; see the module documentation.
///
/// A ref that is dropped without having been killed, or while references are left, drops its callback without running
/// it. A callback that owns the object containing its ref therefore keeps that object alive until the ref is killed.
///
/// # Blocking
/// No method blocks. A method may run the callback, which must not block either.
///
/// # Panics
/// As [`Domain::read_lock`] does. Where `debug_assertions` are on, a count that has become shared also detects a get
/// while no reference exists, and a put without a get.
pub struct PercpuRef {
    /// Shared with the fold, which may run after the ref was dropped.
    core: Arc<Core>,
}

struct Core {
    domain: Arc<Domain>,
    shards: Box<[Shard]>,
    count: AtomicU64,
    is_dying: AtomicBool,
    /// None once taken (P4).
    release: raw::Mutex<Option<Release>>,
}

impl PercpuRef {
    /// A live ref with its initial reference. It uses the sections and grace periods of `domain`.
    ///
    /// `release` runs once, when the ref has been killed and the last reference is put: on the thread that puts it or on
    /// the domain's worker, inside a read section. It must not sleep nor panic, nor may dropping what it owns.
    pub fn new(domain: Arc<Domain>, release: impl FnOnce() + Send + 'static) -> Self {
        let core = Core {
            domain,
            shards: (0..nr_cpus()).map(|_| Shard(AtomicU64::new(0))).collect(),
            count: AtomicU64::new(BIAS + 1),
            is_dying: AtomicBool::new(false),
            release: raw::Mutex::new(Some(Box::new(release))),
        };
        Self { core: Arc::new(core) }
    }

    /// Takes a reference. The caller knows that there is one already, which is kept during the call.
    #[inline]
    pub fn get(&self) {
        let section = self.core.domain.read_lock();
        if let Some(shard) = self.core.shard(&section) {
            shard.fetch_add(1, Ordering::Relaxed);
        } else {
            let old = self.core.count.fetch_add(1, Ordering::Relaxed);
            debug_assert!(old != 0, "get of a ref that is released");
        }
    }

    /// Takes a reference unless the last one has been put. Succeeds on a killed ref while there are references left.
    #[inline]
    pub fn tryget(&self) -> bool {
        let section = self.core.domain.read_lock();
        let Some(shard) = self.core.shard(&section) else {
            return self.core.tryget_shared();
        };
        shard.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes a reference unless the ref has been killed.
    #[inline]
    pub fn tryget_live(&self) -> bool {
        let section = self.core.domain.read_lock();
        let shard = self.core.shard(&section);
        shard.inspect(|shard| _ = shard.fetch_add(1, Ordering::Relaxed)).is_some()
    }

    /// Puts a reference. If it was the last one, the callback runs before this returns.
    #[inline]
    pub fn put(&self) {
        self.put_many(1);
    }

    /// Puts `n` references at once. If the last was among them, the callback runs before this returns.
    #[inline]
    pub fn put_many(&self, n: u64) {
        self.core.put_many(n);
    }

    /// Drops the initial reference. Returns false, and does nothing, if it was dropped before.
    ///
    /// Usable under any lock and inside sections, though a domain's first callback starts its worker. `release` runs
    /// after the following grace period at the earliest.
    pub fn kill(&self) -> bool {
        let is_first = !self.core.is_dying.swap(true, Ordering::Relaxed);
        if is_first {
            // P3. This is the fold's reference.
            self.core.count.fetch_add(1, Ordering::Relaxed);
            let core = Arc::clone(&self.core);
            self.core.domain.call(move || core.fold());
            self.put();
        }
        is_first
    }

    /// Whether the ref has been killed.
    #[inline]
    pub fn is_dying(&self) -> bool {
        self.core.is_dying.load(Ordering::Relaxed)
    }

    /// Whether the last reference has been put. The callback may still be running: this orders nothing.
    #[inline]
    pub fn is_zero(&self) -> bool {
        self.core.count.load(Ordering::Relaxed) == 0
    }
}

impl Core {
    /// The shard to change in this section; none once the ref has been killed (P2).
    #[inline]
    fn shard<'s>(&'s self, _section: &'s Guard<'_>) -> Option<&'s AtomicU64> {
        let is_live = !self.is_dying.load(Ordering::Relaxed); // O1
        is_live.then(|| &self.shards[cpu_hint() % self.shards.len()].0)
    }

    fn tryget_shared(&self) -> bool {
        let one_more = |count: u64| (count != 0).then(|| count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    #[inline]
    fn put_many(&self, n: u64) {
        let section = self.domain.read_lock();
        if let Some(shard) = self.shard(&section) {
            shard.fetch_sub(n, Ordering::Relaxed);
        } else {
            self.put_shared(n);
        }
    }

    fn put_shared(&self, n: u64) {
        // O2.
        let old = self.count.fetch_sub(n, Site::PercpuRefPutRelease.order(Ordering::Release));
        debug_assert!(old >= n, "{n} puts of a ref with {old} references");
        if old == n {
            // O2. Reads the zero just written: P3.
            self.count.load(Site::PercpuRefPutAcquire.order(Ordering::Acquire));
            let release = self.release.lock().take();
            if let Some(release) = release {
                release();
            }
        }
    }

    /// Moves what the shards hold into the count. Runs after the grace period that follows the kill.
    fn fold(&self) {
        // P3: all shards first, then one addition.
        let held = self.shards.iter().fold(0_u64, |sum, shard| sum.wrapping_add(shard.0.load(Ordering::Relaxed)));
        self.count.fetch_add(held.wrapping_sub(BIAS), Ordering::Relaxed);
        self.put_many(1);
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rcu::Options;
    use crate::shim::atomic::AtomicUsize;
    use crate::shim::thread;

    /// A ref, its domain, and how often its callback has run.
    fn counted() -> (Arc<PercpuRef>, Arc<Domain>, Arc<AtomicUsize>) {
        let domain = Arc::new(Domain::with(Options { coalesce: Duration::ZERO, ..Options::default() }));
        let releases = Arc::new(AtomicUsize::new(0));
        let count = PercpuRef::new(Arc::clone(&domain), {
            let releases = Arc::clone(&releases);
            move || _ = releases.fetch_add(1, Ordering::Relaxed)
        });
        (Arc::new(count), domain, releases)
    }

    #[test]
    fn a_shard_is_one_cache_line() {
        assert_eq!((size_of::<PercpuRef>(), size_of::<Shard>()), (8, 64));
    }

    #[test]
    fn a_live_ref_is_never_released() {
        let (count, domain, releases) = counted();
        assert!(count.tryget() && count.tryget_live());
        count.put_many(2);
        domain.barrier();
        assert!(!count.is_dying() && !count.is_zero());
        drop(count);
        domain.barrier();
        assert_eq!(releases.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_kill_without_references_releases_once() {
        let (count, domain, releases) = counted();
        assert!(count.kill());
        assert!(!count.kill(), "killed before");
        domain.barrier();
        assert!(count.is_dying() && count.is_zero());
        assert_eq!(releases.load(Ordering::Relaxed), 1);
        assert!(!count.tryget() && !count.tryget_live());
    }

    #[test]
    fn a_killed_ref_can_be_taken_until_its_last_put() {
        let (count, domain, releases) = counted();
        count.get();
        count.kill();
        for is_folded in [false, true] {
            if is_folded {
                domain.barrier();
            }
            assert!(!count.tryget_live());
            assert!(count.tryget());
            count.get();
            count.put_many(2);
            assert!(!count.is_zero());
        }
        assert_eq!(releases.load(Ordering::Relaxed), 0);
        count.put();
        assert_eq!(releases.load(Ordering::Relaxed), 1, "the last put runs the callback");
        assert!(count.is_zero() && !count.tryget());
    }

    #[test]
    fn kill_does_not_wait_for_sections() {
        let (count, domain, releases) = counted();
        let section = domain.read_lock();
        assert!(count.kill());
        assert!(count.tryget(), "the fold has not run yet");
        count.put();
        assert!(!count.is_zero());
        drop(section);
        domain.barrier();
        assert_eq!(releases.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_fold_outlives_the_ref() {
        let (count, domain, releases) = counted();
        let section = domain.read_lock();
        count.kill();
        drop(count);
        drop(section);
        domain.barrier();
        assert_eq!(releases.load(Ordering::Relaxed), 1);
    }

    /// The callback owns the object that contains the ref, like that of a wb.
    #[test]
    fn the_callback_may_own_its_ref() {
        struct Owner {
            count: crate::shim::OnceLock<PercpuRef>,
        }
        let (_, domain, _) = counted();
        let owner = Arc::new(Owner { count: crate::shim::OnceLock::new() });
        let count = PercpuRef::new(Arc::clone(&domain), {
            let owner = Arc::clone(&owner);
            move || drop(owner)
        });
        assert!(owner.count.set(count).is_ok());
        let weak = Arc::downgrade(&owner);
        owner.count.get().unwrap().kill();
        drop(owner);
        domain.barrier();
        assert!(weak.upgrade().is_none(), "released, hence freed");
    }

    #[test]
    fn racing_users_never_find_a_released_object() {
        for users in [1, 2, 4] {
            for _ in 0..15 {
                let (count, domain, releases) = counted();
                let threads: Vec<_> = (0..users)
                    .map(|_| {
                        let (count, releases) = (Arc::clone(&count), Arc::clone(&releases));
                        thread::spawn(move || {
                            for n in 0..1000 {
                                if !count.tryget() {
                                    break;
                                }
                                assert_eq!(releases.load(Ordering::Relaxed), 0, "used after its release");
                                let puts = if n % 3 == 0 && count.tryget_live() { 2 } else { 1 };
                                count.put_many(puts);
                            }
                        })
                    })
                    .collect();
                thread::yield_now();
                assert!(count.kill());
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                domain.barrier();
                assert_eq!(releases.load(Ordering::Relaxed), 1);
            }
        }
    }
}
