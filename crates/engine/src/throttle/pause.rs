//! When a writer looks at the state of things, and how long it then waits.
//!
//! A writer has an account of time. Dirtying pages costs what they take at its rate, the time that passes pays for it,
//! and it pauses when it owes enough to make a pause worth while. Small debt and credit are carried over, so that the
//! rate comes out right on average; credit of more than a second is dropped.
//!
//! # Kernel counterpart
//! `wb_max_pause`, `wb_min_pause`, the second half of `balance_dirty_pages` and `balance_dirty_pages_ratelimited`;
//! sem. 4.7. Differs: nobody sleeps here; where the reference would sleep and go round its loop, the answer is
//! [`Pause::AskAfter`]. A writer looks at every 1 MiB at the latest. And debt that is more than the longest pause
//! is not forgiven: the kernel looks while a request goes on, so its debts are small, but a request of 1 MiB may cost
//! one of many writers a second. Forgiven, 200 ms would be the price of any request, and the limit the only brake.

use std::time::Duration;

use super::{PAUSE_MS_MAX, to_u64};

/// A writer that has dirtied so many pages looks, however much room there is: so no writer goes further beyond a limit
/// than the largest request does, which is 1 MiB.
pub(crate) const LOOK_PAGES_MAX: u64 = 256;

/// Dirtied pages after which a new writer looks; with fewer, a pause is not worth its overhead.
const LOOK_PAGES_MIN: u64 = 32;

/// The same while the wb is over its limits.
const LOOK_PAGES_EXCEEDED: u64 = 8;

/// Length of a pause that a lone writer gets, and what is added each time the writers double.
const TARGET_MS: u64 = 10;

/// Credit that is carried over.
const CREDIT_MS_MAX: u64 = 1000;

/// What a writer is to do before it writes on. The pages that it has written are taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// Wait for this time, at most 200 ms.
    For(Duration),
    /// Wait for this time, at most 200 ms, and ask again: the limit is reached, or much is owed.
    AskAfter(Duration),
}

/// The account of one writer, whichever wbs it writes to.
#[derive(Clone, Debug)]
pub(crate) struct Dirtier {
    /// Pages dirtied since the account was settled.
    nr_dirtied: u64,
    /// The number of them at which it is settled next.
    nr_dirtied_pause: u64,
    /// The time up to which dirtying has been paid for. May lie ahead, which is debt.
    paused_when_ms: Option<u64>,
}

/// What the state of the wb makes of a writer's account.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Rate of the writer in pages per second; 0 if nobody may go on.
    pub(super) task_pages_per_s: u64,
    /// No pause is longer.
    pub(super) max_pause_ms: u64,
    /// No pause is shorter: less is owed until later.
    pub(super) min_pause_ms: u64,
    /// Pages until the next look after a pause.
    pub(super) look_pages: u64,
}

impl Terms {
    /// The terms of writers of a wb that writes `avg_pages_per_s` and has `wb_dirty_pages`, where each may write
    /// `rate_pages_per_s` at the setpoint and `task_pages_per_s` as things are.
    pub(super) fn new(wb_dirty_pages: u64, avg_pages_per_s: u64, rate_pages_per_s: u64, task_pages_per_s: u64) -> Self {
        let max_pause_ms = max_pause_ms(wb_dirty_pages, avg_pages_per_s);
        let pages_in = |rate: u64, ms: u64| to_u64(u128::from(rate) * u128::from(ms) / 1000);

        // N writers have bandwidth / N each: with longer pauses, they are not all awake at each moment.
        let doublings = avg_pages_per_s.max(1).ilog2().saturating_sub(rate_pages_per_s.max(1).ilog2());
        let mut target_ms = (TARGET_MS + TARGET_MS * u64::from(doublings)).min(1 + max_pause_ms / 2);
        let mut look_pages = pages_in(rate_pages_per_s, target_ms);
        if look_pages < LOOK_PAGES_MIN {
            target_ms = max_pause_ms;
            look_pages = pages_in(rate_pages_per_s, target_ms);
            if look_pages > LOOK_PAGES_MIN {
                look_pages = LOOK_PAGES_MIN;
                target_ms = LOOK_PAGES_MIN * 1000 / rate_pages_per_s.max(1);
            }
        }
        if period_ms(look_pages, task_pages_per_s) > max_pause_ms {
            target_ms = max_pause_ms;
            look_pages = pages_in(task_pages_per_s, target_ms);
        }
        let min_pause_ms = if look_pages >= LOOK_PAGES_MIN { 1 + target_ms / 2 } else { target_ms };
        Self { task_pages_per_s, max_pause_ms, min_pause_ms, look_pages: look_pages.min(LOOK_PAGES_MAX) }
    }
}

