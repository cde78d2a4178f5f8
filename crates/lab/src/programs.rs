//! System programs that write in cgroups, run to their end.
//!
//! Other programs write the files, not this process: a file that is open here is also open in every program that is just
//! being forked, and a volume with open files cannot be unmounted.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};

use crate::cgroups::Cgroup;

/// The cgroups of programs that run one after another.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Tenants {
    /// Each program has a new one, which is removed when the program ends.
    Fresh,
    /// All have the same one.
    Steady,
}

/// Runs programs that write a file synchronously, one after another.
pub(crate) struct Writer<'a> {
    /// Makes a cgroup with this name.
    pub(crate) cgroup: &'a (dyn Fn(&str) -> Result<Cgroup> + Sync),
    /// No other writer has this name.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// Blocks of 4 KiB that each program writes.
    pub(crate) blocks: u64,
}

impl Writer<'_> {
    /// Runs programs until `stop`; `ended` counts them.
    pub(crate) fn run(&self, tenants: Tenants, stop: &AtomicBool, ended: &AtomicU64) -> Result<()> {
        let Self { cgroup, name, .. } = self;
        let steady = cgroup(name)?;
        for number in 0_u32.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            match tenants {
                // Beside the steady one: a cgroup with processes has no controllers for cgroups below it.
                Tenants::Fresh => self.write_in(&cgroup(&format!("{name}-{number}"))?)?,
                Tenants::Steady => self.write_in(&steady)?,
            }
            ended.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write_in(&self, cgroup: &Cgroup) -> Result<()> {
        const SCRIPT: &str =
            "echo $$ > \"$0\" && exec dd if=/dev/zero of=\"$1\" bs=4k count=\"$2\" oflag=dsync conv=notrunc";
        let blocks = self.blocks.to_string();
        run(Command::new("sh").args(["-c", SCRIPT]).arg(cgroup.members()).arg(&self.file).arg(blocks))
    }
}

/// Lets a program write and sync a new file.
pub(crate) fn write(file: &Path) -> Result<()> {
    let of = format!("of={}", file.display());
    run(Command::new("dd").args(["if=/dev/zero", "bs=4k", "count=1", "conv=fsync"]).arg(of))
}

/// Lets a program of a cgroup write a file of 64 KiB, and end without a sync.
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
