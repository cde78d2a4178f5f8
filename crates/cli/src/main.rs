//! The `slackwater` command.
//!
//! ```text
//! arguments, exit              the command line, and how it ends
//! daemon/                      many volumes in one process, and the commands for it
//! mount/                       a mount process, from two directories to a volume and back
//! control/, registry           how the command and the mount processes find and understand each other
//! dying                        killed processes that cannot end by themselves
//! private_dir                  a directory of the user's own where everyone may make files
//! client, target, progress     umount, sync, status
//! look, top/                   how all mounts are, once or again and again
//! metrics/, log                what other programs are told: figures for Prometheus, and events
//! doctor, kernel, mountinfo    what the machine can do, and what is mounted
//! shell                        words for commands that are to be copied
//! at_once                      one job for each of several
//! abandon                      the end of a process whose source hangs
//! detach, sys, terminal        what needs more than one line of the system or of the standard library
//! ```

mod abandon;
mod arguments;
mod at_once;
mod client;
mod control;
mod daemon;
#[cfg(test)]
mod damaged;
mod detach;
mod doctor;
mod dying;
mod exit;
mod kernel;
mod log;
mod look;
mod metrics;
mod mount;
mod mountinfo;
mod pages;
mod private_dir;
mod progress;
mod registry;
mod shell;
mod sys;
mod target;
mod terminal;
mod top;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::exit::Failure;
use crate::terminal::say;

fn main() -> ExitCode {
    log::start();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    if Path::new(&name).file_name().is_some_and(|name| name == mount::helper::NAME) {
        return mount::helper::run(words);
    }
    match run(&Arguments::parse().command) {
        Ok(code) => code,
        Err(failure) => {
            say!("slackwater: {failure}");
            ExitCode::from(failure.reason.status())
        }
    }
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Mount(arguments) if arguments.daemon => daemon::client::mount(arguments)?,
        Command::Mount(arguments) => return mount::run(arguments),
        Command::Umount(arguments) => client::umount(arguments)?,
        Command::Sync(arguments) => client::sync(arguments)?,
        Command::Daemon(arguments) => return daemon::run(arguments),
        Command::Ls(arguments) => daemon::client::ls(arguments)?,
        Command::Tenants(arguments) => daemon::client::tenants(arguments)?,
        Command::Set(arguments) => daemon::client::set(arguments)?,
        Command::Events(arguments) => daemon::client::events(arguments)?,
        Command::Status(arguments) => client::status(arguments)?,
        Command::Top(arguments) => top::run(arguments)?,
        Command::Doctor => return Ok(doctor::run()),
        Command::Completions { shell } => pages::print_completions(*shell),
        Command::Man => pages::print_manual()?,
    }
    Ok(ExitCode::SUCCESS)
}
