//! The decision for a writer that polls: the steps of this module in order.
//!
//! Checks every domain that the writer's pages count in: the whole arena, its tenant and those above it. If all of them are
//! below their freerun ceiling, the writer is not throttled. Otherwise the domain nearest to its limit decides.
//!
//! # Kernel counterpart
//! `balance_dirty_pages`. Differs: the flusher is also started when only a tenant is over its
//! background level. Of tenants above one another, all that have a limit count, as in the memory controller, and not the
//! nearest alone. And the rate is adjusted for the domain that decides, not for each in turn. Writers follow the
//! position in one domain, so the position in the other would give a wrong rate. While the arena has headroom, a
//! tenant's writers would rise to the whole bandwidth, however many they are, and bounce off the tenant's limit.

use super::bandwidth::Bandwidth;
use super::pause::{Dirtier, Pause, Terms};
use super::position::position_ratio;
use super::rate_limit::{RateLimit, RateUpdate, Wanted};
use super::sample::{DomainKind, DomainSample, LEVELS_MAX, LimitMode};

/// The estimates for a wb, under one lock of the wb because polls and completions update them.
pub(crate) struct WbRates {
    pub(crate) bandwidth: Bandwidth,
    pub(super) rate_limit: RateLimit,
}

impl WbRates {
    /// The initial rates of a wb created at `now_ms`.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self { bandwidth: Bandwidth::new(now_ms), rate_limit: RateLimit::new(now_ms) }
    }
}

/// The counters and limits at the time of a poll.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Input {
    pub(crate) global: DomainSample,
    /// The writer's tenant and those above it, as far as they have limits.
    pub(crate) memcgs: [Option<DomainSample>; LEVELS_MAX],
    pub(crate) mode: LimitMode,
    /// The wb's totals so far.
    pub(crate) dirtied_pages: u64,
    pub(crate) written_pages: u64,
    /// Possible error of the wb's counters (`wb_stat_error`).
    pub(crate) stat_error_pages: u64,
}

/// The result of a poll.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) decision: Pause,
    /// The domain that decided; `None` if all are in freerun. If there is one and the decision is to pause, foreign
    /// flushes are due (`mem_cgroup_flush_foreign`).
    pub(crate) governed_by: Option<DomainKind>,
    /// Start the flusher, unless it is running.
    pub(crate) start_background: bool,
    /// The wb is over its limits. Pass this to [`Dirtier::dirtied`] of all its writers from now on.
    pub(crate) dirty_exceeded: bool,
    /// The rate was adjusted.
    pub(crate) rate_update: Option<RateUpdate>,
}

