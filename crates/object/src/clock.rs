//! The machine's clock, as far as this crate needs it.

use rustix::time::{ClockId, clock_gettime};
use slackwater::Timestamp;

/// Wall-clock time of the last timer interrupt, at most a few milliseconds old, as the kernel uses it for its own files.
pub(crate) fn wall() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// Wall-clock time in milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    (wall().0 / 1_000_000).max(0) as u64
}

/// Time since some moment before this process began, in milliseconds. It never goes back.
pub(crate) fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000
}
