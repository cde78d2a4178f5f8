//! System programs, run to their end.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cgroups::Cgroup;

/// Lets a program of a cgroup write a file of 64 KiB, and end without a sync. A file that this process had open would also be
/// open in every program that is just being forked, and a volume with open files cannot be unmounted.
pub(crate) fn write_unsynced(cgroup: &Cgroup, file: &Path) -> Result<()> {
    const SCRIPT: &str = "echo $$ > \"$0\" && exec dd if=/dev/zero of=\"$1\" bs=64k count=1 conv=notrunc";
    run(Command::new("sh").args(["-c", SCRIPT]).arg(cgroup.members()).arg(file))
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    // In a process group of its own: Ctrl-C is meant for this process, which waits for the program.
    let output = command.process_group(0).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
