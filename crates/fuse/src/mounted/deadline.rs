//! How long an unmount goes on: until its deadline, or for as long as it gets somewhere.

use std::time::Duration;

use slackwater::{SuperBlock, Tick, UmountError};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::mounted::UmountRequest;
use crate::volume::lock_order::LEAF;

/// The deadline of an unmount that has begun. Its clones share what they have seen.
#[derive(Clone)]
pub(super) struct Deadline {
    sb: Arc<SuperBlock>,
    deadline: Option<Tick>,
    stall: Option<Duration>,
    seen: Arc<Mutex<Seen>>,
}

/// Figures of the volume, and since when they are no better.
struct Seen {
    since: Tick,
    written_bytes: u64,
    bytes_left: u64,
}

impl Deadline {
    pub(super) fn begin(sb: &Arc<SuperBlock>, request: UmountRequest) -> Self {
        let (since, status) = (sb.now(), sb.status());
        let seen = Seen { since, written_bytes: status.written_bytes, bytes_left: status.bytes_left() };
        let deadline = request.deadline.map(|within| since + within);
        Self { sb: Arc::clone(sb), deadline, stall: request.stall, seen: Arc::new(Mutex::new(LEAF, seen)) }
    }

    /// When it ends, unless something reaches the backend before. `None`: never.
    pub(super) fn until(&self) -> Option<Tick> {
        let Some(stall) = self.stall else { return self.deadline };
        let status = self.sb.status();
        let mut seen = self.seen.lock();
        if status.written_bytes > seen.written_bytes || status.bytes_left() < seen.bytes_left {
            let (written_bytes, bytes_left) = (status.written_bytes, status.bytes_left());
            *seen = Seen { since: self.sb.now(), written_bytes, bytes_left };
        }
        let stalled = seen.since + stall;
        Some(self.deadline.map_or(stalled, |deadline| deadline.min(stalled)))
    }

    pub(super) fn has_passed(&self) -> bool {
        self.until().is_some_and(|until| self.sb.now() > until)
    }

    /// Repeats `work`, which ends with `Deadline` at the time it is given, until it has done or failed otherwise.
    ///
    /// # Errors
    /// Those of `work`; `Deadline` when it is over.
    pub(super) fn retry(&self, work: impl Fn(Option<Tick>) -> Result<(), UmountError>) -> Result<(), UmountError> {
        loop {
            match work(self.until()) {
                Err(UmountError::Deadline { .. }) if !self.has_passed() => {}
                done => return done,
            }
        }
    }
}
