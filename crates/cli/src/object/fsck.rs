//! `slackwater fsck`.
//!
//! Exit statuses are those of fsck(8), so that scripts and systemd understand them.

use std::process::ExitCode;

use serde_json::json;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::object_volumes::{failure_of, locate};
use slackwater_control::output::terminal::print_json;
use slackwater_control::{errln, outln};
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_object::{FsckOptions, FsckReport, VolumeError, fsck};

use crate::object::arguments::FsckArguments;
use crate::object::show;
use crate::progress::Meter;

const NO_ERRORS: u8 = 0;
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;
const OPERATIONAL: u8 = 8;

/// Checks a volume.
///
/// # Errors
/// The URL is wrong. All other failures are printed, and show in the status.
///
/// # Blocking
/// For the store.
pub(crate) fn run(arguments: &FsckArguments) -> Result<ExitCode, Failure> {
    match check(arguments) {
        Ok(report) => {
            print(arguments, &report)?;
            Ok(ExitCode::from(status(&report)))
        }
        Err(failure) if failure.reason == Reason::Usage => Err(failure),
        Err(failure) => {
            errln!("slackwater: {failure}");
            Ok(ExitCode::from(OPERATIONAL))
        }
    }
}

fn check(arguments: &FsckArguments) -> Result<FsckReport, Failure> {
    let location = locate(&arguments.url, arguments.credentials.as_deref())?;
    let options = FsckOptions { repair: arguments.repair, data: arguments.data };
    let mut meter = Meter::new("checking");
    let report = fsck(&location, &options, &mut |progress| show(&mut meter, &progress));
    drop(meter);
    report.map_err(|error| match (&error, failure_of(&error, &location.to_string())) {
        (VolumeError::InUse(_), in_use) => in_use
            .advise("--repair needs a volume that is not mounted; a check without --repair does not")
            .advise("if that process is dead or unreachable, first mount it with --take-over, and unmount it"),
        (_, other) => other,
    })
}

fn status(report: &FsckReport) -> u8 {
    match report {
        FsckReport { errors_left: 1.., .. } => ERRORS_LEFT,
        FsckReport { findings, more_findings: 0, .. } if findings.is_empty() => NO_ERRORS,
        _ => REPAIRED,
    }
}

fn print(arguments: &FsckArguments, report: &FsckReport) -> Result<(), Failure> {
    if arguments.json {
        let mut value = serde_json::to_value(report).unwrap_or_default();
        value["version"] = json!(1);
        return print_json(&value);
    }
    let FsckReport { files, directories, segments, live_bytes, findings, more_findings, errors_left, .. } = report;
    for finding in findings {
        let state = if finding.is_repaired { "repaired" } else { "ERROR" };
        outln!("{state:8}  {}", finding.text.printable());
    }
    if *more_findings > 0 {
        outln!("and {more_findings} more");
    }
    outln!("{files} files, {directories} directories, {} in {segments} segments", size::text(*live_bytes));
    match (findings.is_empty() && *more_findings == 0, errors_left) {
        (true, _) => outln!("No errors."),
        (false, 0) => outln!("All errors are repaired."),
        (false, 1) if !arguments.repair => outln!("1 error is left; --repair repairs what can be repaired."),
        (false, left) if !arguments.repair => outln!("{left} errors are left; --repair repairs what can be repaired."),
        (false, left) => outln!("{left} errors could not be repaired."),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackwater_object::{FsckFinding, Severity};

    use super::*;

    #[test]
    fn statuses_are_those_of_fsck() {
        let clean = FsckReport::default();
        assert_eq!(status(&clean), 0);
        let text = "inode 7 has no name".into();
        let finding = FsckFinding { severity: Severity::Structure, text, is_repaired: true };
        let repaired = FsckReport { findings: vec![finding], ..FsckReport::default() };
        assert_eq!(status(&repaired), 1);
        assert_eq!(status(&FsckReport { more_findings: 1, ..FsckReport::default() }), 1);
        assert_eq!(status(&FsckReport { errors_left: 1, ..repaired }), 4);
    }
}
