//! When a writer polls the throttle, and how long it then pauses.
//!
//! Each writer has an account of time. Dirtying pages costs the time they take at the writer's rate, elapsed time pays
//! for it, and the writer pauses when its debt is large enough to be worth a pause. Small debts and credits are carried
//! over, so the rate is right on average. Credit of more than a second is dropped.
//!
//! # Kernel counterpart
//! `wb_max_pause`, `wb_min_pause`, the second half of `balance_dirty_pages` and `balance_dirty_pages_ratelimited`.
//! Differs: nothing here sleeps. Where the reference would sleep and repeat its loop, the result is
//! [`Pause::RetryAfter`]. A writer polls at least every 1 MiB. Debt beyond the longest pause is not forgiven: the
//! kernel polls within a request, so its debts are small, but here one request of 1 MiB can cost one of many writers a
//! second. If such debt were forgiven, any request would cost at most 200 ms, and only the limit would slow writers
//! down.

use std::time::Duration;

use super::{PAUSE_MS_MAX, to_u64};

/// A writer polls after dirtying this many pages, whatever the headroom. No writer exceeds a limit by more than the
/// largest request, 1 MiB.
pub(crate) const POLL_PAGES_MAX: u64 = 256;

/// A new writer first polls after this many dirtied pages; a pause for fewer is not worth its overhead.
const POLL_PAGES_MIN: u64 = 32;

/// The poll interval while the wb is over its limits.
const POLL_PAGES_EXCEEDED: u64 = 8;

/// Length of the pauses of a single writer, and the increment for each doubling of the writers.
const TARGET_MS: u64 = 10;

/// Most credit that is carried over.
const CREDIT_MS_MAX: u64 = 1000;

/// The action required of a writer before it continues. The pages it has written stay accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// Pause for this time, at most 200 ms.
    For(Duration),
    /// Pause for this time, at most 200 ms, and poll again: the limit is reached, or the debt is large.
    RetryAfter(Duration),
}

/// The account of one writer, across all wbs that it writes to.
#[derive(Clone, Debug)]
pub(crate) struct Dirtier {
    /// Pages dirtied since the account was settled.
    nr_dirtied: u64,
    /// The value of `nr_dirtied` at which the account is settled next.
    nr_dirtied_pause: u64,
    /// The time up to which dirtying has been paid for. A time in the future is debt.
    paused_when_ms: Option<u64>,
}

/// The terms for settling a writer's account, derived from the state of its wb.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Rate of the writer in pages per second; 0 if no writer may continue.
    pub(super) task_pages_per_s: u64,
    /// Upper bound of a pause.
    pub(super) max_pause_ms: u64,
    /// Lower bound of a pause; smaller debts are carried over.
    pub(super) min_pause_ms: u64,
    /// Pages until the next poll after a pause.
    pub(super) poll_pages: u64,
}

impl Terms {
    /// The terms for writers of a wb with bandwidth `avg_pages_per_s` and `wb_dirty_pages`. Each writer may write
    /// `rate_pages_per_s` at the setpoint and `task_pages_per_s` at the current position.
    pub(super) fn new(wb_dirty_pages: u64, avg_pages_per_s: u64, rate_pages_per_s: u64, task_pages_per_s: u64) -> Self {
        let max_pause_ms = max_pause_ms(wb_dirty_pages, avg_pages_per_s);
        let pages_in = |rate: u64, ms: u64| to_u64(u128::from(rate) * u128::from(ms) / 1000);

        // N writers have bandwidth / N each: longer pauses keep them from all being awake all the time.
        let doublings = avg_pages_per_s.max(1).ilog2().saturating_sub(rate_pages_per_s.max(1).ilog2());
        let mut target_ms = (TARGET_MS + TARGET_MS * u64::from(doublings)).min(1 + max_pause_ms / 2);
        let mut poll_pages = pages_in(rate_pages_per_s, target_ms);
        if poll_pages < POLL_PAGES_MIN {
            target_ms = max_pause_ms;
            poll_pages = pages_in(rate_pages_per_s, target_ms);
            if poll_pages > POLL_PAGES_MIN {
                poll_pages = POLL_PAGES_MIN;
                target_ms = POLL_PAGES_MIN * 1000 / rate_pages_per_s.max(1);
            }
        }
        if period_ms(poll_pages, task_pages_per_s) > max_pause_ms {
            target_ms = max_pause_ms;
            poll_pages = pages_in(task_pages_per_s, target_ms);
        }
        let min_pause_ms = if poll_pages >= POLL_PAGES_MIN { 1 + target_ms / 2 } else { target_ms };
        Self { task_pages_per_s, max_pause_ms, min_pause_ms, poll_pages: poll_pages.min(POLL_PAGES_MAX) }
    }
}

