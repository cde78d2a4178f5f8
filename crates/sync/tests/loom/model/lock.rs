//! Ranked locks.
//!
//! `lock_two` is checked under shuttle: loom blocks a `try_lock` until the lock is free, and so sees a deadlock there.

use std::time::Duration;

use slackwater_sync::shim::Arc;
use slackwater_sync::{Condvar, Mutex, Rank};

use super::{PLAIN, Scenario, start_with};

const LIST: Rank = Rank::new(50, "LIST");

pub(crate) const ALL: &[Scenario] = &[Scenario {
    name: "a_notified_condition_is_seen",
    preemptions: None,
    asym: PLAIN,
    body: || {
        let queue = Arc::new((Mutex::new(LIST, 0), Condvar::new()));
        let pusher = start_with(&queue, |queue| {
            *queue.0.lock() = 1;
            queue.1.notify_one();
        });
        let mut length = queue.0.lock();
        queue.1.wait_timeout(&mut length, Duration::from_secs(1));
        while *length == 0 {
            queue.1.wait(&mut length);
        }
        drop(length);
        pusher.join().unwrap();
    },
}];
