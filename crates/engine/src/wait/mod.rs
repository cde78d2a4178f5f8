//! Where threads wait: for one inode in the [`WaitTable`], for free frames at [`Progress`], or for some time.

mod progress;
mod table;

pub(crate) use progress::Progress;
pub(crate) use table::WaitTable;

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};

use crate::lock_order::LEAVES;

/// Sleeps for `time`. Nothing wakes the thread earlier.
pub(crate) fn sleep(time: Duration) {
    let never_notified = Mutex::new(LEAVES, ());
    let _ = Condvar::new().wait_timeout(&mut never_notified.lock(), time);
}
