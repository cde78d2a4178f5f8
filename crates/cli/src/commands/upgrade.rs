//! `slackwater upgrade`, and the hidden `slackwater formats`, by which it asks the next program.

use std::path::PathBuf;

use slackwater_control::exit::Failure;
use slackwater_control::outln;
use slackwater_control::protocol::NextProgram;
use slackwater_host::Printable as _;

use crate::arguments::UpgradeArguments;
use crate::commands::long_requests::each;
use crate::commands::restart::{Replaced, kept, named, replace};
use crate::keeper::formats;

/// Replaces the processes of kept mounts by processes of another program; returns when they serve.
pub(crate) fn run(arguments: &UpgradeArguments) -> Result<(), Failure> {
    let targets = kept(&arguments.volumes, arguments.all)?;
    let path = program(arguments)?;
    let next = NextProgram { formats: formats::of(&path)?, path };
    let program = next.path.printable();
    each(&targets, |target, _| {
        let Replaced { before, after, pause_ms, failed_upgrade } = replace(target, Some(&next))?;
        let name = named(target);
        if let Some(failed) = failed_upgrade {
            let why = failed.error.printable();
            return Err(Failure::failed(format!("the upgrade of {name} to {program} failed: {why}"))
                .advise(format!("the program before serves it (pid {after}); nothing is lost")));
        }
        outln!("Upgraded {name} to {program}: pid {after} instead of {before}; programs waited for {pause_ms} ms.");
        Ok(())
    })
}

/// The next program, absolute and without symbolic links.
fn program(arguments: &UpgradeArguments) -> Result<PathBuf, Failure> {
    match &arguments.program {
        Some(path) => path
            .canonicalize()
            .map_err(|error| Failure::failed(format!("cannot open the program {}: {error}", path.printable()))),
        None => std::env::current_exe().ok().filter(|path| path.exists()).ok_or_else(|| {
            Failure::failed("the file of this program was removed").advise("name a program with --program")
        }),
    }
}

/// Prints the formats of this program.
pub(crate) fn formats() -> Result<(), Failure> {
    let text = serde_json::to_string(&formats::OWN)
        .map_err(|error| Failure::failed(format!("cannot print the formats: {error}")))?;
    outln!("{text}");
    Ok(())
}