/// An eighth of the time in which the device writes `wb_dirty_pages`, at most 200 ms: it must not run dry while the
/// writers pause.
fn max_pause_ms(wb_dirty_pages: u64, avg_pages_per_s: u64) -> u64 {
    const EIGHTH_MS: u64 = 128;
    (wb_dirty_pages / (1 + avg_pages_per_s / EIGHTH_MS)).saturating_add(1).min(PAUSE_MS_MAX)
}

/// Time that `pages` take.
fn period_ms(pages: u64, pages_per_s: u64) -> u64 {
    to_u64(u128::from(pages) * 1000 / u128::from(pages_per_s.max(1)))
}

impl Dirtier {
    /// A writer that has dirtied nothing.
    pub(crate) fn new() -> Self {
        Self { nr_dirtied: 0, nr_dirtied_pause: LOOK_PAGES_MIN, paused_when_ms: None }
    }

    /// It dirtied `pages` that were not dirty. Returns whether it is to look now. `dirty_exceeded`: what the last look
    /// of any writer at the wb found.
    pub(crate) fn dirtied(&mut self, pages: u64, dirty_exceeded: bool) -> bool {
        self.nr_dirtied = self.nr_dirtied.saturating_add(pages);
        let most = if dirty_exceeded { LOOK_PAGES_EXCEEDED } else { LOOK_PAGES_MAX };
        self.nr_dirtied >= self.nr_dirtied_pause.min(most)
    }

    /// It writes no more. Returns the pages that it has not settled, for the next writer of the wb to take over as its
    /// own: many writers that each end before their first look would else never be slowed down.
    pub(crate) fn leave(self) -> u64 {
        self.nr_dirtied
    }

    /// Nobody is slowed down, and there is room for `room_pages`: looks again when a small part of it is used.
    pub(super) fn run_free(&mut self, room_pages: u64, now_ms: u64) {
        self.nr_dirtied = 0;
        self.nr_dirtied_pause = free_run_pages(room_pages);
        self.paused_when_ms = Some(now_ms);
    }

    /// Settles the account. `wb_is_nearly_clean`: the wb has no more dirty pages than its counter may be wrong by, so
    /// stopping its writers would free nothing, and might hold up those of a healthy device for one that is stuck.
    pub(super) fn settle(&mut self, terms: Terms, wb_is_nearly_clean: bool, now_ms: u64) -> Pause {
        if terms.task_pages_per_s == 0 {
            let pause = self.pause(terms, now_ms, terms.max_pause_ms);
            if wb_is_nearly_clean {
                self.nr_dirtied = 0;
                return Pause::For(pause);
            }
            return Pause::AskAfter(pause);
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
                // Too few to cost anything: looks when there are more.
                self.nr_dirtied_pause = self.nr_dirtied_pause.saturating_add(self.nr_dirtied);
            }
            return Pause::None;
        }
        let due_ms = u64::try_from(due_ms).unwrap_or(u64::MAX);
        if due_ms > terms.max_pause_ms && !wb_is_nearly_clean {
            self.paused_when_ms = Some(paid_until_ms);
            return Pause::AskAfter(Duration::from_millis(terms.max_pause_ms));
        }
        let pause = self.pause(terms, now_ms, due_ms.min(terms.max_pause_ms));
        self.nr_dirtied = 0;
        Pause::For(pause)
    }

    /// A pause of `pause_ms` from now, at the end of which all time is used up.
    fn pause(&mut self, terms: Terms, now_ms: u64, pause_ms: u64) -> Duration {
        self.paused_when_ms = Some(now_ms.saturating_add(pause_ms));
        self.nr_dirtied_pause = terms.look_pages;
        Duration::from_millis(pause_ms)
    }
}

