//! Extreme inputs: none may panic, overflow, or make a pause too long.

use std::time::Duration;

use proptest::prelude::*;

use super::super::pause::POLL_PAGES_MAX;
use super::super::*;
use crate::units::Tick;

/// Small numbers, large ones, and powers of two with their neighbours.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        0_u64..1_000_000,
        any::<u64>(),
        (0_u32..64, 0_u64..3).prop_map(|(bit, near)| (1_u64 << bit).wrapping_add(near).wrapping_sub(1)),
    ]
}

fn mode() -> impl Strategy<Value = LimitMode> {
    prop_oneof![Just(LimitMode::Shared), Just(LimitMode::Strict)]
}

/// The counters of one domain, and its limit.
#[derive(Clone, Debug)]
struct Counters {
    limit: u64,
    ratios: DirtyRatios,
    dirty: u64,
    writeback: u64,
    wb_dirty: u64,
}

fn counters() -> impl Strategy<Value = Counters> {
    (number(), (0_u32..200, 0_u32..200), number(), number(), number()).prop_map(
        |(limit, (dirty_percent, background_percent), dirty, writeback, wb_dirty)| {
            let ratios = DirtyRatios { dirty_percent, background_percent };
            Counters { limit, ratios, dirty, writeback, wb_dirty }
        },
    )
}

fn sample(
    domain: &WbDomain,
    wb: &FpropLocal,
    thresholds: Thresholds,
    counters: &Counters,
    mode: LimitMode,
    now_ms: u64,
) -> DomainSample {
    let held = counters.dirty.saturating_add(counters.writeback);
    let limits = domain.wb_limits(wb, thresholds, held, mode, now_ms);
    assert!(limits.share.thresh_pages <= thresholds.thresh_pages);
    assert!(limits.share.background_pages <= limits.share.thresh_pages);
    needs_exact_sum(limits.share.thresh_pages, counters.wb_dirty);
    domain.is_over_background(wb, thresholds, counters.dirty, counters.wb_dirty, mode, now_ms);
    DomainSample {
        thresholds,
        dirty_pages: counters.dirty,
        writeback_pages: counters.writeback,
        dirty_limit_pages: limits.dirty_limit_pages,
        share: limits.share,
        wb_dirty_pages: counters.wb_dirty,
    }
}

#[derive(Clone, Debug)]
struct Poll {
    global: Counters,
    memcg: Option<Counters>,
    mode: LimitMode,
    totals: (u64, u64),
    stat_error: u64,
    dirtied: u64,
    completed: u64,
    wait_ms: u64,
    resized: bool,
}

fn a_poll() -> impl Strategy<Value = Poll> {
    let loads = (counters(), prop::option::of(counters()), mode(), (number(), number()));
    (loads, number(), number(), number(), number(), any::<bool>()).prop_map(
        |((global, memcg, mode, totals), stat_error, dirtied, completed, wait_ms, resized)| Poll {
            global,
            memcg,
            mode,
            totals,
            stat_error,
            dirtied,
            completed,
            wait_ms,
            resized,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_input_panics_overflows_or_makes_a_pause_too_long(polls in prop::collection::vec(a_poll(), 1..40)) {
        let (global, memcg) = (WbDomain::new(), WbDomain::new());
        let (completions, memcg_completions) = (FpropLocal::new(), FpropLocal::new());
        let (mut rates, mut dirtier) = (WbRates::new(0), Dirtier::new());
        let mut now_ms = 0_u64;
        for poll in polls {
            now_ms = now_ms.saturating_add(poll.wait_ms);
            global.completed(&completions, poll.completed, now_ms);
            memcg.completed(&memcg_completions, poll.completed, now_ms);
            if poll.resized {
                memcg.resized();
            }
            rates.bandwidth.write_starts(poll.totals.1, now_ms);
            let of = Thresholds::of_available(poll.global.limit, poll.global.ratios);
            let input = Input {
                global: sample(&global, &completions, of, &poll.global, poll.mode, now_ms),
                memcgs: std::array::from_fn(|level| {
                    let counters = poll.memcg.as_ref().filter(|_| level == 0)?;
                    let of = Thresholds::of_limit(counters.limit, counters.ratios);
                    Some(sample(&memcg, &memcg_completions, of, counters, poll.mode, now_ms))
                }),
                mode: poll.mode,
                dirtied_pages: poll.totals.0,
                written_pages: poll.totals.1,
                stat_error_pages: poll.stat_error,
            };
            let due = dirtier.dirtied(poll.dirtied, poll.resized);
            prop_assert!(due || poll.dirtied < POLL_PAGES_MAX, "T1");
            let verdict = balance(&input, &mut rates, &mut dirtier, now_ms);
            let longest = Duration::from_millis(200);
            match verdict.decision {
                Pause::None => {}
                Pause::For(pause) | Pause::RetryAfter(pause) => {
                    prop_assert!(verdict.governed_by.is_some());
                    prop_assert!(pause > Duration::ZERO && pause <= longest, "T3: {pause:?}");
                }
            }
            let full = input.global.dirty_pages >= u64::from(u32::MAX) && input.global.dirty_limit_pages < input.global.dirty_pages;
            if full && poll.mode == LimitMode::Shared && input.global.wb_dirty_pages > poll.stat_error
                && verdict.governed_by == Some(DomainKind::Global)
            {
                prop_assert!(matches!(verdict.decision, Pause::RetryAfter(_)), "T2: {verdict:?}");
            }
            prop_assert!(verdict.start_background || verdict.governed_by.is_none());
            prop_assert!(rates.bandwidth.avg_pages_per_s() >= 1);
        }
    }
}

#[test]
fn a_tick_is_rounded_down_to_milliseconds() {
    assert_eq!([ms_of(Tick(999_999)), ms_of(Tick(1_000_000)), ms_of(Tick::MAX)], [0, 1, u64::MAX / 1_000_000]);
}
