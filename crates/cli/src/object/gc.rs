//! `slackwater gc`.

use std::process::ExitCode;

use serde_json::json;
use slackwater_control::exit::Failure;
use slackwater_control::object_volumes::{failure_of, locate};
use slackwater_control::outln;
use slackwater_control::output::terminal::print_json;
use slackwater_host::size;
use slackwater_object::{GcOptions, VolumeError, gc};

use crate::object::arguments::GcArguments;
use crate::object::show;
use crate::progress::Meter;

/// Deletes what no file uses.
///
/// # Errors
/// The URL is wrong, the store fails, or there is no volume.
///
/// # Blocking
/// For the store.
pub(crate) fn run(arguments: &GcArguments) -> Result<ExitCode, Failure> {
    let location = locate(&arguments.url, arguments.credentials.as_deref())?;
    let options = GcOptions { dry_run: arguments.dry_run, grace: arguments.grace };
    let mut meter = Meter::new("collecting");
    let report = gc(&location, &options, &mut |progress| show(&mut meter, &progress));
    drop(meter);
    let report = report.map_err(|error| match (&error, failure_of(&error, &location.to_string())) {
        (VolumeError::InUse(_), in_use) => in_use
            .advise("a mounted volume deletes unused objects by itself")
            .advise("if that process is dead or unreachable, first mount it with --take-over, and unmount it"),
        (_, other) => other,
    })?;
    if arguments.json {
        print_json(&json!({
            "version": 1,
            "dry_run": arguments.dry_run,
            "objects": report.objects,
            "deleted_objects": report.deleted_objects,
            "deleted_bytes": report.deleted_bytes,
            "young_objects": report.young_objects,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let verb = if arguments.dry_run { "Would delete" } else { "Deleted" };
    let bytes = size::text(report.deleted_bytes);
    outln!("{verb} {} of {} objects, {bytes}.", report.deleted_objects, report.objects);
    if report.young_objects > 0 {
        outln!("{} unused objects are younger than --grace and were kept.", report.young_objects);
    }
    Ok(ExitCode::SUCCESS)
}
