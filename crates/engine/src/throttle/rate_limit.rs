//! The rate of each writer of a wb, in pages per second: equal for all, found without counting the writers.
//!
//! If each of N writers may write `rate * position` and together they wrote `dirty_rate`, then `rate * position *
//! bandwidth / dirty_rate` is `bandwidth / N`. The rate moves there in small steps, and only while the number of dirty
//! pages calls for the same direction: too many and too fast, or too few and too slow.
//!
//! The position is the mean over all polls since the last update, since that is what the writers were allowed to write.
//! A momentary position may be anything: many writers with large requests come in waves.
//!
//! # Kernel counterpart
//! `wb_update_dirty_ratelimit`. Differs: the reference takes the momentary position. If that is at the limit,
//! where writers stop, it finds that nothing is written although all writers may write, and keeps its rate for ever. It
//! also shares its time stamp with the bandwidth, whose updates therefore suppress its own.

use super::position::SHIFT;
use super::{IDLE_MS, INITIAL_PAGES_PER_S, UPDATE_MS, per_second, to_u64};

/// See the [module documentation](self).
pub(crate) struct RateLimit {
    pages_per_s: u64,
    /// Target of the last update.
    balanced_pages_per_s: u64,
    /// Time of the last update, and the wb's total of pages dirtied then.
    stamp_ms: u64,
    dirtied_stamp_pages: u64,
    /// Time of the last poll.
    polled_ms: u64,
    /// Polls since the last update, and the sum of their positions.
    polls: u64,
    positions: u64,
}

/// Inputs and result of an update of the rate, in pages per second.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateUpdate {
    /// Rate at which all writers together dirtied pages since the last update.
    pub(crate) dirty_pages_per_s: u64,
    /// Rate that each of them was allowed.
    pub(crate) task_pages_per_s: u64,
    pub(crate) balanced_pages_per_s: u64,
    /// The new rate.
    pub(crate) pages_per_s: u64,
}

/// The direction in which the number of dirty pages should move.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    More,
    Fewer,
}

