//! Memory of an idle volume: what a process has more of with thousands of them mounted. A process of its own, so that nothing
//! that was freed before is used again.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use slackwater::UmountGrace;

use super::axes::Way;
use super::testbed::Testbed;

/// The hidden command.
const COMMAND: &str = "idle-volumes";

#[derive(Args, Debug)]
pub(crate) struct IdleVolumesArguments {
    /// How many
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    volumes: u32,
}

/// Says how many bytes a volume takes, with so many mounted.
pub(crate) fn run_idle_volumes(arguments: &IdleVolumesArguments) -> Result<()> {
    println!("{}", bytes_per_volume(arguments.volumes as usize)?);
    Ok(())
}

/// The same, asked of a new process.
pub(crate) fn ask(volumes: usize) -> Result<f64> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    let output = command.args([COMMAND, &volumes.to_string()]).stdin(Stdio::null()).output();
    let output = output.context("cannot start a process")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8_lossy(&output.stdout).trim().parse().context("it did not say how many bytes")
}

/// Measured in this process.
pub(super) fn bytes_per_volume(volumes: usize) -> Result<f64> {
    let testbed = Testbed::new(UmountGrace::Expedited, volumes)?;
    // What is made once and stays is there afterwards.
    testbed.run(Way::AtOnce, 1, 0)?;
    let before = anonymous_bytes()?;
    testbed.mount(volumes, 0)?;
    let more = anonymous_bytes()?.saturating_sub(before);
    testbed.umount(Way::AtOnce, volumes, 0)?;
    Ok(more as f64 / volumes as f64)
}

/// Memory of this process that is no file's: without the arena, which is one.
fn anonymous_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read the status of this process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in it")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("RssAnon is no number")?;
    Ok(kib << 10)
}
