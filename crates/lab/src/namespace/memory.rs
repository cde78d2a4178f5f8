//! Memory of an idle volume: what a process needs more with thousands of them mounted. Each measurement is a new process, so
//! that no memory that was freed before is used again.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use slackwater::UmountGrace;

use super::axes::Way;
use super::testbed::Testbed;
use crate::proc;

/// The hidden command.
const COMMAND: &str = "idle-volumes";

#[derive(Args, Debug)]
pub(crate) struct IdleVolumesArguments {
    /// How many
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    volumes: u32,
}

/// Prints the bytes of each volume with so many mounted.
pub(crate) fn run_idle_volumes(arguments: &IdleVolumesArguments) -> Result<()> {
    println!("{}", bytes_per_volume(arguments.volumes as usize)?);
    Ok(())
}

/// The same, from a new process.
pub(super) fn ask(volumes: usize) -> Result<f64> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    let output = command.args([COMMAND, &volumes.to_string()]).stdin(Stdio::null()).output();
    let output = output.context("cannot start a process")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8_lossy(&output.stdout).trim().parse().context("the process printed no number")
}

/// Measured in this process.
pub(super) fn bytes_per_volume(volumes: usize) -> Result<f64> {
    // Without the arena, which is a file.
    let anonymous_bytes = || proc::memory(std::process::id(), "RssAnon");
    let testbed = Testbed::new(UmountGrace::Expedited, volumes)?;
    // So that memory which is allocated once and stays is not counted.
    testbed.run(Way::AtOnce, 1, 0)?;
    let before = anonymous_bytes()?;
    testbed.mount(volumes, 0)?;
    let more = anonymous_bytes()?.saturating_sub(before);
    testbed.umount(Way::AtOnce, volumes, 0)?;
    Ok(more as f64 / volumes as f64)
}