impl RateLimit {
    /// The initial rate of a wb created at `now_ms`.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            pages_per_s: INITIAL_PAGES_PER_S,
            balanced_pages_per_s: INITIAL_PAGES_PER_S,
            stamp_ms: now_ms,
            dirtied_stamp_pages: 0,
            polled_ms: now_ms,
            polls: 0,
            positions: 0,
        }
    }

    /// Rate of each writer at the setpoint, in pages per second; at least 1.
    pub(super) fn pages_per_s(&self) -> u64 {
        self.pages_per_s
    }

    /// Rate of each writer at the position `ratio`, in pages per second; 0 close to the limit.
    pub(super) fn task_pages_per_s(&self, ratio: u64) -> u64 {
        to_u64((u128::from(self.pages_per_s) * u128::from(ratio)) >> SHIFT)
    }

    /// Records a poll at the position `ratio`. Accounts for the pages dirtied since the last update, unless that was
    /// less than 200 ms ago or nothing could be written since. `dirtied_pages`: the wb's total so far. A time without
    /// polls is left out, because no writer was held to the rate then.
    pub(super) fn update(
        &mut self,
        dirtied_pages: u64,
        ratio: u64,
        avg_pages_per_s: u64,
        wanted: Wanted,
        now_ms: u64,
    ) -> Option<RateUpdate> {
        let was_idle = now_ms.saturating_sub(self.polled_ms) > IDLE_MS;
        self.polled_ms = now_ms;
        self.polls += 1;
        self.positions = self.positions.saturating_add(ratio);
        let elapsed_ms = now_ms.saturating_sub(self.stamp_ms);
        let dirtied = dirtied_pages.saturating_sub(self.dirtied_stamp_pages);
        let nothing_written = self.positions == 0 || dirtied == 0;
        if elapsed_ms < UPDATE_MS || (nothing_written && !was_idle) {
            return None;
        }
        (self.stamp_ms, self.dirtied_stamp_pages) = (now_ms, dirtied_pages);
        let position = self.positions / self.polls;
        (self.polls, self.positions) = (0, 0);
        (!was_idle).then(|| self.step(per_second(dirtied, elapsed_ms), position, avg_pages_per_s, wanted))
    }

    fn step(&mut self, dirty_pages_per_s: u64, ratio: u64, avg_pages_per_s: u64, wanted: Wanted) -> RateUpdate {
        let rate = self.pages_per_s;
        let task = self.task_pages_per_s(ratio).saturating_add(1);
        let matching = u128::from(task) * u128::from(avg_pages_per_s) / u128::from(dirty_pages_per_s | 1);
        let balanced = to_u64(matching).min(avg_pages_per_s);

        let error = match wanted {
            Wanted::More => self.balanced_pages_per_s.min(balanced).min(task).saturating_sub(rate),
            Wanted::Fewer => rate.saturating_sub(self.balanced_pages_per_s.max(balanced).max(task)),
        };
        // The larger the error relative to the rate, the larger the part of it that is corrected, up to an eighth.
        let shift = rate / error.saturating_mul(2).saturating_add(1);
        let step = u32::try_from(shift).ok().and_then(|shift| error.checked_shr(shift)).unwrap_or(0).div_ceil(8);
        self.pages_per_s = if rate < balanced { rate.saturating_add(step) } else { rate.saturating_sub(step) }.max(1);
        self.balanced_pages_per_s = balanced;
        RateUpdate {
            dirty_pages_per_s,
            task_pages_per_s: task,
            balanced_pages_per_s: balanced,
            pages_per_s: self.pages_per_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::position::ONE;
    use super::*;

    /// Runs `writers` that keep exactly to the rate, at the position `ratio`, for `seconds`.
    fn run(limit: &mut RateLimit, writers: u64, bandwidth: u64, ratio: u64, wanted: Wanted, seconds: u64) {
        for _ in 0..seconds * 5 {
            limit.step(limit.task_pages_per_s(ratio) * writers, ratio, bandwidth, wanted);
        }
    }

    #[test]
    fn a_hand_worked_step() {
        let mut limit = RateLimit::new(0);
        // Four writers at 25600 on a device of 25600: task = 25601, balanced = 25601 * 25600 / 102401 = 6400.
        limit.update(20_480, ONE, 25_600, Wanted::Fewer, 200);
        // The last balanced rate was 25600, so no step yet.
        assert_eq!((limit.pages_per_s, limit.balanced_pages_per_s), (25_600, 6400));
        limit.update(40_960, ONE * 3 / 4, 25_600, Wanted::Fewer, 400);
        // task = 19201, error = 6399, shift = 25600 / 12799 = 2, step = ceil(1599 / 8).
        assert_eq!(limit.pages_per_s, 25_400);
        limit.update(61_440, ONE * 3 / 4, 25_600, Wanted::More, 600);
        assert_eq!(limit.pages_per_s, 25_400, "the dirty pages call for more, the rates for less");
    }

    #[test]
    fn a_move_needs_two_balanced_rates_in_a_row() {
        use Wanted::{Fewer, More};
        // Last balanced rate, pages dirtied per second, position; and the rate that 2000 becomes on a device of 10 000.
        let table = [
            // The last balanced rate was not lower, though 1001 * 10000 / 20011 is.
            (2000, 20_010, ONE / 2, Fewer, 2000),
            // Both are lower by 999, half of the rate: 2000 - ceil((999 >> 1) / 8).
            (1000, 10_005, ONE / 2, Fewer, 1937),
            (1500, 20_010, ONE / 2, Fewer, 1968),
            // The position allows twice the rate, so the writers are not too fast.
            (1000, 20_010, 2 * ONE, Fewer, 2000),
            // The same upwards.
            (2000, 10_005, 2 * ONE, More, 2000),
            (4000, 10_005, 2 * ONE, More, 2250),
            (4000, 10_005, ONE, More, 2000),
            // An error of a twentieth is halved nine times.
            (2100, 10_005, 2 * ONE, More, 2000),
        ];
        for (balanced, dirty_pages_per_s, ratio, wanted, moved) in table {
            let mut limit = RateLimit::new(0);
            (limit.pages_per_s, limit.balanced_pages_per_s) = (2000, balanced);
            limit.step(dirty_pages_per_s, ratio, 10_000, wanted);
            assert_eq!(limit.pages_per_s, moved, "{balanced} {dirty_pages_per_s} {ratio} {wanted:?}");
        }
    }

    #[test]
    fn it_converges_to_an_equal_share_of_the_bandwidth() {
        for writers in [1, 4, 64, 256] {
            let mut limit = RateLimit::new(0);
            // The position does not matter as long as it calls for the same direction.
            run(&mut limit, writers, 25_600, ONE / 3, Wanted::Fewer, 120);
            let (rate, balanced, part) = (limit.pages_per_s, limit.balanced_pages_per_s, 25_600 / writers);
            assert!(balanced.abs_diff(part) * 20 <= part, "{balanced} is balanced for {writers} writers");
            assert!(rate.abs_diff(part) * 5 <= part, "{rate} for {writers} writers");
        }
    }

    #[test]
    fn it_rises_when_writers_leave() {
        let mut limit = RateLimit::new(0);
        run(&mut limit, 64, 25_600, ONE / 2, Wanted::Fewer, 120);
        let many = limit.pages_per_s;
        run(&mut limit, 2, 25_600, ONE * 2, Wanted::More, 120);
        assert!(many < 600 && limit.pages_per_s > 12_000, "{many}, then {}", limit.pages_per_s);
    }

    #[test]
    fn the_position_is_averaged_over_all_polls() {
        let (mut one, mut many) = (RateLimit::new(0), RateLimit::new(0));
        for update in 1..100 {
            let (dirtied, now_ms) = (update * 81_920, update * 800);
            many.update(dirtied, 0, 25_600, Wanted::Fewer, now_ms - 600);
            many.update(dirtied, 0, 25_600, Wanted::Fewer, now_ms - 300);
            many.update(dirtied, ONE, 25_600, Wanted::Fewer, now_ms);
            one.update(dirtied, ONE / 3, 25_600, Wanted::Fewer, now_ms);
            assert_eq!(one.pages_per_s, many.pages_per_s, "update {update}");
        }
        assert!(one.pages_per_s < 25_600);
    }

    #[test]
    fn a_full_stop_does_not_change_the_rate() {
        let mut limit = RateLimit::new(0);
        for poll in 1..100 {
            limit.update(1 << 20, 0, 25_600, Wanted::Fewer, poll * 200);
        }
        assert_eq!((limit.balanced_pages_per_s, limit.stamp_ms), (25_600, 0));
    }

    #[test]
    fn a_time_without_polls_does_not_change_the_rate() {
        let mut limit = RateLimit::new(0);
        limit.update(1 << 40, ONE / 2, 25_600, Wanted::Fewer, 1001);
        limit.update(1 << 50, ONE / 2, 25_600, Wanted::Fewer, 1200);
        assert_eq!((limit.pages_per_s, limit.balanced_pages_per_s), (25_600, 25_600));
        assert_eq!((limit.stamp_ms, limit.dirtied_stamp_pages), (1001, 1 << 40));
    }

    #[test]
    fn it_is_never_less_than_one() {
        let mut limit = RateLimit::new(0);
        run(&mut limit, 1 << 20, 1, 0, Wanted::Fewer, 1000);
        assert_eq!(limit.pages_per_s, 1);
        limit.step(0, u64::from(u32::MAX), u64::MAX, Wanted::More);
        limit.step(u64::MAX, 0, u64::MAX, Wanted::Fewer);
    }
}
