//! The clock of an engine, injected by its user.

use slackwater_sync::shim::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::units::{Tick, Timestamp};

/// The source of time of an engine. `slackwater_backends::SystemClock` is the machine's.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time. Called a few times per flusher pass.
    fn now(&self) -> Tick;

    /// Wall-clock time, for file times. Called on every write, so use a coarse source that costs a few nanoseconds.
    fn wall(&self) -> Timestamp;
}

/// A clock for tests that moves only when told to. Both times advance together.
#[derive(Debug)]
pub struct ManualClock {
    now_ns: AtomicU64,
    wall_ns: AtomicI64,
}

impl ManualClock {
    /// A clock at `wall`. Its monotonic time starts at one day, so that "30 s ago" is a valid time.
    pub fn new(wall: Timestamp) -> Self {
        const DAY_NS: u64 = 86_400_000_000_000;
        Self { now_ns: AtomicU64::new(DAY_NS), wall_ns: AtomicI64::new(wall.0) }
    }

    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        let ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX >> 1);
        self.now_ns.fetch_add(ns, Ordering::AcqRel);
        self.wall_ns.fetch_add(ns as i64, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick(self.now_ns.load(Ordering::Acquire))
    }

    fn wall(&self) -> Timestamp {
        Timestamp(self.wall_ns.load(Ordering::Acquire))
    }
}
