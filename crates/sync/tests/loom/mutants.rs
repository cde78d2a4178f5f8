//! Removes every barrier and ordering that `crates/sync` claims to need, one at a time, and requires that loom finds
//! the error.
//!
//! Each mutant runs in a process of its own, since loom aborts on a deadlock. A mutant counts as found when the
//! scenario fails with a panic of its own or of loom; reaching the time limit does not count.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::model::{self, AsymModel, BOTH, PLAIN, title};
use slackwater_sync::shim::Site;
use slackwater_sync::shim::model::executions;

/// The fences for orderings that full barriers on both sides also provide.
const TOKENS: &[AsymModel] = &[AsymModel::Tokens];

const TIME_LIMIT: Duration = Duration::from_secs(600);
const FOUND: &str = "found at execution";

/// The scenario that must fail without this site, and the models of the asymmetric fence in which it must.
fn scenario_of(site: Site) -> (&'static str, &'static [AsymModel]) {
    match site {
        Site::RwWordReadAcquire | Site::RwWordReadRelease => ("a_writer_and_a_reader_do_not_overlap", PLAIN),
        Site::RwWordWriteAcquire | Site::RwWordWriteRelease => ("writers_follow_one_another", PLAIN),
        Site::InFlightPinFence | Site::InFlightUnpinRelease | Site::InFlightDrainFence | Site::InFlightDrainAcquire => {
            ("the_owner_waits_or_the_worker_backs_off", PLAIN)
        }
        Site::DemandRaiseFence | Site::DemandLookFence => ("the_taker_finds_the_resource_or_is_woken", PLAIN),
        Site::KickFence | Site::KickTakeFence => ("the_worker_counts_the_work_or_makes_another_pass", PLAIN),
        Site::SeqLockBeginAcquire => ("a_lookup_is_counted_or_fails", TOKENS),
        Site::SeqLockEndRelease | Site::SeqRefsPinFence | Site::SeqRefsCountFence => {
            ("a_lookup_is_counted_or_fails", BOTH)
        }
        Site::CompletionRelease | Site::CompletionAcquire => ("a_waiter_sees_the_completed_work", PLAIN),
        Site::PercpuRefPutRelease => ("the_callback_follows_all_work_under_references", TOKENS),
        Site::PercpuRefPutAcquire => ("the_callback_follows_all_work_under_references", BOTH),
        Site::RegistryLinkRelease | Site::RegistryLinkAcquire => ("a_walk_sees_a_registered_element", BOTH),
        Site::RegistryUnlinkRelease => ("a_walk_sees_the_element_behind_a_removed_one", BOTH),
        Site::RegistryPutRelease => ("no_walk_uses_an_unregistered_element", TOKENS),
        Site::RegistryPutAcquire | Site::RegistryReenter => ("no_walk_uses_an_unregistered_element", BOTH),
        Site::SrcuStragglers => ("a_grace_period_waits_for_a_reader_that_is_rounds_behind", PLAIN),
        Site::RcuEnterLight
        | Site::RcuGraceHeavy
        | Site::RcuExitRelease
        | Site::RcuExitLight
        | Site::RcuSleepHeavy
        | Site::RcuNumberRelease => ("a_section_keeps_the_object_it_found", BOTH),
        Site::RcuNumberAcquire => ("a_section_keeps_the_object_it_found", TOKENS),
        Site::RcuEnterRelease => ("a_later_section_does_not_hide_an_earlier_one", TOKENS),
        Site::RcuEndFence => ("the_order_of_a_grace_period_reaches_a_third_thread", BOTH),
        Site::RcuPushRelease | Site::RcuTakeAcquire | Site::RcuKickRelease | Site::RcuKickAcquire => {
            ("the_worker_sees_what_callbacks_captured", PLAIN)
        }
        Site::RcuListLinkRelease | Site::RcuListAcquire => ("a_reader_sees_an_added_node", BOTH),
        Site::RcuListUnlinkRelease => ("a_reader_sees_the_node_behind_a_removed_one", BOTH),
        Site::RcuArcRelease | Site::RcuArcAcquire => ("a_reader_finds_a_whole_value_that_is_not_freed", BOTH),
    }
}

#[test]
fn every_missing_barrier_is_found() {
    let mut missed = Vec::new();
    println!("{:<22} {:<51} {:<6} {:>9} {:>7}  failure", "site", "scenario", "fences", "execution", "seconds");
    for site in Site::ALL {
        let (scenario, models) = scenario_of(*site);
        for asym in models.iter().copied() {
            let start = Instant::now();
            let found = run_mutant(*site, scenario, asym);
            let seconds = start.elapsed().as_secs_f64();
            let (execution, failure) = found.as_ref().map_or(("MISSED", ""), |(number, why)| (number, why));
            let (name, fences) = (format!("{site:?}"), title(asym));
            println!("{name:<22} {scenario:<51} {fences:<6} {execution:>9} {seconds:>7.2}  {failure}");
            if found.is_none() {
                missed.push((site, asym));
            }
        }
    }
    assert!(missed.is_empty(), "loom did not miss these: {missed:?}");
}

/// Runs a scenario without `site`. Returns the number of the execution that failed, and how, if any did.
fn run_mutant(site: Site, scenario: &str, asym: AsymModel) -> Option<(String, String)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["mutants::mutant", "--exact", "--nocapture"])
        .env("SLACKWATER_SCENARIO", scenario)
        .env("SLACKWATER_MUTANT", format!("{site:?}"))
        .env("SLACKWATER_ASYM", title(asym))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The report is one line and fits into the pipe. Later output may not, so a thread drains the rest.
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let deadline = Instant::now() + TIME_LIMIT;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().unwrap();
                break child.wait().unwrap();
            }
        }
    };
    let text = reader.join().unwrap();
    let report = text.lines().find_map(|line| line.strip_prefix(FOUND)).filter(|_| !status.success())?;
    let (number, failure) = report.trim().split_once(' ')?;
    Some((number.to_owned(), failure.to_owned()))
}

/// The body of the child process; nothing in the parent.
#[test]
fn mutant() {
    let Ok(scenario) = std::env::var("SLACKWATER_SCENARIO") else { return };
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().and_then(|text| text.lines().next()).unwrap_or_default();
        let failure = message.split(['.', ';']).next().unwrap_or_default();
        eprintln!("{FOUND} {} {failure}", executions());
    }));
    model::find(&scenario).check();
}
