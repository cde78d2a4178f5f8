//! The commit, the platform and the features that artefacts are made of.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::command::output;
use super::target::Target;
use crate::cargo::target_directory;
use crate::folders::cannot;

/// The origin of artefacts.
pub(super) struct Release {
    pub(super) target: &'static Target,
    /// Whether the cargo feature `object` is on.
    pub(super) has_objects: bool,
    pub(super) version: &'static str,
    /// The time of the commit, in seconds since 1970.
    pub(super) epoch: u64,
    /// A directory for intermediate files.
    pub(super) work: PathBuf,
}

impl Release {
    pub(super) fn new(target: &'static Target, has_objects: bool) -> Result<Release, String> {
        let work = target_directory()?.join("dist-work").join(target.triple);
        fs::create_dir_all(&work).map_err(|error| cannot(&work, &error))?;
        Ok(Release { target, has_objects, version: env!("CARGO_PKG_VERSION"), epoch: epoch()?, work })
    }

    /// The time of the commit as `date` prints it.
    pub(super) fn date(&self, format: &str) -> Result<String, String> {
        let text =
            output(Command::new("date").args(["-u", "-d", &format!("@{}", self.epoch), format]).env("LC_ALL", "C"))?;
        Ok(text.trim().to_owned())
    }

    /// Adds the common environment of programs that write times.
    pub(super) fn dated<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("SOURCE_DATE_EPOCH", self.epoch.to_string()).env("LC_ALL", "C")
    }
}

/// `SOURCE_DATE_EPOCH`, or the time of the last commit. Without a history it is 1970.
fn epoch() -> Result<u64, String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().map_err(|_| format!("SOURCE_DATE_EPOCH is not a number of seconds: {epoch}"));
    }
    // The checkout may belong to another user than the one who builds.
    let log = output(Command::new("git").args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"]));
    match log.ok().and_then(|seconds| seconds.trim().parse().ok()) {
        Some(epoch) => Ok(epoch),
        None => {
            println!("no history of git here: all times are 1970; SOURCE_DATE_EPOCH sets another");
            Ok(0)
        }
    }
}
