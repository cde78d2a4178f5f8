//! The `slackwater` command.
//!
//! ```text
//! arguments/        the command line; help_texts has the notes of its help
//! commands/         one file or folder per command, among them the mount process and the daemon
//! server/           a process that serves volumes, until its end or its takeover
//! control           the other side of `slackwater_control`: answers to requests
//! volume/           a volume as a mount process and a daemon serve it
//! keeper/           a mount that outlives its process
//! source/           a directory or an object volume, and its one owner
//! containers/       the command lines of the plugins of container platforms (cargo feature `containers`)
//! object/           volumes in object stores (cargo feature `object`), and the commands on them
//! registry          the mounts of this user, and how commands find them
//! pods/             pods and containers behind tenants, and their names
//! http              a small HTTP server
//! metrics/, log/    metrics for Prometheus, and logged events
//! progress          the progress of a command
//! os/               descriptors, processes, namespaces
//! ```
//!
//! The crate `slackwater_control` has the parts that plugins need too: the protocol, the options of a volume, failures.

mod arguments;
mod commands;
mod containers;
mod control;
mod help_texts;
mod http;
mod keeper;
mod log;
mod metrics;
mod object;
mod os;
mod pods;
mod progress;
mod registry;
mod server;
mod source;
mod volume;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use slackwater_control::errln;
use slackwater_control::exit::Failure;

use crate::arguments::{Arguments, Command};
use crate::commands::{
    completions, daemon, doctor, events, ls, man, mount, restart, set, status, sync, tenants, top, umount,
    umount_helper, upgrade,
};
use crate::server::start::Start;

fn main() -> ExitCode {
    os::sys::share_heaps();
    log::start();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    if mount::mount_helper::NAMES.iter().any(|helper| name == *helper) {
        return mount::mount_helper::run(words);
    }
    if umount_helper::NAMES.iter().any(|helper| name == *helper) {
        return umount_helper::run(words);
    }
    match run(&Arguments::parse().command) {
        Ok(code) => code,
        Err(failure) => {
            errln!("slackwater: {failure}");
            ExitCode::from(failure.reason.status())
        }
    }
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Mount(arguments) if arguments.daemon => mount::in_daemon::run(arguments)?,
        Command::Mount(arguments) => return mount::run(arguments),
        Command::Umount(arguments) => umount::run(arguments)?,
        Command::Sync(arguments) => sync::run(arguments)?,
        Command::Restart(arguments) => restart::run(arguments)?,
        Command::Upgrade(arguments) => upgrade::run(arguments)?,
        Command::Formats => upgrade::formats()?,
        Command::Serve { specification, .. } => {
            return match Start::inherited(*specification)? {
                Start::Mount(arguments) => mount::serve(*arguments),
                Start::Daemon(arguments) => daemon::run(&arguments),
            };
        }
        Command::Daemon(arguments) => return daemon::run(arguments),
        Command::Ls(arguments) => ls::run(arguments)?,
        Command::Tenants(arguments) => tenants::run(arguments)?,
        Command::Set(arguments) => set::run(arguments)?,
        Command::Events(arguments) => events::run(arguments)?,
        Command::Status(arguments) => status::run(arguments)?,
        Command::Top(arguments) => top::run(arguments)?,
        Command::Mkfs(arguments) => object::mkfs(arguments)?,
        Command::Fsck(arguments) => return object::fsck(arguments),
        Command::Gc(arguments) => return object::gc(arguments),
        Command::Csi(arguments) => containers::csi(arguments)?,
        Command::DockerPlugin(arguments) => containers::docker_plugin(arguments)?,
        Command::Doctor { url, credentials } => return doctor::run(url.as_deref(), credentials.as_deref()),
        Command::Completions { shell } => completions::run(*shell),
        Command::Man => man::run()?,
    }
    Ok(ExitCode::SUCCESS)
}
