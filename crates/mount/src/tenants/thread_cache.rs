//! The tenants of threads that have sent requests.
//!
//! Each entry costs a descriptor, so the cache is bounded: a full shard evicts the thread that has not sent a request
//! for the longest time. T1 is kept by the users of an entry; the cache does not check whether its threads are alive.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use slackwater::Tick;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::lock_order::LAST;
use crate::tenants::Tenant;
use crate::tenants::error::LookupError;
use crate::tenants::thread_handle::{ThreadHandle, ThreadHandleKind};

/// Threads of a process have consecutive ids, so they spread over the shards.
const SHARDS: usize = 16;
/// More threads than write at a time on any current machine.
const THREADS_MAX: usize = 4096;
/// The cache uses at most this fraction of the descriptors that the process may have.
const DESCRIPTORS: u64 = 4;
/// How long a cgroup read from `/proc`, or the tenant of a cgroup named by the kernel, is cached.
pub(super) const FRESH: Duration = Duration::from_secs(1);

pub(super) struct ThreadCache {
    kind: ThreadHandleKind,
    shards: [Mutex<HashMap<u32, Arc<CachedThread>>>; SHARDS],
    shard_max: usize,
}

/// A thread and its cached tenant.
pub(super) struct CachedThread {
    pub(super) handle: ThreadHandle,
    used_at: AtomicU64,
    last: Mutex<Option<CachedTenant>>,
}

/// The result of a lookup for a thread.
pub(super) struct CachedTenant {
    /// Number of its unified cgroup, if that determines the tenant.
    pub(super) unified_id: Option<u64>,
    /// `None` if its cgroup could not be read.
    pub(super) tenant: Option<Arc<Tenant>>,
    pub(super) at: Tick,
    /// The count of removals when the lookup began.
    pub(super) removals: u64,
}

impl ThreadCache {
    pub(super) fn new(kind: ThreadHandleKind) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / DESCRIPTORS;
        let threads = usize::try_from(descriptors).unwrap_or(usize::MAX).min(THREADS_MAX);
        Self::bounded(kind, (threads / SHARDS).max(1))
    }

    fn bounded(kind: ThreadHandleKind, shard_max: usize) -> Self {
        Self { kind, shards: std::array::from_fn(|_| Mutex::new(LAST, HashMap::new())), shard_max }
    }

    fn shard(&self, tid: u32) -> &Mutex<HashMap<u32, Arc<CachedThread>>> {
        &self.shards[tid as usize % SHARDS]
    }

    /// The entry of a thread id, created if there is none.
    pub(super) fn get(&self, tid: u32, now: Tick) -> Result<Arc<CachedThread>, LookupError> {
        if let Some(thread) = self.shard(tid).lock().get(&tid) {
            thread.used_at.store(now.0, Ordering::Relaxed);
            return Ok(Arc::clone(thread));
        }
        let thread = Arc::new(CachedThread {
            handle: ThreadHandle::open(self.kind, tid)?,
            used_at: AtomicU64::new(now.0),
            last: Mutex::new(LAST, None),
        });
        let mut shard = self.shard(tid).lock();
        let is_full = shard.len() >= self.shard_max && !shard.contains_key(&tid);
        let oldest = || shard.iter().min_by_key(|(_, thread)| thread.used_at.load(Ordering::Relaxed));
        let oldest = is_full.then(oldest).flatten().map(|(tid, _)| *tid);
        let evicted = oldest.and_then(|tid| shard.remove(&tid));
        // Another request of this thread may have been faster. Either entry will do.
        let replaced = shard.insert(tid, Arc::clone(&thread));
        drop(shard);
        // Closes their descriptors.
        drop((evicted, replaced));
        Ok(thread)
    }

    /// Removes an exited thread, unless its id has a new entry by now.
    pub(super) fn remove(&self, tid: u32, gone: &Arc<CachedThread>) {
        let mut shard = self.shard(tid).lock();
        if shard.get(&tid).is_some_and(|thread| Arc::ptr_eq(thread, gone)) {
            let removed = shard.remove(&tid);
            drop(shard);
            drop(removed);
        }
    }
}

