//! A device and its writers: dirty pages settle, the device stays busy, and writers get equal shares.

use super::super::pause::POLL_PAGES_MAX;
use super::super::*;
use super::simulation::{RATIOS, Simulation};

/// 1 GiB of available memory; the limit is a fifth of it, 52 416 pages.
const AVAILABLE: u64 = 262_144;

fn one_device(available: u64, pages_per_s: u64, writers: u64, request_pages: u64) -> Simulation {
    let mut sim = Simulation::new(Thresholds::of_available(available, RATIOS), LimitMode::Shared);
    let device = sim.device(pages_per_s);
    let wb = sim.wb(device, &[]);
    for _ in 0..writers {
        sim.writer(wb, request_pages, None);
    }
    sim
}

/// T2: there was never more than the limit plus one request per writer.
fn assert_bounded(sim: &Simulation, request_pages: u64) {
    let most = sim.global.thresholds.thresh_pages + sim.writers.len() as u64 * request_pages.max(POLL_PAGES_MAX);
    assert!(sim.held.max <= most, "{:?} beyond {most}", sim.held);
}

/// Checks that the device was in full use, by writers with equal shares.
fn assert_shared(sim: &Simulation, pages_per_s: u64) {
    let rates = sim.rates();
    let (sum, least, most) = (rates.iter().sum::<u64>(), rates.iter().min(), rates.iter().max());
    assert!(sum * 100 >= pages_per_s * 95 && sim.percent_used(0) >= 95, "{sum} of {pages_per_s}");
    assert!(most.unwrap() * 100 <= least.unwrap() * 110, "from {least:?} to {most:?}");
}

/// Checks that dirty pages stayed between the freerun ceiling and the limit.
fn assert_settled(sim: &Simulation) {
    let levels = sim.global.thresholds;
    assert!(sim.held.min >= levels.freerun() && sim.held.max <= levels.thresh_pages, "{:?}, {levels:?}", sim.held);
}

fn settles(available: u64, pages_per_s: u64, writers: u64, request_pages: u64) {
    let mut sim = one_device(available, pages_per_s, writers, request_pages);
    sim.run(60);
    assert_bounded(&sim, request_pages);
    sim.measure(60);
    assert_settled(&sim);
    assert_shared(&sim, pages_per_s);
}

#[test]
fn one_writer_settles() {
    for request_pages in [1, 32, 256] {
        settles(AVAILABLE, 25_600, 1, request_pages);
    }
}

#[test]
fn four_writers_settle() {
    for request_pages in [1, 32, 256] {
        settles(AVAILABLE, 25_600, 4, request_pages);
    }
}

#[test]
fn sixty_four_writers_settle() {
    for request_pages in [1, 32, 256] {
        settles(AVAILABLE, 25_600, 64, request_pages);
    }
}

#[test]
fn slow_and_fast_devices_settle() {
    for pages_per_s in [2560, 256_000] {
        for writers in [1, 4, 64] {
            settles(AVAILABLE, pages_per_s, writers, 32);
        }
    }
}

#[test]
fn a_large_arena_settles() {
    settles(1 << 24, 256_000, 64, 256);
}

/// All requests together are four times the limit: they come in waves, but no higher than necessary.
#[test]
fn requests_larger_than_the_limit_are_bounded() {
    let mut sim = one_device(20_000, 25_600, 64, 256);
    sim.measure(60);
    assert_bounded(&sim, 256);
    assert!(sim.percent_used(0) >= 95);
}

#[test]
fn writers_slower_than_the_device_are_never_paused() {
    let mut sim = one_device(AVAILABLE, 25_600, 0, 0);
    for _ in 0..4 {
        sim.writer(0, 256, Some(25_600 / 5));
    }
    sim.measure(60);
    assert!(sim.writers.iter().all(|writer| writer.paused_ms == 0));
    assert!(sim.held.max < sim.global.thresholds.freerun());
}

#[test]
fn rates_adapt_when_writers_leave_or_the_device_changes_speed() {
    let mut sim = one_device(AVAILABLE, 25_600, 64, 32);
    sim.run(60);
    sim.remove_writers(2);
    sim.run(30);
    sim.measure(30);
    assert_settled(&sim);
    assert_shared(&sim, 25_600);
    for pages_per_s in [5120, 256_000] {
        sim.set_speed(0, pages_per_s);
        sim.run(60);
        sim.measure(30);
        assert_settled(&sim);
        assert_shared(&sim, pages_per_s);
        let found = sim.wbs[0].rates.bandwidth.avg_pages_per_s();
        assert!(found.abs_diff(pages_per_s) * 20 <= pages_per_s, "{found} instead of {pages_per_s}");
    }
}

#[test]
fn a_stopped_device_stops_its_writers_until_it_resumes() {
    let mut sim = one_device(AVAILABLE, 25_600, 4, 32);
    sim.run(30);
    sim.set_speed(0, 0);
    sim.run(30);
    assert_bounded(&sim, 32);
    let stopped: Vec<u64> = sim.writers.iter().map(|writer| writer.dirtied).collect();
    sim.run(3600);
    assert!(sim.writers.iter().map(|writer| writer.dirtied).eq(stopped), "no writer continues at the limit");
    sim.set_speed(0, 25_600);
    sim.run(60);
    sim.measure(30);
    assert_bounded(&sim, 32);
    assert_shared(&sim, 25_600);
}

/// Like running `cp` for each of many small files: every 64 KiB come from a new writer.
#[test]
fn writers_that_end_before_their_first_poll_are_throttled_too() {
    for writers in [1, 16] {
        let mut sim = one_device(AVAILABLE, 25_600, writers, 16);
        sim.writers.iter_mut().for_each(|writer| writer.is_short_lived = true);
        sim.run(60);
        assert_bounded(&sim, 16);
        sim.measure(60);
        assert_settled(&sim);
        assert!(sim.percent_used(0) >= 95);
    }
}

#[test]
fn a_light_writer_that_wakes_up_gets_the_device() {
    let mut sim = one_device(AVAILABLE, 25_600, 0, 0);
    let writer = sim.writer(0, 16, Some(256));
    sim.run(600);
    sim.writers[writer].pages_per_s = None;
    sim.run(10);
    sim.measure(30);
    assert_bounded(&sim, 16);
    assert_shared(&sim, 25_600);
}
