//! The command lines of the commands on object volumes, which every build has.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use slackwater_control::exit::EXIT_STATUSES;
use slackwater_control::spec::values::parse_duration;

use crate::help_texts::{FSCK_NOTES, GC_NOTES, MKFS_NOTES};

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{MKFS_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct MkfsArguments {
    /// Where to make it: a bucket that exists, and a prefix in it that no object has
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// A file with credentials, in place of those in the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = FSCK_NOTES)]
pub(crate) struct FsckArguments {
    /// The volume
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// A file with credentials, in place of those in the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// Repair what can be repaired; files without a name go to /lost+found
    ///
    /// Without it, nothing in the store is changed.
    #[arg(long)]
    pub(crate) repair: bool,
    /// Also read all file data and compare it with its checksums
    #[arg(long)]
    pub(crate) data: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{GC_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct GcArguments {
    /// The volume
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// A file with credentials, in place of those in the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Keep objects that became unused more recently: readers may still need them
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    pub(crate) grace: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
