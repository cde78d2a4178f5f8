//! Several domains, wbs and devices side by side.

use super::super::pause::POLL_PAGES_MAX;
use super::super::*;
use super::simulation::{RATIOS, Simulation};

const PAGES_PER_S: u64 = 25_600;
/// 64 MiB.
const TENANT_PAGES: u64 = 16_384;

fn arena(mode: LimitMode) -> Simulation {
    Simulation::new(Thresholds::of_available(262_144, RATIOS), mode)
}

/// Adds a wb of a new tenant, which has the same number.
fn wb_of_tenant(sim: &mut Simulation, device: usize, limit_pages: u64) -> usize {
    let memcg = sim.memcg(Thresholds::of_limit(limit_pages, RATIOS));
    sim.wb(device, &[memcg])
}

fn assert_within(percent: u64, found: u64, expected: u64) {
    assert!(found.abs_diff(expected) * 100 <= expected * percent, "{found} instead of {expected}");
}

/// The lowest and the highest rate.
fn spread(rates: &[u64]) -> (u64, u64) {
    (*rates.iter().min().unwrap(), *rates.iter().max().unwrap())
}

#[test]
fn a_tenant_at_its_limit_slows_only_itself() {
    for (hogs, request_pages) in [(1, 256), (4, 256), (64, 32), (64, 256)] {
        let mut sim = arena(LimitMode::Shared);
        let device = sim.device(PAGES_PER_S);
        let (hog, light) = (wb_of_tenant(&mut sim, device, TENANT_PAGES), wb_of_tenant(&mut sim, device, TENANT_PAGES));
        let writer = sim.writer(light, 16, Some(256));
        for _ in 0..hogs {
            sim.writer(hog, request_pages, None);
        }
        sim.measure(120);
        assert_eq!(sim.writers[writer].paused_ms, 0, "beside {hogs} hogs");
        assert!(sim.wb_held[hog].max <= TENANT_PAGES + hogs * request_pages.max(POLL_PAGES_MAX), "{:?}", sim.wb_held);
        assert!(sim.held.max < sim.global.thresholds.freerun(), "{:?}", sim.held);
        sim.measure(60);
        let rates = sim.rates();
        assert_within(2, rates[writer], 256);
        assert_within(5, rates[writer + 1..].iter().sum(), PAGES_PER_S - 256);
        assert!(sim.percent_used(device) >= 95);
    }
}

/// The tenant has headroom; other tenants fill the arena.
#[test]
fn a_full_arena_hardly_slows_a_light_tenant() {
    for hogs in [1, 64] {
        let mut sim = arena(LimitMode::Shared);
        let device = sim.device(PAGES_PER_S);
        let (hog, light) = (sim.wb(device, &[]), wb_of_tenant(&mut sim, device, TENANT_PAGES));
        let writer = sim.writer(light, 16, Some(256));
        for _ in 0..hogs {
            sim.writer(hog, 32, None);
        }
        sim.run(30);
        sim.measure(60);
        assert!(sim.held.min >= sim.global.thresholds.freerun(), "{:?}", sim.held);
        assert!(sim.writers[writer].paused_ms < 100, "{} ms of a minute", sim.writers[writer].paused_ms);
        assert_within(2, sim.rates()[writer], 256);
    }
}

#[test]
fn writers_of_a_tenant_converge_while_the_arena_has_headroom() {
    let mut sim = arena(LimitMode::Shared);
    let device = sim.device(PAGES_PER_S);
    let wb = wb_of_tenant(&mut sim, device, TENANT_PAGES);
    for _ in 0..16 {
        sim.writer(wb, 32, None);
    }
    sim.run(60);
    sim.measure(60);
    let (least, most) = spread(&sim.rates());
    assert!(most * 100 <= least * 105, "from {least} to {most}");
    assert_within(10, sim.wbs[wb].rates.rate_limit.pages_per_s(), PAGES_PER_S / 16);
    let levels = sim.memcgs[0].thresholds;
    assert!(sim.wb_held[wb].min >= levels.freerun() && sim.wb_held[wb].max <= levels.thresh_pages);
}

#[test]
fn a_slow_device_does_not_slow_a_fast_one() {
    for mode in [LimitMode::Shared, LimitMode::Strict] {
        let mut sim = arena(mode);
        let (fast, slow) = (sim.device(256_000), sim.device(2560));
        let wbs = (sim.wb(fast, &[]), sim.wb(slow, &[]));
        for _ in 0..4 {
            sim.writer(wbs.0, 32, None);
            sim.writer(wbs.1, 32, None);
        }
        sim.run(60);
        sim.measure(60);
        assert!(sim.percent_used(fast) >= 95 && sim.percent_used(slow) >= 95, "{mode:?}");
        // At a hundredth of the speed it gets a small share of the pages, and the device is still busy.
        assert!(sim.wb_held[wbs.1].max * 4 < sim.wb_held[wbs.0].min, "{mode:?}: {:?}", sim.wb_held);

        sim.set_speed(slow, 0);
        sim.run(60);
        sim.measure(60);
        assert!(sim.percent_used(fast) >= 95, "{mode:?}: a stuck device slows others");
    }
}

