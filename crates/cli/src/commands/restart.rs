//! `slackwater restart`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use slackwater_control::client::{ANSWER_WITHIN, ask, is_cut_off};
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::outln;
use slackwater_control::protocol::{FailedUpgrade, NextProgram, Phase, Reply, Request, Status};
use slackwater_host::Printable as _;

use crate::arguments::{DaemonSocket, RestartArguments};
use crate::commands::long_requests::{died, each, targets};
use crate::commands::target::Target;

/// A takeover is much faster, unless the source hangs.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Replaces the processes of kept mounts; returns when the new ones serve.
pub(crate) fn run(arguments: &RestartArguments) -> Result<(), Failure> {
    each(&kept(&arguments.volumes, arguments.all)?, |target, _| {
        let Replaced { before, after, pause_ms, .. } = replace(target, None)?;
        let name = named(target);
        outln!("Restarted {name}: pid {after} instead of {before}; programs waited for {pause_ms} ms.");
        Ok(())
    })
}

/// The process of a target, for messages.
pub(super) fn named(target: &Target) -> String {
    let is_of_daemon = target.found.as_ref().is_some_and(|found| found.entry.daemon.is_some());
    if is_of_daemon {
        format!("the daemon of {}", target.name.printable())
    } else {
        target.name.printable().to_string()
    }
}

/// The mounts with these names, or all that are kept. One volume stands for all of its daemon.
pub(super) fn kept(volumes: &[PathBuf], all: bool) -> Result<Vec<Target>, Failure> {
    let mut targets = targets(volumes, all, &DaemonSocket { socket: None })?;
    let mut keepers = HashSet::new();
    targets.retain(|target| match target.found.as_ref().and_then(|found| found.entry.keeper) {
        Some(keeper) => keepers.insert(keeper),
        None => !all,
    });
    Ok(targets)
}

/// A mount that another process has taken over.
pub(super) struct Replaced {
    pub(super) before: u32,
    pub(super) after: u32,
    pub(super) pause_ms: u64,
    /// Why the new process runs the program before.
    pub(super) failed_upgrade: Option<FailedUpgrade>,
}

/// Replaces the process of a mount, by one of the program `next` if there is one.
pub(super) fn replace(target: &Target, next: Option<&NextProgram>) -> Result<Replaced, Failure> {
    if !target.is_alive() {
        return Err(died(target));
    }
    let silent = || Failure::failed(format!("the process of {} does not answer", target.name.printable()));
    let before = status(target).ok_or_else(silent)?.pid;
    match ask(&target.socket, &target.volume, &Request::Restart { next: next.cloned() }, ANSWER_WITHIN) {
        Ok(reply) => reply.done()?,
        // It may end before it has answered.
        Err(error) if is_cut_off(&error) => {}
        Err(_) => return Err(silent()),
    }
    let since = Instant::now();
    while since.elapsed() < TAKEN_OVER_WITHIN {
        if !target.is_alive() {
            return Err(died(target));
        }
        let taken_over = status(target).filter(|status| status.pid != before && status.phase != Phase::Starting);
        if let Some((after, kept)) = taken_over.and_then(|status| Some((status.pid, status.kept?)))
            && let Some(pause_ms) = kept.last_pause_ms
        {
            return Ok(Replaced { before, after, pause_ms, failed_upgrade: kept.failed_upgrade });
        }
        thread::sleep(LOOK);
    }
    let what = format!("no process has taken {} over within 60 s", target.name.printable());
    Err(Failure::new(Reason::Deadline, what)
        .advise("slackwater status shows it; programs on the mount wait until then"))
}

/// The status of a mount; `None` while one process takes over from another.
fn status(target: &Target) -> Option<Status> {
    match ask(&target.socket, &target.volume, &Request::Status, ANSWER_WITHIN) {
        Ok(Reply::Status(status)) => Some(*status),
        Ok(_) | Err(_) => None,
    }
}
