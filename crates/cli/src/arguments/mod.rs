//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Id, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use slackwater_control::exit::{EXIT_STATUSES, Failure};
use slackwater_control::spec::values::{Address, Age, parse_duration, parse_interval};
use slackwater_control::spec::{MountSpec, ServerSpec, fields};
use slackwater_host::Printable as _;

use crate::containers::arguments::{CsiArguments, DockerPluginArguments};
use crate::help_texts::{
    COMPLETIONS_NOTES, DAEMON_NOTES, DOCTOR_NOTES, EVENTS_NOTES, EXAMPLES, LS_NOTES, MAN_NOTES, MOUNT_NOTES,
    RESTART_NOTES, SET_NOTES, SET_USAGE, STATUS_NOTES, SYNC_NOTES, TENANTS_NOTES, TOP_NOTES, UMOUNT_NOTES,
    UPGRADE_NOTES,
};
use crate::object::arguments::{FsckArguments, GcArguments, MkfsArguments};
use crate::registry::Registry;

/// Mount a directory or an object store through a write-back cache.
///
/// Writes complete at memory speed; Slackwater writes the data back in the background. Unmounting loses nothing, and
/// neither does killing the process.
#[derive(Parser, Debug)]
#[command(name = "slackwater", version, max_term_width = 100, after_help = format!("{EXAMPLES}\n{EXIT_STATUSES}"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Mount the directory or object volume SOURCE at MOUNTPOINT through the cache
    Mount(Box<MountArguments>),
    /// Write everything back to the source and unmount
    Umount(UmountArguments),
    /// Make everything written so far durable, shared mappings included
    Sync(SyncArguments),
    /// Replace the process of a mount with --keep, without an unmount
    Restart(RestartArguments),
    /// Replace the process of a mount with --keep by one of another version of this program
    Upgrade(UpgradeArguments),
    /// Print the versions of the formats that a mount with --keep hands to its next process
    #[command(hide = true)]
    Formats,
    /// Serve as another process of this program has specified
    #[command(hide = true)]
    Serve {
        /// The inherited descriptor with the specification
        specification: i32,
        /// The command, for people
        shown: Vec<OsString>,
    },
    /// Serve many volumes in one process, with one cache
    Daemon(Box<DaemonArguments>),
    /// List the volumes of a daemon
    #[command(after_help = format!("{LS_NOTES}\n\n{EXIT_STATUSES}"))]
    Ls(QueryArguments),
    /// List the tenants of a daemon, each with its data on all volumes
    #[command(after_help = format!("{TENANTS_NOTES}\n\n{EXIT_STATUSES}"))]
    Tenants(QueryArguments),
    /// Change settings of a running volume or tenant of a daemon
    Set(SetArguments),
    /// Follow the events of a daemon
    #[command(after_help = format!("{EVENTS_NOTES}\n\n{EXIT_STATUSES}"))]
    Events(QueryArguments),
    /// Show what is mounted and how much data is not yet written back
    Status(StatusArguments),
    /// Watch volumes and tenants live: unwritten data, write-back rates, slowed writers
    Top(TopArguments),
    /// Make an empty volume in an object store
    Mkfs(MkfsArguments),
    /// Check an object volume, and repair it
    Fsck(FsckArguments),
    /// Delete unused objects of an object volume that is not mounted
    Gc(GcArguments),
    /// Serve the Container Storage Interface: volumes for Kubernetes, mounted by a daemon
    Csi(Box<CsiArguments>),
    /// Serve volumes to Docker and Podman, mounted by a daemon
    DockerPlugin(Box<DockerPluginArguments>),
    /// Check this machine, or an object store, and say what each missing feature affects
    #[command(after_help = DOCTOR_NOTES)]
    Doctor {
        /// The object volume, or the place for one, whose store to check
        #[arg(value_name = "URL")]
        url: Option<String>,
        /// A file with credentials for the store, in place of those in the environment
        #[arg(long, value_name = "FILE", requires = "url")]
        credentials: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_NOTES)]
    Completions {
        /// The shell to print it for
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = MAN_NOTES)]
    Man,
}

/// Options of `mount` that apply to a whole process, and so conflict with `--daemon`.
fn of_the_process() -> Vec<Id> {
    fields::ids::<ServerSpec>().into_iter().chain(["foreground", "background", "keep", "wait"].map(Id::from)).collect()
}

/// The option that selects a daemon.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DaemonSocket {
    /// Socket of the daemon [default: daemon.sock in the runtime directory, which is /run/slackwater for root]
    #[arg(long, value_name = "PATH", env = "SLACKWATER_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
}