/// Settles the account of a writer that polls, and updates the rates of its wb if that is due.
pub(crate) fn balance(input: &Input, wb: &mut WbRates, dirtier: &mut Dirtier, now_ms: u64) -> Verdict {
    let memcgs = || input.memcgs.iter().flatten();
    let domains = || std::iter::once(&input.global).chain(memcgs());
    let dirty_exceeded = domains().any(|domain| domain.is_exceeded(input.mode));

    // The smallest headroom of all domains, if every one has some.
    let headroom_pages = domains()
        .map(|domain| domain.freerun_headroom(input.mode))
        .reduce(|one, other| Some(one?.min(other?)))
        .flatten();
    if let Some(headroom_pages) = headroom_pages {
        dirtier.settle_freerun(headroom_pages, now_ms);
        let start_background = domains().any(DomainSample::is_over_background);
        return Verdict {
            decision: Pause::None,
            governed_by: None,
            start_background,
            dirty_exceeded,
            rate_update: None,
        };
    }

    wb.bandwidth.update(input.written_pages, now_ms);
    let avg_pages_per_s = wb.bandwidth.avg_pages_per_s();
    let position = |domain| position_ratio(domain, input.mode, avg_pages_per_s);
    let mut governing = (position(&input.global), DomainKind::Global, &input.global);
    for memcg in memcgs() {
        let ratio = position(memcg);
        if ratio < governing.0 {
            governing = (ratio, DomainKind::Memcg, memcg);
        }
    }
    let (ratio, kind, domain) = governing;

    let wanted = if domain.is_below_setpoint(input.mode) { Wanted::More } else { Wanted::Fewer };
    let rate_update = wb.rate_limit.update(input.dirtied_pages, ratio, avg_pages_per_s, wanted, now_ms);
    let terms = Terms::new(
        domain.wb_dirty_pages,
        avg_pages_per_s,
        wb.rate_limit.pages_per_s(),
        wb.rate_limit.task_pages_per_s(ratio),
    );
    let wb_is_nearly_clean = domain.wb_dirty_pages <= input.stat_error_pages;
    Verdict {
        decision: dirtier.settle(terms, wb_is_nearly_clean, now_ms),
        governed_by: Some(kind),
        start_background: true,
        dirty_exceeded,
        rate_update,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::share::WbShare;
    use super::super::thresholds::Thresholds;
    use super::*;

    /// A domain of 20 000 pages with one wb; its freerun ceiling is 15 000.
    fn domain(held_pages: u64) -> DomainSample {
        DomainSample {
            thresholds: Thresholds { thresh_pages: 20_000, background_pages: 10_000 },
            dirty_pages: held_pages,
            writeback_pages: 0,
            dirty_limit_pages: 20_000,
            share: WbShare { thresh_pages: 20_000, background_pages: 10_000 },
            wb_dirty_pages: held_pages,
        }
    }

    /// The arena, and tenants above one another.
    fn input(global_pages: u64, memcg_pages: impl IntoIterator<Item = u64>) -> Input {
        let mut memcgs = [None; LEVELS_MAX];
        memcg_pages.into_iter().zip(&mut memcgs).for_each(|(pages, memcg)| *memcg = Some(domain(pages)));
        Input {
            global: domain(global_pages),
            memcgs,
            mode: LimitMode::Shared,
            dirtied_pages: 0,
            written_pages: 0,
            stat_error_pages: 96,
        }
    }

    fn poll(input: &Input) -> Verdict {
        let mut dirtier = Dirtier::new();
        dirtier.dirtied(256, false);
        balance(input, &mut WbRates::new(0), &mut dirtier, 0)
    }

    #[test]
    fn a_writer_is_not_throttled_while_every_domain_has_headroom() {
        let free = |input| poll(&input).governed_by.is_none();
        assert!(free(input(15_000, None)) && free(input(15_000, Some(15_000))));
        assert!(!free(input(15_001, None)) && !free(input(15_001, Some(0))) && !free(input(0, Some(15_001))));
        assert_eq!(poll(&input(15_000, Some(15_000))).decision, Pause::None);
    }

    #[test]
    fn the_domain_with_the_least_headroom_sets_the_poll_interval() {
        let mut dirtier = Dirtier::new();
        balance(&input(0, Some(15_000)), &mut WbRates::new(0), &mut dirtier, 0);
        // The square root of 4096 rounds to 64.
        assert!(!dirtier.dirtied(63, false) && dirtier.dirtied(1, false));
    }

    #[test]
    fn write_back_starts_above_the_background_level_of_either_domain() {
        let starts = |input| poll(&input).start_background;
        assert!(!starts(input(10_000, Some(10_000))));
        assert!(starts(input(10_001, None)) && starts(input(0, Some(10_001))) && starts(input(0, Some(19_000))));
        let mut in_flight = input(10_001, None);
        (in_flight.global.dirty_pages, in_flight.global.writeback_pages) = (10_000, 4000);
        assert!(!starts(in_flight), "pages under write-back do not count");
    }

    #[test]
    fn the_domain_nearer_to_its_limit_decides() {
        let by = |global, memcg| poll(&input(global, memcg)).governed_by;
        assert_eq!(by(17_000, None), Some(DomainKind::Global));
        assert_eq!(by(17_000, Some(18_000)), Some(DomainKind::Memcg));
        assert_eq!(by(18_000, Some(17_000)), Some(DomainKind::Global));
        assert_eq!(by(18_000, Some(18_000)), Some(DomainKind::Global), "a tie goes to the arena");
        assert_eq!(by(0, Some(20_000)), Some(DomainKind::Memcg));
    }

    #[test]
    fn the_fullest_of_tenants_above_one_another_decides() {
        let verdict = |pages: [u64; 3]| poll(&input(0, pages));
        for at in 0..3 {
            let with = |pages| std::array::from_fn(|level| if level == at { pages } else { 0 });
            assert_eq!(verdict(with(15_000)).governed_by, None);
            assert_eq!(verdict(with(19_000)).governed_by, Some(DomainKind::Memcg));
            assert_eq!(verdict(with(19_000)).decision, poll(&input(0, Some(19_000))).decision, "whichever level it is");
            assert!(verdict(with(10_001)).start_background);
        }
        assert_eq!(verdict([16_000, 19_900, 17_000]).decision, poll(&input(0, Some(19_900))).decision);
    }

    #[test]
    fn pauses_grow_towards_the_limit() {
        // 256 pages at 25 600/s are 10 ms at the setpoint, which is 17 500.
        let pause = |held| poll(&input(held, None)).decision;
        assert_eq!(pause(17_500), Pause::For(Duration::from_millis(10)));
        assert_eq!(pause(19_000), Pause::For(Duration::from_millis(12)));
        assert_eq!(pause(19_900), Pause::For(Duration::from_millis(86)));
        assert_eq!(pause(20_000), Pause::RetryAfter(Duration::from_millis(100)));
        assert_eq!(pause(40_000), Pause::RetryAfter(Duration::from_millis(200)), "T2, T3");
    }

    #[test]
    fn a_full_domain_does_not_stop_a_nearly_clean_wb() {
        let mut full = input(20_000, None);
        full.global.wb_dirty_pages = 96;
        assert_eq!(poll(&full).decision, Pause::For(Duration::from_millis(1)));
        full.global.wb_dirty_pages = 97;
        assert_eq!(poll(&full).decision, Pause::RetryAfter(Duration::from_millis(1)));
    }

    #[test]
    fn a_wb_over_its_share_of_a_full_domain_is_exceeded() {
        let mut full = input(20_001, None);
        assert!(poll(&full).dirty_exceeded);
        full.global.wb_dirty_pages = 20_000;
        assert!(!poll(&full).dirty_exceeded);
        let mut wb_over_share = input(10_000, None);
        wb_over_share.global.share = WbShare { thresh_pages: 9000, background_pages: 4500 };
        assert!(!poll(&wb_over_share).dirty_exceeded);
        assert_eq!(poll(&wb_over_share).governed_by, None);
        wb_over_share.mode = LimitMode::Strict;
        assert!(poll(&wb_over_share).dirty_exceeded);
        assert!(matches!(poll(&wb_over_share).decision, Pause::RetryAfter(_)), "its own limit binds it");
    }

    #[test]
    fn the_rates_are_updated_every_200_ms() {
        let (mut wb, mut dirtier) = (WbRates::new(0), Dirtier::new());
        let mut at = |now_ms: u64| {
            let mut input = input(18_500, None);
            (input.written_pages, input.dirtied_pages) = (now_ms * 10, now_ms * 1000);
            balance(&input, &mut wb, &mut dirtier, now_ms);
            (wb.bandwidth.avg_pages_per_s(), wb.rate_limit.pages_per_s())
        };
        assert_eq!(at(199), (25_600, 25_600));
        at(200);
        at(400);
        let (bandwidth, rate) = at(600);
        assert!(bandwidth < 25_600 && rate < 25_600, "{bandwidth}, {rate}");
    }
}