/// Pages to dirty before the next look, where there is room for `room_pages`: about its square root.
fn free_run_pages(room_pages: u64) -> u64 {
    1 << (room_pages.max(1).ilog2() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn terms(task_pages_per_s: u64) -> Terms {
        Terms { task_pages_per_s, max_pause_ms: 200, min_pause_ms: 6, look_pages: 100 }
    }

    fn dirtier(nr_dirtied: u64, paused_when_ms: Option<u64>) -> Dirtier {
        Dirtier { nr_dirtied, nr_dirtied_pause: 32, paused_when_ms }
    }

    #[test]
    fn the_longest_pause_is_an_eighth_of_the_drain_time() {
        // 100 MiB/s: 1 + 25600 / 128 = 201 pages are written in a tick of the table below.
        for (wb_dirty, pause) in [(0, 1), (200, 1), (201, 2), (2010, 11), (39_998, 199), (39_999, 200), (u64::MAX, 200)]
        {
            assert_eq!(max_pause_ms(wb_dirty, 25_600), pause, "{wb_dirty} pages");
        }
        assert_eq!(max_pause_ms(1000, 0), 200);
        assert_eq!(max_pause_ms(u64::MAX, u64::MAX), 128);
    }

    #[test]
    fn hand_worked_terms() {
        // A lone writer: 10 ms, 256 pages, at least half of it.
        let lone = Terms::new(100_000, 25_600, 25_600, 25_600);
        assert_eq!((lone.max_pause_ms, lone.min_pause_ms, lone.look_pages), (200, 6, 256));
        // One of 8: three doublings make 40 ms, in which it writes 128.
        let eighth = Terms::new(100_000, 25_600, 3200, 3200);
        assert_eq!((eighth.min_pause_ms, eighth.look_pages), (21, 128));
        // One of 64: 70 ms are 28 pages, which is too few; 200 ms would be 80; 32 take 80 ms.
        let small = Terms::new(100_000, 25_600, 400, 400);
        assert_eq!((small.min_pause_ms, small.look_pages), (41, 32));
        // One of 1024: in 200 ms it writes 5.
        let tiny = Terms::new(100_000, 25_600, 25, 25);
        assert_eq!((tiny.min_pause_ms, tiny.look_pages), (200, 5));
        // At a quarter of its rate the 32 pages would take 320 ms: 200 ms, 20 pages.
        let slowed = Terms::new(100_000, 25_600, 400, 100);
        assert_eq!((slowed.min_pause_ms, slowed.look_pages), (200, 20));
        // Little is dirty: the pause is short, so that the device has something to do.
        let short = Terms::new(2010, 25_600, 25_600, 25_600);
        assert_eq!((short.max_pause_ms, short.min_pause_ms, short.look_pages), (11, 4, 153));
        // A fast device: the writer looks at every request all the same.
        assert_eq!(Terms::new(1 << 30, 1 << 20, 1 << 20, 1 << 20).look_pages, LOOK_PAGES_MAX);
    }

    #[test]
    fn a_writer_looks_when_it_is_time() {
        let mut writer = Dirtier::new();
        assert!(!writer.dirtied(7, true));
        assert!(writer.dirtied(1, true), "every 8 pages over the limit");
        assert!(!writer.dirtied(23, false));
        assert!(writer.dirtied(1, false));
        writer.run_free(1 << 40, 0);
        assert!(!writer.dirtied(255, false));
        assert!(writer.dirtied(1, false), "T1");
    }

    #[test]
    fn room_lets_a_writer_run() {
        for (room, pages) in [(0, 1), (1, 1), (3, 1), (4, 2), (1 << 14, 128), ((1 << 16) - 1, 128), (1 << 16, 256)] {
            assert_eq!(free_run_pages(room), pages, "room for {room}");
        }
    }

    #[test]
    fn what_is_dirtied_is_paid_for() {
        // 100 pages at 1000/s are 100 ms, of which 30 have passed.
        let mut writer = dirtier(100, Some(970));
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::For(MS(70)));
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause, writer.paused_when_ms), (0, 100, Some(1070)));
        // The first pause knows of no time before it.
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
    fn pages_that_cost_nothing_wait_for_more() {
        let mut writer = dirtier(32, Some(0));
        assert_eq!(writer.settle(terms(100_000), false, 0), Pause::None);
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause), (32, 64));
        assert!(writer.dirtied(300, false) && writer.nr_dirtied == 332);
        assert_eq!(writer.settle(terms(1_000_000), false, 0), Pause::None);
        assert_eq!((writer.nr_dirtied, writer.nr_dirtied_pause), (332, 396));
    }

    #[test]
    fn a_debt_that_one_pause_does_not_pay_is_asked_about_again() {
        let mut writer = dirtier(250, Some(1000));
        assert_eq!(writer.settle(terms(1000), false, 1000), Pause::AskAfter(MS(200)));
        // At the rate that it finds then.
        assert_eq!(writer.clone().settle(terms(1000), false, 1200), Pause::For(MS(50)));
        assert_eq!(writer.clone().settle(terms(625), false, 1200), Pause::For(MS(200)));
        assert_eq!(writer.clone().settle(terms(500), false, 1200), Pause::AskAfter(MS(200)));
        assert_eq!(writer.clone().settle(terms(2000), false, 1200), Pause::None);
        assert_eq!(writer.settle(terms(1), true, 1200), Pause::For(MS(200)), "forgiven: the wb is nearly clean");
        assert_eq!((writer.nr_dirtied, writer.paused_when_ms), (0, Some(1400)));
    }

    #[test]
    fn at_the_limit_a_writer_asks_again_and_still_owes() {
        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(0), false, 1000), Pause::AskAfter(MS(200)));
        assert_eq!((writer.nr_dirtied, writer.paused_when_ms), (100, Some(1200)));
        assert_eq!(writer.settle(terms(1000), false, 1200), Pause::For(MS(100)));
        // A wb with next to nothing dirty is not what keeps the domain full.
        let mut writer = dirtier(100, Some(1000));
        assert_eq!(writer.settle(terms(0), true, 1000), Pause::For(MS(200)));
        assert_eq!(writer.nr_dirtied, 0);
    }
}