/// An eighth of the time in which the device writes `wb_dirty_pages`, at most 200 ms: the device must not run dry while
/// the writers pause.
fn max_pause_ms(wb_dirty_pages: u64, avg_pages_per_s: u64) -> u64 {
    const EIGHTH_MS: u64 = 128;
    (wb_dirty_pages / (1 + avg_pages_per_s / EIGHTH_MS)).saturating_add(1).min(PAUSE_MS_MAX)
}

/// The time that `pages` take at `pages_per_s`.
fn period_ms(pages: u64, pages_per_s: u64) -> u64 {
    to_u64(u128::from(pages) * 1000 / u128::from(pages_per_s.max(1)))
}

impl Dirtier {
    /// The account of a writer that has dirtied nothing.
    pub(crate) fn new() -> Self {
        Self { nr_dirtied: 0, nr_dirtied_pause: POLL_PAGES_MIN, paused_when_ms: None }
    }

    /// Counts `pages` newly dirtied by the writer. Returns whether it must poll now. `dirty_exceeded`: the result of
    /// the last poll by any writer of the wb.
    pub(crate) fn dirtied(&mut self, pages: u64, dirty_exceeded: bool) -> bool {
        self.nr_dirtied = self.nr_dirtied.saturating_add(pages);
        let most = if dirty_exceeded { POLL_PAGES_EXCEEDED } else { POLL_PAGES_MAX };
        self.nr_dirtied >= self.nr_dirtied_pause.min(most)
    }

    /// Closes the account. Returns the unsettled pages, which the next writer of the wb takes over. Otherwise a
    /// succession of writers that each end before their first poll would never be throttled.
    pub(crate) fn close(self) -> u64 {
        self.nr_dirtied
    }

    /// Settles the account while no writer is throttled. The next poll follows when a small part of the
    /// `headroom_pages` is used.
    pub(super) fn settle_freerun(&mut self, headroom_pages: u64, now_ms: u64) {
        self.nr_dirtied = 0;
        self.nr_dirtied_pause = freerun_poll_pages(headroom_pages);
        self.paused_when_ms = Some(now_ms);
    }

    /// Settles the account. `wb_is_nearly_clean`: the wb has no more dirty pages than the error of its counter.
    /// Stopping its writers would then free nothing, and might stop writers of a healthy device because of a stuck one.
    pub(super) fn settle(&mut self, terms: Terms, wb_is_nearly_clean: bool, now_ms: u64) -> Pause {
        if terms.task_pages_per_s == 0 {
            let pause = self.pause(terms, now_ms, terms.max_pause_ms);
            if wb_is_nearly_clean {
                self.nr_dirtied = 0;
                return Pause::For(pause);
            }
            return Pause::RetryAfter(pause);
        }
        let period_ms = period_ms(self.nr_dirtied, terms.task_pages_per_s);
        let paid_until_ms = self.paused_when_ms.unwrap_or(now_ms);
        let due_ms = i128::from(paid_until_ms) + i128::from(period_ms) - i128::from(now_ms);

        if due_ms < i128::from(terms.min_pause_ms) {
            if due_ms < -i128::from(CREDIT_MS_MAX) {
                self.paused_when_ms = Some(now_ms);
                self.nr_dirtied = 0;
            } else if period_ms > 0 {
                self.paused_when_ms = Some(paid_until_ms.saturating_add(period_ms));
                self.nr_dirtied = 0;
            } else if self.nr_dirtied_pause <= self.nr_dirtied {
                // Too few pages to cost anything: let more accumulate before the next poll.
                self.nr_dirtied_pause = self.nr_dirtied_pause.saturating_add(self.nr_dirtied);
            }
            return Pause::None;
        }
        let due_ms = u64::try_from(due_ms).unwrap_or(u64::MAX);
        if due_ms > terms.max_pause_ms && !wb_is_nearly_clean {
            self.paused_when_ms = Some(paid_until_ms);
            return Pause::RetryAfter(Duration::from_millis(terms.max_pause_ms));
        }
        let pause = self.pause(terms, now_ms, due_ms.min(terms.max_pause_ms));
        self.nr_dirtied = 0;
        Pause::For(pause)
    }

