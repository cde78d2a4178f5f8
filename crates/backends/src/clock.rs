//! The machine's clock.

use rustix::time::{ClockId, Timespec, clock_gettime};
use slackwater::{Clock, Tick, Timestamp};

/// [`Clock`] of this machine. Monotonic time does not run while the machine is suspended.
#[derive(Copy, Clone, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        let now = clock_gettime(ClockId::Monotonic);
        Tick(now.tv_sec as u64 * NS_PER_S as u64 + now.tv_nsec as u64)
    }

    /// The time of the last timer interrupt, a few milliseconds old at most: what the kernel stamps its
    /// own files with.
    fn wall(&self) -> Timestamp {
        timestamp(clock_gettime(ClockId::RealtimeCoarse))
    }
}

const NS_PER_S: i64 = 1_000_000_000;

/// Saturates beyond the years 1677 and 2262, which nanoseconds in 64 bits cannot reach.
pub(crate) fn timestamp(time: Timespec) -> Timestamp {
    let ns = i128::from(time.tv_sec) * i128::from(NS_PER_S) + i128::from(time.tv_nsec);
    Timestamp(ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

/// The same time as seconds, rounded down, and nanoseconds.
pub(crate) fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.0.div_euclid(NS_PER_S), tv_nsec: time.0.rem_euclid(NS_PER_S) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_does_not_go_back() {
        let before = SystemClock.now();
        assert!(SystemClock.now() >= before);
    }

    #[test]
    fn wall_time_is_after_this_line_was_written() {
        assert!(SystemClock.wall() > Timestamp(1_760_000_000 * NS_PER_S));
    }

    #[test]
    fn times_before_1970_keep_positive_nanoseconds() {
        for ns in [-1, 0, 1, -NS_PER_S, i64::MAX, i64::MIN] {
            let time = timespec(Timestamp(ns));
            assert!((0..NS_PER_S).contains(&time.tv_nsec));
            assert_eq!(timestamp(time), Timestamp(ns));
        }
    }
}