impl CachedThread {
    /// The last result, while it is valid.
    pub(super) fn cached(&self, unified_id: Option<u64>, removals: u64, now: Tick) -> Option<Option<Arc<Tenant>>> {
        let last = self.last.lock();
        let cached = last.as_ref()?;
        let is_valid = cached.unified_id == unified_id && cached.removals == removals && now.since(cached.at) < FRESH;
        is_valid.then(|| cached.tenant.clone())
    }

    pub(super) fn store(&self, cached: CachedTenant) {
        *self.last.lock() = Some(cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(cache: &ThreadCache) -> usize {
        cache.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Threads that live until the end of the test.
    struct Threads {
        tids: Vec<u32>,
        threads: Vec<std::thread::JoinHandle<()>>,
    }

    impl Threads {
        fn new(count: usize) -> Self {
            let (send, tids) = std::sync::mpsc::channel();
            let start = |_| {
                let send = send.clone();
                std::thread::spawn(move || {
                    send.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
                    std::thread::park();
                })
            };
            let threads: Vec<_> = (0..count).map(start).collect();
            Self { tids: tids.iter().take(count).collect(), threads }
        }
    }

    impl Drop for Threads {
        fn drop(&mut self) {
            for thread in self.threads.drain(..) {
                thread.thread().unpark();
                thread.join().unwrap();
            }
        }
    }

    #[test]
    fn the_cache_is_bounded_and_evicts_the_thread_that_was_idle_longest() {
        let threads = Threads::new(3 * SHARDS);
        let cache = ThreadCache::bounded(ThreadHandleKind::of_this_kernel(), 1);
        for (now, tid) in (1..).zip(&threads.tids) {
            let thread = cache.get(*tid, Tick(now)).unwrap();
            assert!(len(&cache) <= SHARDS);
            assert!(Arc::ptr_eq(&thread, &cache.get(*tid, Tick(now)).unwrap()));
        }
        let two = ThreadCache::bounded(ThreadHandleKind::of_this_kernel(), 2);
        let of_one_shard = |tid: &&u32| **tid as usize % SHARDS == threads.tids[0] as usize % SHARDS;
        let tids: Vec<u32> = threads.tids.iter().filter(of_one_shard).copied().collect();
        let [a, b, c, ..] = tids[..] else { return println!("skipped: thread ids are not in a row here") };
        let first = two.get(a, Tick(1)).unwrap();
        two.get(b, Tick(2)).unwrap();
        two.get(a, Tick(3)).unwrap();
        two.get(c, Tick(4)).unwrap();
        assert!(Arc::ptr_eq(&first, &two.get(a, Tick(5)).unwrap()));
        assert!(!two.shard(b).lock().contains_key(&b));
    }

    #[test]
    fn a_new_entry_of_a_reused_id_is_not_removed_with_the_old() {
        let threads = Threads::new(1);
        let tid = threads.tids[0];
        let cache = ThreadCache::bounded(ThreadHandleKind::of_this_kernel(), 1);
        let old = cache.get(tid, Tick(1)).unwrap();
        cache.remove(tid, &old);
        let new = cache.get(tid, Tick(2)).unwrap();
        cache.remove(tid, &old);
        assert!(Arc::ptr_eq(&new, &cache.get(tid, Tick(3)).unwrap()));
    }

    #[test]
    fn a_cached_tenant_is_valid_for_a_second_in_the_same_cgroup_until_a_removal() {
        let threads = Threads::new(1);
        let thread = ThreadCache::new(ThreadHandleKind::of_this_kernel()).get(threads.tids[0], Tick(1)).unwrap();
        let at = Tick(7_000_000_000);
        assert_eq!(thread.cached(Some(5), 0, at), None);
        thread.store(CachedTenant { unified_id: Some(5), tenant: None, at, removals: 0 });
        assert_eq!(thread.cached(Some(5), 0, Tick(7_999_999_999)), Some(None));
        assert_eq!(thread.cached(Some(6), 0, at), None);
        assert_eq!(thread.cached(None, 0, at), None);
        assert_eq!(thread.cached(Some(5), 1, at), None);
        assert_eq!(thread.cached(Some(5), 0, Tick(8_000_000_000)), None);
    }
}