    /// Pauses for `pause_ms` from now; afterwards the account is even.
    fn pause(&mut self, terms: Terms, now_ms: u64, pause_ms: u64) -> Duration {
        self.paused_when_ms = Some(now_ms.saturating_add(pause_ms));
        self.nr_dirtied_pause = terms.poll_pages;
        Duration::from_millis(pause_ms)
    }
}

/// Pages to dirty before the next poll when there are `headroom_pages`: about the square root.
fn freerun_poll_pages(headroom_pages: u64) -> u64 {
    1 << (headroom_pages.max(1).ilog2() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn terms(task_pages_per_s: u64) -> Terms {
        Terms { task_pages_per_s, max_pause_ms: 200, min_pause_ms: 6, poll_pages: 100 }
    }

    fn dirtier(nr_dirtied: u64, paused_when_ms: Option<u64>) -> Dirtier {
        Dirtier { nr_dirtied, nr_dirtied_pause: 32, paused_when_ms }
    }

    #[test]
    fn the_longest_pause_is_an_eighth_of_the_drain_time() {
        // 100 MiB/s: 1 + 25600 / 128 = 201 pages are written per step of the table below.
        for (wb_dirty, pause) in [(0, 1), (200, 1), (201, 2), (2010, 11), (39_998, 199), (39_999, 200), (u64::MAX, 200)]
        {
            assert_eq!(max_pause_ms(wb_dirty, 25_600), pause, "{wb_dirty} pages");
        }
        assert_eq!(max_pause_ms(1000, 0), 200);
        assert_eq!(max_pause_ms(u64::MAX, u64::MAX), 128);
    }

    #[test]
    fn hand_worked_terms() {
        // A single writer: 10 ms, 256 pages, at least half of it.
        let lone = Terms::new(100_000, 25_600, 25_600, 25_600);
        assert_eq!((lone.max_pause_ms, lone.min_pause_ms, lone.poll_pages), (200, 6, 256));
        // One of 8: three doublings make 40 ms, in which it writes 128.
        let eighth = Terms::new(100_000, 25_600, 3200, 3200);
        assert_eq!((eighth.min_pause_ms, eighth.poll_pages), (21, 128));
        // One of 64: 70 ms are 28 pages, which is too few; 200 ms would be 80; 32 take 80 ms.
        let small = Terms::new(100_000, 25_600, 400, 400);
        assert_eq!((small.min_pause_ms, small.poll_pages), (41, 32));
        // One of 1024: in 200 ms it writes 5.
        let tiny = Terms::new(100_000, 25_600, 25, 25);
        assert_eq!((tiny.min_pause_ms, tiny.poll_pages), (200, 5));
        // At a quarter of its rate the 32 pages would take 320 ms: 200 ms, 20 pages.
        let slowed = Terms::new(100_000, 25_600, 400, 100);
        assert_eq!((slowed.min_pause_ms, slowed.poll_pages), (200, 20));
        // Little is dirty: the pause is short, so that the device does not run dry.
        let short = Terms::new(2010, 25_600, 25_600, 25_600);
        assert_eq!((short.max_pause_ms, short.min_pause_ms, short.poll_pages), (11, 4, 153));
        // A fast device: the writer still polls at every request.
        assert_eq!(Terms::new(1 << 30, 1 << 20, 1 << 20, 1 << 20).poll_pages, POLL_PAGES_MAX);
    }

    #[test]
    fn a_writer_polls_at_its_interval() {
        let mut writer = Dirtier::new();
        assert!(!writer.dirtied(7, true));
        assert!(writer.dirtied(1, true), "every 8 pages over the limit");
        assert!(!writer.dirtied(23, false));
        assert!(writer.dirtied(1, false));
        writer.settle_freerun(1 << 40, 0);
        assert!(!writer.dirtied(255, false));
        assert!(writer.dirtied(1, false), "T1");
    }

    #[test]
    fn headroom_lengthens_the_poll_interval() {
        for (headroom, pages) in [(0, 1), (1, 1), (3, 1), (4, 2), (1 << 14, 128), ((1 << 16) - 1, 128), (1 << 16, 256)]
        {
            assert_eq!(freerun_poll_pages(headroom), pages, "headroom {headroom}");
        }
    }

    #[test]
    fn dirtied_pages_are_paid_for_with_time() {
        // 100 pages at 1000/s are 100 ms, of which 30 have passed.
        let mut writer = dirtier(100, Some(970));
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::For(MS(70)));
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause, writer.paused_when_ms), (0, 100, Some(1070)));
        // The first pause has no earlier time to count from.
        assert_eq!(dirtier(100, None).settle(terms(1000), false, 1000), Pause::For(MS(100)));
    }

    #[test]
    fn small_debt_and_credit_are_carried_over() {
        let mut writer = dirtier(5, Some(1000));
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::None);
        assert_eq!((writer.nr_dirtied, writer.paused_when_ms), (0, Some(1005)), "5 ms of debt");
        writer.nr_dirtied = 5;
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::For(MS(10)));

        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(1000), false, 1600), Pause::None);
        assert_eq!(writer.paused_when_ms, Some(1100), "500 ms of credit");
        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(1000), false, 2101), Pause::None);
        assert_eq!(writer.paused_when_ms, Some(2101), "1001 ms of credit are dropped");
    }

    #[test]
    fn pages_too_few_to_cost_anything_accumulate() {
        let mut writer = dirtier(32, Some(0));
        assert_eq!(writer.settle(terms(100_000), false, 0), Pause::None);
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause), (32, 64));
        assert!(writer.dirtied(300, false) && writer.nr_dirtied == 332);
        assert_eq!(writer.settle(terms(1_000_000), false, 0), Pause::None);
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause), (332, 396));
    }

    #[test]
    fn a_debt_longer_than_one_pause_is_paid_in_several() {
        let mut writer = dirtier(250, Some(1000));
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::RetryAfter(MS(200)));
        // At the rate in force at that time.
        assert_eq!(writer.clone().settle(terms(1000), false, 1200), Pause::For(MS(50)));
        assert_eq!(writer.clone().settle(terms(625), false, 1200), Pause::For(MS(200)));
        assert_eq!(writer.clone().settle(terms(500), false, 1200), Pause::RetryAfter(MS(200)));
        assert_eq!(writer.clone().settle(terms(2000), false, 1200), Pause::None);
        assert_eq!(writer.settle(terms(1), true, 1200), Pause::For(MS(200)), "forgiven: the wb is nearly clean");
        assert_eq!((writer.nr_dirtied, writer.paused_when_ms), (0, Some(1400)));
    }

    #[test]
    fn at_the_limit_a_writer_retries_and_keeps_its_debt() {
        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(0), false, 1000), Pause::RetryAfter(MS(200)));
        assert_eq!((writer.nr_dirtied, writer.paused_when_ms), (100, Some(1200)));
        assert_eq!(writer.settle(terms(1000), false, 1200), Pause::For(MS(100)));
        // A nearly clean wb is not what fills the domain.
        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(0), true, 1000), Pause::For(MS(200)));
        assert_eq!(writer.nr_dirtied, 0);
    }
}