impl DaemonSocket {
    /// The socket's absolute path.
    ///
    /// # Errors
    /// The option's value is not a path.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.socket.clone().map_or_else(Registry::default_socket, Ok)?;
        std::path::absolute(&path).map_err(|error| Failure::usage(format!("--socket {}: {error}", path.printable())))
    }
}

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = format!("{DAEMON_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct DaemonArguments {
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Configuration file: cache, tenants, and the volumes to mount at start
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerSpec,
    /// Age at which dirty data is written back, of volumes that have none of their own [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) dirty_expire: Option<Age>,
    /// Serve a page with live figures at http://ADDRESS/, such as 9811; for other machines, add --web-token-file
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) web: Option<Address>,
    /// Show figures on the page only to those who have the token in FILE, which other users cannot read
    #[arg(long, value_name = "FILE")]
    pub(crate) web_token_file: Option<PathBuf>,
    /// Let the volumes outlive the daemon: after a crash or an upgrade another process serves them, and programs wait
    ///
    /// A second process, the keeper, holds everything that must stay open, as for mount --keep. Volumes in directories
    /// only.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Set by the keeper in the process that it starts, whose standard input is their socket
    #[arg(long, hide = true)]
    pub(crate) kept: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct QueryArguments {
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{STATUS_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct StatusArguments {
    /// Show only this volume: its mount point or, with --socket, its name
    #[arg(value_name = "MOUNTPOINT|NAME")]
    pub(crate) volume: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{SET_NOTES}\n\n{EXIT_STATUSES}"), override_usage = SET_USAGE)]
pub(crate) struct SetArguments {
    /// The volume, unless --tenant is given, followed by the settings
    #[arg(required = true, value_name = "NAME|KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Change this tenant, written as for --tenant-limit of mount; a pod also as pod:UID
    #[arg(long)]
    pub(crate) tenant: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{SYNC_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct SyncArguments {
    /// Mount points of the volumes, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Sync all volumes
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{RESTART_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct RestartArguments {
    /// Mount points of the volumes
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Restart all mounts of this user that are kept
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{UPGRADE_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct UpgradeArguments {
    /// The program to upgrade to [default: the one that runs this command]
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Mount points of the volumes
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Upgrade all mounts of this user that are kept
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
}

#[derive(Args, Clone, Debug, Serialize, Deserialize)]
#[command(after_help = format!("{MOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct MountArguments {
    /// The source, which holds the data: a directory, or the URL of an object volume
    ///
    /// A directory: programs should change the files through the mount only. Changes that are made in SOURCE directly
    /// are noticed within a second. Where the mount has unwritten data of the same file, that data is written over the
    /// change, with a warning.
    ///
    /// An object volume, made by `slackwater mkfs`: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or
    /// file:///DIRECTORY. Credentials and endpoints come from the environment, as `slackwater mkfs --help` says.
    pub(crate) source: PathBuf,
    /// Where to mount it: a directory outside SOURCE, whose contents are hidden while it is mounted
    pub(crate) mountpoint: PathBuf,
    #[command(flatten)]
    pub(crate) spec: MountSpec,
    /// A file with the credentials of an object volume, in place of those in the environment
    ///
    /// It has lines such as AWS_ACCESS_KEY_ID=KEY, and no other user may access it. Each process of the mount reads it
    /// again.
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// Stay in the foreground until it is unmounted [default]
    #[arg(long, conflicts_with = "background")]
    pub(crate) foreground: bool,
    /// Return once it is mounted
    #[arg(long)]
    pub(crate) background: bool,
    /// Keep the mount when its process dies: another process takes it over, and programs wait meanwhile
    ///
    /// A second process, the keeper, holds everything that must stay open, and starts the mount process again after a
    /// crash or with `slackwater restart`. Programs on the mount see a pause and no error. It needs a source that is a
    /// directory; requests come over /dev/fuse. Where files are not found by lasting handles (for users other than root,
    /// and on overlayfs or FUSE), the keeper has a descriptor for each file that the kernel knows.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Wait until no other process has SOURCE mounted, instead of failing or adding a mount point at once
    #[arg(long)]
    pub(crate) wait: bool,
    /// Mount it in the running daemon
    ///
    /// The volume uses the daemon's cache and tenants. The command returns once it is mounted.
    #[arg(long, conflicts_with_all = of_the_process())]
    pub(crate) daemon: bool,
    /// Name of the volume in the daemon [default: the last component of MOUNTPOINT]
    #[arg(long, value_name = "NAME", requires = "daemon")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
    /// Comma-separated options as in /etc/fstab, such as ro,cache=1GiB
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Set by `--background` in the process that it starts
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Set by the keeper in the process that it starts, whose standard input is their socket
    #[arg(long, hide = true)]
    pub(crate) kept: bool,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{UMOUNT_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct UmountArguments {
    /// Mount points of the volumes, or their names in a daemon
    #[arg(required_unless_present = "all", value_name = "MOUNTPOINT|NAME")]
    pub(crate) volumes: Vec<PathBuf>,
    /// Unmount all volumes
    #[arg(long, conflicts_with = "volumes")]
    pub(crate) all: bool,
    /// Give up after this time; without --force or --park, the volume then stays mounted and usable
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) deadline: Duration,
    /// Unmount even if the volume is in use
    ///
    /// Later requests of the programs that use it fail with EIO. Their written data is kept.
    #[arg(long)]
    pub(crate) force: bool,
    /// At the deadline, unmount and keep the unwritten data in the cache for the next mount of the source
    ///
    /// The next mount goes on from there. The data is lost if the machine restarts before that.
    #[arg(long, conflicts_with_all = ["discard", "lazy"])]
    pub(crate) park: bool,
    /// Discard unwritten data after listing it and asking
    ///
    /// No other unmount loses data.
    #[arg(long)]
    pub(crate) discard: bool,
    /// Discard without asking
    #[arg(long, requires = "discard")]
    pub(crate) yes: bool,
    /// Detach the volume from its mount point at once, and return
    ///
    /// The volume ends once no program uses it and everything is written back.
    #[arg(long, conflicts_with_all = ["force", "discard", "deadline"])]
    pub(crate) lazy: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{TOP_NOTES}\n\n{EXIT_STATUSES}"))]
pub(crate) struct TopArguments {
    /// Time between two samples; rates are averages over this time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Take two samples, print one table, and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    /// Do not use colours; also set by NO_COLOR and TERM=dumb
    #[arg(long)]
    pub(crate) no_color: bool,
    #[command(flatten)]
    pub(crate) at: DaemonSocket,
}

#[cfg(test)]
mod all_sources;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn definition_is_consistent_and_documents_exit_statuses() {
        let mut command = Arguments::command();
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("5  not mounted"), "{help}");
    }
}
