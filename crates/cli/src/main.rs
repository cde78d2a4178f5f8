//! The `slackwater` command.
//!
//! ```text
//! arguments, exit              the command line, and how it ends
//! mount/                       a mount process, from two directories to a volume and back
//! control/, registry           how the command and the mount processes find and understand each other
//! client, progress             umount, sync, status
//! metrics/, log                what other programs are told: figures for Prometheus, and events
//! doctor, kernel, mountinfo    what the machine can do, and what is mounted
//! shell                        words for commands that are to be copied
//! detach, sys, terminal        what needs more than one line of the system or of the standard library
//! ```

mod arguments;
mod client;
mod control;
mod detach;
mod doctor;
mod exit;
mod kernel;
mod log;
mod metrics;
mod mount;
mod mountinfo;
mod pages;
mod progress;
mod registry;
mod shell;
mod sys;
mod terminal;

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
        Command::Mount(arguments) => return mount::run(arguments),
        Command::Umount(arguments) => client::umount(arguments)?,
        Command::Sync { mountpoint } => client::sync(mountpoint)?,
        Command::Status { mountpoint, json } => client::status(mountpoint.as_deref(), *json)?,
        Command::Doctor => return Ok(doctor::run()),
        Command::Completions { shell } => pages::print_completions(*shell),
        Command::Man => pages::print_manual()?,
    }
    Ok(ExitCode::SUCCESS)
}
