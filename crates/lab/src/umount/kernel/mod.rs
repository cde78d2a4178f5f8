//! The running kernel under the same kind of load: ext4 on loop devices, and cgroups that come and go.

mod loops;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::loops::{Image, LoopMount};
use super::axes::Load;
use crate::cgroups::{Cgroup, Hierarchy};
use crate::options::Options;
use crate::programs::{self, Tenants, Writer};
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
    programs::write(&mounted.path().join("file"))?;
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
            let tenants = if load == Load::Churn { Tenants::Fresh } else { Tenants::Steady };
            let written = AtomicU64::new(0);
            scope.spawn(move || {
                let make = |name: &str| cgroup.child(name);
                let writer = Writer { cgroup: &make, name: format!("writer-{number}"), file, blocks };
                writer.run(tenants, stop, &written)
            })
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
