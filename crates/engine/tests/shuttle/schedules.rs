//! Runs a scenario in many schedules, for tests under shuttle. `SLACKWATER_SHUTTLE_EXECUTIONS` sets the number of
//! schedules.

use std::time::Instant;

use slackwater_sync::shim::model;

/// Runs `scenario` in `executions` schedules of each kind, or the number in the environment, and prints how long it
/// took.
pub(crate) fn check(name: &str, executions: usize, scenario: fn()) {
    let executions = wanted().unwrap_or(executions);
    let start = Instant::now();
    model::check(executions, scenario);
    report(name, executions, start);
}

/// The same with fair schedules only, for scenarios in which a thread polls for what another one does.
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
