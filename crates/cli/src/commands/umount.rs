//! `slackwater umount`.

use std::io::{self, BufRead, IsTerminal, Write};

use slackwater_control::daemon::SILENCE;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table;
use slackwater_control::outln;
use slackwater_control::protocol::{Reply, Request};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::UmountArguments;
use crate::commands::long_requests::{converse, each, process_died, targets};
use crate::commands::target::Target;
use crate::registry::Found;
use crate::volume::UnwrittenFiles;

/// Files listed on a terminal.
const LINES: usize = 50;

/// Unmounts; returns when everything is written back, or with the reason why not.
pub(crate) fn run(arguments: &UmountArguments) -> Result<(), Failure> {
    let targets = targets(&arguments.volumes, arguments.all, &arguments.at)?;
    each(&targets, |target, is_only| umount_one(target, arguments, is_only))
}

fn umount_one(target: &Target, arguments: &UmountArguments, is_only: bool) -> Result<(), Failure> {
    if let Some(found) = target.found.as_ref().filter(|found| !found.is_alive && !found.is_left_to_daemon()) {
        return if found.has_ended_in_order() { Ok(()) } else { Err(free_mountpoint(found)) };
    }
    if arguments.lazy {
        return converse(target, &Request::Detach, "detaching", is_only);
    }
    if arguments.discard && !may_discard(target, arguments.yes)? {
        return Err(Failure::failed("nothing was discarded; the volume is still mounted"));
    }
    let deadline_ms = u64::try_from(arguments.deadline.as_millis()).unwrap_or(u64::MAX);
    let UmountArguments { force, discard, park, .. } = *arguments;
    let request = Request::Umount { deadline_ms, force, discard, park };
    match converse(target, &request, "flushing", is_only) {
        Err(failure) if park && failure.reason == Reason::Left => {
            outln!("{failure}");
            Ok(())
        }
        outcome => outcome,
    }
}

/// Frees the mount point of a dead process. This is not an unmount, which would mean that everything is written back.
pub(super) fn free_mountpoint(found: &Found) -> Failure {
    let mountpoint = &found.entry.mountpoint;
    match mount_table::mount_at(mountpoint) {
        Some(mount) if mount_table::is_slackwater(&mount) => match detach(mountpoint) {
            Ok(()) => process_died(found).advise(format!("the mount point {} is free again", mountpoint.printable())),
            Err(error) => {
                process_died(found).advise(format!("cannot free the mount point {}: {error}", mountpoint.printable()))
            }
        },
        _ => Failure { reason: Reason::NotMounted, ..process_died(found) },
    }
}

/// Lists what would be lost, and asks.
fn may_discard(target: &Target, yes: bool) -> Result<bool, Failure> {
    let unclear = || Failure::failed("cannot determine what would be lost; nothing was discarded");
    // The process searches for names, so the answer takes longer.
    let mut conversation = target.open(&Request::WouldLose).map_err(|_| unclear())?;
    let reply = conversation.next(Some(SILENCE)).map_err(|_| unclear())?;
    let Reply::WouldLose { source, files, more_files, more_bytes, changes } = reply else {
        return Err(reply.refusal());
    };
    let source = target.found.as_ref().map_or(source.as_path(), |found| found.entry.source.name());
    let loss = UnwrittenFiles { files, more_files, more_bytes, changes };
    if loss.is_empty() {
        outln!("Everything is written back to {}: nothing would be lost.", source.printable());
        return Ok(true);
    }
    outln!("This data is not written back to {} and would be LOST:", source.printable());
    loss.lines(if io::stdout().is_terminal() { LINES } else { usize::MAX }).iter().for_each(|line| outln!("{line}"));
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("cannot ask: standard input is not a terminal")
            .advise("pass --yes to discard the data without asking"));
    }
    let mut answer = String::new();
    let question = match (loss.bytes(), loss.changes) {
        (bytes, 0) => format!("Discard {}? [y/N] ", size::text(bytes)),
        (bytes, changes) => format!("Discard {} and {changes} changes? [y/N] ", size::text(bytes)),
    };
    let asked = io::stdout()
        .write_all(question.as_bytes())
        .and_then(|()| io::stdout().flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    Ok(asked.is_ok() && is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::is_yes;

    #[test]
    fn only_y_and_yes_confirm() {
        assert!(["y", "yes\n", "Y\n", " Yes "].iter().all(|answer| is_yes(answer)));
        assert!(!["", "\n", "n", "no", "yess", "ye", "y y"].iter().any(|answer| is_yes(answer)));
    }
}
