//! The delay before a successor, if servers crash again and again soon after they have taken the mount over.
//!
//! A request that kills its server is sent again to each successor. Without a delay the mount would keep a CPU busy.

use std::time::Duration;

/// A server that served the mount for less than this has had a short life.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Short lives in a row without a delay. Some are chance.
const FREE: u32 = 4;
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Counts short lives in a row.
#[derive(Debug, Default)]
pub(super) struct Pace {
    short_lives: u32,
}

impl Pace {
    /// A server has crashed after `life`. Returns the time to wait before its successor starts.
    pub(super) fn delay_after(&mut self, life: Duration) -> Duration {
        self.short_lives = if life < SHORT_LIFE { self.short_lives.saturating_add(1) } else { 0 };
        match self.short_lives.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doublings) => FIRST.saturating_mul(1 << doublings.min(10)).min(LONGEST),
        }
    }

    /// A server has exited for a successor, or was killed from outside. Neither says anything about the next one.
    pub(super) fn reset(&mut self) {
        self.short_lives = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[test]
    fn the_delay_begins_at_the_fifth_short_life_and_doubles_up_to_5_s() {
        let mut pace = Pace::default();
        let delays: Vec<_> = (0..12).map(|_| pace.delay_after(SHORT).as_millis()).collect();
        assert_eq!(delays, [0, 0, 0, 0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        pace.short_lives = u32::MAX;
        assert_eq!(pace.delay_after(SHORT), LONGEST);
        assert_eq!(pace.delay_after(SHORT_LIFE), Duration::ZERO);
        assert_eq!(pace.delay_after(SHORT), Duration::ZERO, "they are counted from the start");
        pace.short_lives = 20;
        pace.reset();
        assert_eq!(pace.delay_after(SHORT), Duration::ZERO);
    }
}