#[test]
fn an_idle_device_can_start() {
    for mode in [LimitMode::Shared, LimitMode::Strict] {
        let mut sim = arena(mode);
        let (busy, idle) = (sim.device(PAGES_PER_S), sim.device(PAGES_PER_S));
        let wbs = (sim.wb(busy, &[]), sim.wb(idle, &[]));
        for _ in 0..4 {
            sim.writer(wbs.0, 32, None);
        }
        sim.run(60);
        for _ in 0..4 {
            sim.writer(wbs.1, 32, None);
        }
        sim.run(20);
        sim.measure(30);
        assert!(sim.percent_used(busy) >= 95 && sim.percent_used(idle) >= 95, "{mode:?}");
        let (least, most) = spread(&sim.rates());
        assert!(most * 100 <= least * 110, "{mode:?}: from {least} to {most}");
    }
}

#[test]
fn a_resized_tenant_keeps_to_its_new_limit() {
    let mut sim = Simulation::new(Thresholds::of_available(1 << 20, RATIOS), LimitMode::Shared);
    let device = sim.device(PAGES_PER_S);
    let wb = wb_of_tenant(&mut sim, device, 65_536);
    for _ in 0..8 {
        sim.writer(wb, 32, None);
    }
    sim.run(30);
    for limit_pages in [8192, 131_072, 1024, 0, 1, 16_384] {
        sim.resize(0, Thresholds::of_limit(limit_pages, RATIOS));
        // Pages beyond the new limit are written first.
        sim.run(20);
        sim.measure(30);
        let most = limit_pages + 8 * POLL_PAGES_MAX;
        assert!(sim.wb_held[wb].max <= most, "{:?} in a limit of {limit_pages}", sim.wb_held[wb]);
        let (least, most_rate) = spread(&sim.rates());
        assert!(limit_pages < 1024 || sim.percent_used(device) >= 95, "{limit_pages}");
        assert!(limit_pages < 8192 || most_rate * 100 <= least * 110, "{limit_pages}: from {least} to {most_rate}");
    }
}

#[test]
fn adding_writers_does_not_raise_a_tenants_share_of_a_device() {
    let mut sim = arena(LimitMode::Shared);
    let device = sim.device(PAGES_PER_S);
    let (few, many) = (wb_of_tenant(&mut sim, device, TENANT_PAGES), wb_of_tenant(&mut sim, device, TENANT_PAGES));
    sim.writer(few, 32, None);
    for _ in 0..16 {
        sim.writer(many, 32, None);
    }
    sim.run(60);
    sim.measure(60);
    let rates = sim.rates();
    assert_within(10, rates[0], PAGES_PER_S / 2);
    assert_within(10, rates[1..].iter().sum(), PAGES_PER_S / 2);
}

/// Each tenant alone is far below its limit, and the one above all of them is not.
#[test]
fn tenants_below_one_limit_share_it() {
    for children in [2, 5] {
        let mut sim = arena(LimitMode::Shared);
        let device = sim.device(PAGES_PER_S);
        let [above, parent] =
            [8 * TENANT_PAGES, TENANT_PAGES].map(|pages| sim.memcg(Thresholds::of_limit(pages, RATIOS)));
        for _ in 0..children {
            let child = sim.memcg(Thresholds::of_limit(TENANT_PAGES, RATIOS));
            let wb = sim.wb(device, &[child, parent, above]);
            for _ in 0..4 {
                sim.writer(wb, 32, None);
            }
        }
        sim.run(60);
        sim.measure(60);
        let held = sim.memcg_held[parent];
        assert!(held.max <= TENANT_PAGES + 4 * children * POLL_PAGES_MAX, "{held:?}");
        assert!(sim.held.max < sim.global.thresholds.freerun(), "{:?}", sim.held);
        let (least, most) = spread(&sim.rates());
        assert!(most * 100 <= least * 110, "{children} tenants: from {least} to {most}");
        assert!(sim.percent_used(device) >= 95, "{children} tenants use {} %", sim.percent_used(device));
    }
}

/// The smallest limit may be at any level.
#[test]
fn the_smallest_of_the_limits_above_one_another_holds() {
    for smallest in 0..3 {
        let mut sim = arena(LimitMode::Shared);
        let device = sim.device(PAGES_PER_S);
        let limits: [u64; 3] =
            std::array::from_fn(|level| if level == smallest { TENANT_PAGES } else { 4 * TENANT_PAGES });
        let memcgs = limits.map(|pages| sim.memcg(Thresholds::of_limit(pages, RATIOS)));
        let wb = sim.wb(device, &memcgs);
        for _ in 0..8 {
            sim.writer(wb, 32, None);
        }
        sim.run(60);
        sim.measure(60);
        let (least, most) = spread(&sim.rates());
        assert!(most * 100 <= least * 105, "level {smallest}: from {least} to {most}");
        let levels = sim.memcgs[memcgs[smallest]].thresholds;
        assert!(
            sim.wb_held[wb].min >= levels.freerun() && sim.wb_held[wb].max <= levels.thresh_pages,
            "level {smallest}"
        );
    }
}
