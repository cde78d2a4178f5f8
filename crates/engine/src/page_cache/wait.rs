//! Where threads wait for something to change on an inode: a page filled, a unit written, a commit ended.
//!
//! There is one table for the engine, hashed by inode, since almost nobody waits: an inode carries no wait
//! queue. A wake-up may be meant for a neighbour; every waiter checks again.
//!
//! # Memory ordering
//! The condition is checked under the bucket's lock, and whoever changes it takes that lock between the
//! change and the wake-up. So either the waiter sees the change, or it sleeps before the wake-up comes.
//!
//! # Kernel counterpart
//! `folio_wait_bit` and its hashed wait queues; `inode_wait_for_writeback`.

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex, might_sleep};

use crate::clock::Clock;
use crate::lock_order::WAIT_TABLE;
use crate::units::{NodeId, Tick};

const BUCKETS: usize = 64;

struct Bucket {
    lock: Mutex<()>,
    changed: Condvar,
}

/// See the [module documentation](self).
pub(crate) struct WaitTable {
    buckets: Box<[Bucket]>,
}

impl WaitTable {
    pub(crate) fn new() -> Self {
        let bucket = |_| Bucket { lock: Mutex::new(WAIT_TABLE, ()), changed: Condvar::new() };
        Self { buckets: (0..BUCKETS).map(bucket).collect() }
    }

    /// Waits until `ready` answers, or until `deadline`.
    ///
    /// # Blocking
    /// Yes; the caller holds no lock that whoever makes it ready needs.
    pub(crate) fn wait<R>(
        &self,
        key: NodeId,
        clock: &dyn Clock,
        deadline: Option<Tick>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        if let Some(result) = ready() {
            return Some(result);
        }
        might_sleep();
        let bucket = self.bucket(key);
        let mut guard = bucket.lock.lock();
        loop {
            if let Some(result) = ready() {
                return Some(result);
            }
            match deadline {
                None => bucket.changed.wait(&mut guard),
                Some(deadline) => {
                    let left = deadline.since(clock.now());
                    if left == Duration::ZERO {
                        return None;
                    }
                    let _ = bucket.changed.wait_timeout(&mut guard, left);
                }
            }
        }
    }

    /// Lets everybody who waits under `key` look again.
    pub(crate) fn wake(&self, key: NodeId) {
        let bucket = self.bucket(key);
        drop(bucket.lock.lock());
        bucket.changed.notify_all();
    }

    fn bucket(&self, key: NodeId) -> &Bucket {
        let hash = (key.ino ^ key.dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.buckets[(hash >> 32) as usize % BUCKETS]
    }
}
