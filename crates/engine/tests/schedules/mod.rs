//! Running a scenario in many schedules, for tests under shuttle. `SLACKWATER_SHUTTLE_EXECUTIONS` says in how many, if it is set.
#![allow(dead_code, reason = "each test target uses a part")]

use std::time::Instant;

use slackwater_sync::shim::model;

/// Runs `scenario` in `executions` schedules of each kind, or as many as the environment wants, and says how long it took.
pub(crate) fn check(name: &str, executions: usize, scenario: fn()) {
    let executions = wanted().unwrap_or(executions);
    let start = Instant::now();
    model::check(executions, scenario);
    report(name, executions, start);
}

/// The same, with fair schedules only: for scenarios in which a thread looks again and again for what another one is to
/// bring about.
pub(crate) fn check_fair(name: &str, executions: usize, scenario: fn()) {
    let executions = wanted().unwrap_or(executions);
    let start = Instant::now();
    model::check_fair(2 * executions, scenario);
    report(name, executions, start);
}

fn wanted() -> Option<usize> {
    std::env::var("SLACKWATER_SHUTTLE_EXECUTIONS").ok().and_then(|number| number.parse().ok())
}

fn report(name: &str, executions: usize, start: Instant) {
    println!("{name}: {} schedules, {:.1} s", 2 * executions, start.elapsed().as_secs_f64());
}
