//! When an unmount gives up: at its deadline, or when it makes no progress.

use std::time::Duration;

use slackwater::{SuperBlock, Tick, UmountError};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::lock_order::LEAF;
use crate::mounted::UmountRequest;

/// The deadline of a running unmount. Clones share the recorded progress.
#[derive(Clone)]
pub(super) struct Deadline {
    sb: Arc<SuperBlock>,
    deadline: Option<Tick>,
    stall: Option<Duration>,
    last: Arc<Mutex<LastProgress>>,
}

/// Progress of the volume, and since when there was no more.
struct LastProgress {
    since: Tick,
    written_bytes: u64,
    bytes_left: u64,
}

impl Deadline {
    pub(super) fn begin(sb: &Arc<SuperBlock>, request: UmountRequest) -> Self {
        let (since, status) = (sb.now(), sb.status());
        let last = LastProgress { since, written_bytes: status.written_bytes, bytes_left: status.bytes_left() };
        let deadline = request.deadline.map(|within| since + within);
        Self { sb: Arc::clone(sb), deadline, stall: request.stall, last: Arc::new(Mutex::new(LEAF, last)) }
    }

    /// When the unmount gives up, unless data is written back before; `None` if never.
    pub(super) fn until(&self) -> Option<Tick> {
        let Some(stall) = self.stall else { return self.deadline };
        let status = self.sb.status();
        let mut last = self.last.lock();
        if status.written_bytes > last.written_bytes || status.bytes_left() < last.bytes_left {
            let (written_bytes, bytes_left) = (status.written_bytes, status.bytes_left());
            *last = LastProgress { since: self.sb.now(), written_bytes, bytes_left };
        }
        let stalled = last.since + stall;
        Some(self.deadline.map_or(stalled, |deadline| deadline.min(stalled)))
    }

    /// The end of an attempt that lasts `time` at most: then the unmount gives up, or reports and tries again.
    pub(super) fn slice(&self, time: Duration) -> Option<Tick> {
        let end = self.sb.now() + time;
        Some(self.until().map_or(end, |until| until.min(end)))
    }

    pub(super) fn has_passed(&self) -> bool {
        self.until().is_some_and(|until| self.sb.now() > until)
    }

    /// Repeats `work` until it succeeds, fails with another error than `Deadline`, or the deadline has passed. `work`
    /// gets the current deadline and fails with `Deadline` when it passes.
    ///
    /// # Errors
    /// Those of `work`.
    pub(super) fn retry(&self, work: impl Fn(Option<Tick>) -> Result<(), UmountError>) -> Result<(), UmountError> {
        loop {
            match work(self.until()) {
                Err(UmountError::Deadline { .. }) if !self.has_passed() => {}
                done => return done,
            }
        }
    }
}
