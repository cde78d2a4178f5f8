//! The measured write bandwidth of a wb's device, in pages per second.
//!
//! `write` follows the measurements over about four seconds. `avg` moves an eighth of the distance to `write` at each
//! update, and only while `write` is moving away from it. Single fluctuations therefore leave it unchanged.
//!
//! An update may come from a throttled writer, from a flusher that has submitted, or 200 ms after an inode's last page.
//! Updates that come too early do nothing. The bandwidth of the bdi is the sum of its wbs' `avg`, so the updater adds
//! the change there while the wb has dirty inodes.
//!
//! # Kernel counterpart
//! `wb_update_write_bandwidth`, `wb_bandwidth_estimate_start`.

use super::{IDLE_MS, INITIAL_PAGES_PER_S, PAGES_PER_S_MAX, UPDATE_MS, per_second, to_u64};

/// Three seconds, rounded up to a power of two.
const PERIOD_MS: u64 = 4096;

/// See the [module documentation](self).
pub(crate) struct Bandwidth {
    write_pages_per_s: u64,
    avg_pages_per_s: u64,
    /// Time of the last update, and the wb's total of pages written then.
    stamp_ms: u64,
    written_stamp_pages: u64,
}

impl Bandwidth {
    /// The initial estimate for an unmeasured device, for a wb created at `now_ms`.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            write_pages_per_s: INITIAL_PAGES_PER_S,
            avg_pages_per_s: INITIAL_PAGES_PER_S,
            stamp_ms: now_ms,
            written_stamp_pages: 0,
        }
    }

    /// The bandwidth in pages per second, over about four seconds.
    pub(crate) fn pages_per_s(&self) -> u64 {
        self.write_pages_per_s
    }

    /// The smoothed bandwidth in pages per second, at least 1.
    pub(crate) fn avg_pages_per_s(&self) -> u64 {
        self.avg_pages_per_s
    }

    /// Records that write-back of the wb begins after none was in flight. An idle time of more than a second is left
    /// out of the estimate. `written_pages`: the wb's total so far.
    pub(crate) fn write_starts(&mut self, written_pages: u64, now_ms: u64) {
        if now_ms.saturating_sub(self.stamp_ms) > IDLE_MS {
            (self.stamp_ms, self.written_stamp_pages) = (now_ms, written_pages);
        }
    }

    /// Accounts for the pages written since the last update, unless that was less than 200 ms ago. `written_pages`: the
    /// wb's total so far.
    pub(crate) fn update(&mut self, written_pages: u64, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.stamp_ms);
        if elapsed_ms < UPDATE_MS {
            return;
        }
        let pages = written_pages.saturating_sub(self.written_stamp_pages);
        (self.stamp_ms, self.written_stamp_pages) = (now_ms, written_pages);

        if elapsed_ms > PERIOD_MS {
            self.write_pages_per_s = per_second(pages, elapsed_ms);
            self.avg_pages_per_s = self.write_pages_per_s.max(1);
            return;
        }
        let old = self.write_pages_per_s;
        let weighted = u128::from(pages) * 1000 + u128::from(old) * u128::from(PERIOD_MS - elapsed_ms);
        let new = to_u64(weighted / u128::from(PERIOD_MS)).min(PAGES_PER_S_MAX);
        let avg = self.avg_pages_per_s;
        if avg > old && old >= new {
            self.avg_pages_per_s -= (avg - old) / 8;
        } else if avg < old && old <= new {
            self.avg_pages_per_s += (old - avg) / 8;
        }
        self.avg_pages_per_s = self.avg_pages_per_s.max(1);
        self.write_pages_per_s = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a device of `pages_per_s` for `seconds`, an update every 200 ms.
    fn run(bandwidth: &mut Bandwidth, at: &mut (u64, u64), pages_per_s: u64, seconds: u64) {
        for _ in 0..seconds * 5 {
            *at = (at.0 + 200, at.1 + pages_per_s / 5);
            bandwidth.update(at.1, at.0);
        }
    }

    #[test]
    fn hand_worked_steps() {
        let mut bandwidth = Bandwidth::new(0);
        bandwidth.update(1000, 199);
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.stamp_ms), (25_600, 0), "too early");
        bandwidth.update(10_240, 200);
        // (10240 * 1000 + 25600 * 3896) / 4096; the average is not above the old value and stays.
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s), (26_850, 25_600));
        bandwidth.update(20_480, 400);
        // (10240 * 1000 + 26850 * 3896) / 4096; the average gains (26850 - 25600) / 8.
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s), (28_038, 25_756));
        bandwidth.update(20_480, 600);
        // Falls to 28038 * 3896 / 4096. The average is below that and stays.
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s), (26_668, 25_756));
    }

    #[test]
    fn the_average_falls_by_an_eighth_of_the_distance() {
        let mut bandwidth = Bandwidth::new(0);
        (bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s) = (8000, 16_000);
        bandwidth.update(0, 200);
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s), (7609, 15_000));
        // 5120 pages in 200 ms are more than the old value: it rises, and the average stays.
        bandwidth.update(5120, 400);
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s), (8487, 15_000));
    }

    #[test]
    fn a_gap_longer_than_the_period_is_averaged_as_it_is() {
        let mut bandwidth = Bandwidth::new(0);
        bandwidth.update(10_000, 5000);
        assert_eq!(bandwidth.avg_pages_per_s(), 2000);
        bandwidth.update(10_000, 10_000);
        assert_eq!((bandwidth.write_pages_per_s, bandwidth.avg_pages_per_s()), (0, 1));
    }

    #[test]
    fn it_finds_a_faster_and_a_slower_device() {
        let (mut bandwidth, mut at) = (Bandwidth::new(0), (0, 0));
        for pages_per_s in [250_000, 2500, 40_000] {
            run(&mut bandwidth, &mut at, pages_per_s, 60);
            let (found, off) = (bandwidth.avg_pages_per_s(), bandwidth.avg_pages_per_s().abs_diff(pages_per_s));
            assert!(off * 100 <= pages_per_s, "{found} instead of {pages_per_s}");
        }
    }

    #[test]
    fn an_idle_time_is_left_out() {
        let (mut bandwidth, mut at) = (Bandwidth::new(0), (0, 0));
        run(&mut bandwidth, &mut at, 50_000, 60);
        let before = bandwidth.avg_pages_per_s();
        at.0 += 3_600_000;
        bandwidth.write_starts(at.1, at.0);
        run(&mut bandwidth, &mut at, 50_000, 1);
        assert!(bandwidth.avg_pages_per_s().abs_diff(before) * 100 < before);

        let stamp_ms = bandwidth.stamp_ms;
        bandwidth.write_starts(at.1, stamp_ms + 1000);
        assert_eq!(bandwidth.stamp_ms, stamp_ms, "a second or less counts as busy");
        bandwidth.write_starts(at.1, stamp_ms + 1001);
        assert_eq!(bandwidth.stamp_ms, stamp_ms + 1001);
    }
}
