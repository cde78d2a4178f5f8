//! The machine's clock.

use rustix::time::{ClockId, clock_gettime};
use slackwater::{Clock, Tick, Timestamp};

/// [`Clock`] of this machine. Monotonic time does not run while the machine is suspended.
#[derive(Copy, Clone, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        let now = clock_gettime(ClockId::Monotonic);
        Tick(now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64)
    }

    /// The time of the last timer interrupt, at most a few milliseconds old: the kernel uses the same time for its own
    /// files.
    fn wall(&self) -> Timestamp {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp::from_parts(now.tv_sec, now.tv_nsec as u32)
    }
}

const NS_PER_S: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_does_not_go_back() {
        let before = SystemClock.now();
        assert!(SystemClock.now() >= before);
    }

    #[test]
    fn wall_time_is_after_this_test_was_written() {
        assert!(SystemClock.wall() > Timestamp::from_parts(1_760_000_000, 0));
    }
}
