//! Waiting for a change of an inode: a page filled, a unit written, a commit ended.
//!
//! The whole engine has one table, hashed by inode: waiting is rare, so inodes have no wait queue of their own. A
//! wake-up may be meant for another inode in the bucket, so every waiter checks its condition again.
//!
//! # Memory ordering
//! The condition is checked under the bucket's lock, and the thread that changes it takes that lock between the change
//! and the wake-up. So the waiter either sees the change, or sleeps before the wake-up is sent.
//!
//! # Kernel counterpart
//! `folio_wait_bit` and its hashed wait queues; `inode_wait_for_writeback`.

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex, might_sleep};
use slackwater_sync::shim::Arc;

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
    clock: Arc<dyn Clock>,
}

impl WaitTable {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let bucket = |_| Bucket { lock: Mutex::new(WAIT_TABLE, ()), changed: Condvar::new() };
        Self { buckets: (0..BUCKETS).map(bucket).collect(), clock }
    }

    /// Waits until `ready` returns a value, or until `deadline`.
    ///
    /// # Blocking
    /// Yes. The caller must hold no lock that the thread which makes it ready needs.
    pub(crate) fn wait<R>(
        &self,
        key: NodeId,
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
                    let left = deadline.since(self.clock.now());
                    if left == Duration::ZERO {
                        return None;
                    }
                    let _ = bucket.changed.wait_timeout(&mut guard, left);
                }
            }
        }
    }

    /// Wakes all waiters of `key`, which check their conditions again.
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
