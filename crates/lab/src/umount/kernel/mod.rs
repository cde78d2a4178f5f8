//! The running kernel under the same kind of load: ext4 on loop devices, and cgroups that come and go.

mod loops;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::loops::{Image, LoopMount};
use super::axes::Load;
use crate::cgroups::{Cgroup, Hierarchy};
use crate::options::Options;
use crate::rounds;
use crate::scratch::Scratch;

/// Mounts in the background.
const BACKGROUND: usize = 4;

/// Unmounts of the kernel.
pub(crate) struct Kernel {
    /// What cgroups there are to it.
    pub(crate) about: String,
    /// Milliseconds by load, in the order of [`Load::ALL`].
    ms: [Vec<f64>; 3],
}

impl Kernel {
    pub(crate) fn ms(&self, load: Load) -> &[f64] {
        Load::ALL.iter().zip(&self.ms).find(|(other, _)| **other == load).map_or(&[], |(_, ms)| ms)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let one = |load: &Load| serde_json::json!({ "load": load.name(), "ms": self.ms(*load) });
        serde_json::json!({ "about": self.about, "umounts": Load::ALL.iter().map(one).collect::<Vec<_>>() })
    }
}

/// Unmounts an idle target in each round under each load; a writer writes `blocks` at a time.
///
/// # Errors
/// Something of it is not permitted here, or not there: the message says what.
pub(crate) fn measure(options: &Options, blocks: u64, home: &Path) -> Result<Kernel> {
    ensure!(rustix::process::geteuid().is_root(), "only root may mount");
    let hierarchy = Hierarchy::unified()?;
    let scratch = Scratch::in_folder(home)?;
    let cgroup = hierarchy.make()?;
    let images = (0..=BACKGROUND).map(|number| Image::new(scratch.path(), number)).collect::<Result<Vec<_>>>()?;
    let (target, background) = images.split_first().context("there is no image")?;
    let mounts = background.iter().map(Image::mount).collect::<Result<Vec<_>>>()?;
    let mut ms: [Vec<f64>; 3] = Default::default();
    rounds::run("kernel", options.rounds(), Load::ALL.len(), |_, turn| {
        for _ in 0..options.pick(2, 1) {
            ms[turn].push(under(Load::ALL[turn], blocks, &mounts, &cgroup, || umount(target))?);
        }
        Ok(())
    })?;
    mounts.into_iter().try_for_each(LoopMount::umount)?;
    Ok(Kernel { about: cgroup.about().to_owned(), ms })
}

/// Mounts, has one file written and synced, and unmounts; the milliseconds of that.
///
/// Another program writes it: a file that is open here is open as well in every writer that is just being started, and
/// what is open cannot be unmounted.
fn umount(image: &Image) -> Result<f64> {
    let mounted = image.mount()?;
    let file = mounted.path().join("file");
    run(Command::new("dd").arg(format!("of={}", file.display())).args([
        "if=/dev/zero",
        "bs=4k",
        "count=1",
        "conv=fsync",
    ]))?;
    let start = Instant::now();
    mounted.umount()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Does `work` while each of `mounts` has a writer as `load` says.
fn under<T>(
    load: Load,
    blocks: u64,
    mounts: &[LoopMount],
    cgroup: &Cgroup,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let stop = AtomicBool::new(load == Load::Idle);
    thread::scope(|scope| {
        let start = |(number, mounted): (usize, &LoopMount)| {
            let (stop, file) = (&stop, mounted.path().join("churned"));
            scope.spawn(move || write_until(stop, load, cgroup, &format!("writer-{number}"), (&file, blocks)))
        };
        let writers: Vec<_> = mounts.iter().enumerate().map(start).collect();
        let outcome = work();
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        outcome
    })
}

/// A program that writes its blocks synchronously, again and again: each time in a new cgroup, or always in one.
fn write_until(stop: &AtomicBool, load: Load, all: &Cgroup, name: &str, what: (&Path, u64)) -> Result<()> {
    let steady = all.child(name)?;
    for number in 0_u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match load {
            // Beside the other: what has processes in it has no controllers for those below it.
            Load::Churn => write_in(&all.child(&format!("{name}-{number}"))?, what)?,
            Load::Control | Load::Idle => write_in(&steady, what)?,
        }
    }
    Ok(())
}

fn write_in(cgroup: &Cgroup, (file, blocks): (&Path, u64)) -> Result<()> {
    const SCRIPT: &str =
        "echo $$ > \"$0\" && exec dd if=/dev/zero of=\"$1\" bs=4k count=\"$2\" oflag=dsync conv=notrunc";
    run(Command::new("sh").args(["-c", SCRIPT]).arg(cgroup.members()).arg(file).arg(blocks.to_string()))
}

/// Runs it to its end.
fn run(command: &mut Command) -> Result<()> {
    // A group of its own: Ctrl-C is for this process, which waits for it.
    let output = command.process_group(0).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
