//! The subjects: an engine with one form of registry and a thread that walks it, and the running kernel.
//!
//! A cycle mounts a volume in memory, uses it a little, and unmounts it. The kernel does the same with a ramfs, by system
//! calls, in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use slackwater::backend::{MemBackend, NewNode, Removal};
use slackwater::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerForm, ShrinkerRegistration};
use slackwater::{Engine, File, Forms, SuperBlock, Tunables, UmountOptions};
use slackwater_sync::rcu;

use super::{Load, Subject};
use crate::harness::threads::{self, beside, wait_until};
use crate::harness::time_us;
use crate::scratch::Scratch;
use crate::sys::in_own_mounts;
use crate::{interrupt, rig};

/// Size of the arena: more than the volumes of all workers hold at once, so nothing is written back.
const ARENA_BYTES: u64 = 24 << 20;
/// Duration of a slow scan.
const SCAN: Duration = Duration::from_millis(50);

pub(super) struct Testbed {
    pub(super) subject: Subject,
    pub(super) engine: Engine,
}

/// A shrinker without objects.
struct Nothing;

impl Shrinker for Nothing {
    fn name(&self) -> String {
        "nothing".to_owned()
    }

    fn count(&self, _: &ShrinkControl) -> Count {
        Count::Empty
    }

    fn scan(&self, _: &mut ShrinkControl) -> Scanned {
        Scanned::Stop
    }
}

/// A shrinker that always has an object, and scans slowly. It counts the scans that have begun.
struct Slow(Arc<AtomicU64>);

impl Shrinker for Slow {
    fn name(&self) -> String {
        "slow".to_owned()
    }

    fn count(&self, _: &ShrinkControl) -> Count {
        Count::Objects(1)
    }

    fn scan(&self, _: &mut ShrinkControl) -> Scanned {
        self.0.fetch_add(1, Ordering::Relaxed);
        thread::sleep(SCAN);
        Scanned::Freed(1)
    }
}

impl Testbed {
    pub(super) fn new(subject: Subject) -> Result<Self> {
        let default = rcu::Options::default();
        let (shrinkers, coalesce) = match subject {
            Subject::Rwsem => (ShrinkerForm::Rwsem, default.coalesce),
            Subject::Srcu => (ShrinkerForm::Srcu, default.coalesce),
            Subject::SrcuAtOnce => (ShrinkerForm::Srcu, Duration::ZERO),
            Subject::RefcountRcu => (ShrinkerForm::RefcountRcu, default.coalesce),
            Subject::Kernel => bail!("the kernel is no engine"),
        };
        let forms = Forms { shrinkers, rcu: rcu::Options { coalesce, ..default }, ..Forms::default() };
        Ok(Self { subject, engine: rig::engine_with_forms(ARENA_BYTES, Tunables::default(), forms)? })
    }

    /// Does `work` under `load`, which has ended when this returns.
    pub(super) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if load == Load::Quiet {
            return work();
        }
        let begun = Arc::new(AtomicU64::new(0));
        let slow = self.engine.register_shrinker(Box::new(Slow(Arc::clone(&begun))))?;
        let walk = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                self.engine.shrink(0);
            }
            Ok(())
        };
        let outcome = beside([walk], |_| {
            wait_until("the walks do not begin", || Ok(begun.load(Ordering::Relaxed) != 0))?;
            work()
        });
        self.unregister(slow)?;
        Ok(outcome?.0)
    }

    /// Cycles of `workers` at once: how many per second, with their times.
    pub(super) fn cycle(&self, workers: usize, time: Duration) -> Result<(f64, Times)> {
        run_lanes(workers, time, |times, worker| cycle(&self.engine, worker, times))
    }

    /// Lets `workers` register and unregister for `time`, each at least once.
    pub(super) fn register(&self, workers: usize, time: Duration) -> Result<Times> {
        let cycle = |times: &mut Times, _| {
            let registration = time_us(&mut times.first_us, || self.engine.register_shrinker(Box::new(Nothing)))?;
            time_us(&mut times.second_us, || self.unregister(registration))
        };
        Ok(run_lanes(workers, time, cycle)?.1)
    }

    fn unregister(&self, registration: ShrinkerRegistration) -> Result<()> {
        self.engine.unregister_shrinker(registration).ok().context("a scan cannot unregister its own shrinker")
    }
}

/// Microseconds of two operations that belong together: mount and unmount, or register and unregister.
#[derive(Clone, Default)]
pub(super) struct Times {
    pub(super) first_us: Vec<f64>,
    pub(super) second_us: Vec<f64>,
}

/// Lets `workers` do `cycle` at once for `time`, each at least once; `cycle` gets the number of its worker. Returns the cycles
/// per second with their times.
///
/// # Errors
/// That of the first worker that failed.
fn run_lanes(
    workers: usize,
    time: Duration,
    cycle: impl Fn(&mut Times, usize) -> Result<()> + Sync,
) -> Result<(f64, Times)> {
    let mut all: Vec<Times> = vec![Times::default(); workers];
    let span = threads::run_lanes(all.iter_mut().enumerate().collect(), |(worker, times)| {
        let end = Instant::now() + time;
        loop {
            interrupt::check()?;
            cycle(times, *worker)?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    })?;
    let mut sum = Times::default();
    for Times { mut first_us, mut second_us } in all {
        sum.first_us.append(&mut first_us);
        sum.second_us.append(&mut second_us);
    }
    Ok((sum.second_us.len() as f64 / span.as_secs_f64().max(1e-9), sum))
}

/// A cycle of one of the workers on `engine`.
fn cycle(engine: &Engine, worker: usize, times: &mut Times) -> Result<()> {
    let name = format!("ram-{worker}");
    let volume = time_us(&mut times.first_us, || rig::mount(engine, &name, Arc::new(MemBackend::new())))?;
    use_volume(&volume)?;
    time_us(&mut times.second_us, || volume.umount(UmountOptions::default())).context("cannot unmount")
}

/// Does what the stressor does in a ramfs.
fn use_volume(volume: &Arc<SuperBlock>) -> Result<()> {
    let root = volume.root()?;
    let file = File::open(&volume.make(&root, "mnt", NewNode::File, 0o600)?)?;
    volume.make(&root, "lnk", NewNode::Symlink("mnt".into()), 0o777)?;
    volume.lookup(&root, "lnk")?.attr();
    volume.remove(&root, "lnk", Removal::File)?;
    volume.remove(&root, "mnt", Removal::File)?;
    drop(file);
    volume.make(&root, "mnt", NewNode::Directory, 0o700)?;
    volume.lookup(&root, "mnt")?.attr();
    volume.remove(&root, "mnt", Removal::Directory)?;
    Ok(())
}

/// A directory for each worker.
pub(super) struct Kernel(Vec<PathBuf>);

impl Kernel {
    /// Tries a cycle.
    ///
    /// # Errors
    /// The process is not root.
    pub(super) fn new(home: &Scratch, workers: usize) -> Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "only root may mount");
        let names = (0..workers).map(|worker| home.subdirectory(&format!("ramfs-{worker}")));
        let kernel = Self(names.collect::<Result<_>>()?);
        kernel.run(1, Duration::ZERO)?;
        Ok(kernel)
    }

    /// Cycles of `workers` at once: how many per second, with their times.
    pub(super) fn run(&self, workers: usize, time: Duration) -> Result<(f64, Times)> {
        in_own_mounts(|| run_lanes(workers, time, |times, worker| ramfs_cycle(&self.0[worker], times)))
    }
}

fn ramfs_cycle(directory: &Path, times: &mut Times) -> Result<()> {
    let mount = || mount("none", directory, "ramfs", MountFlags::empty(), None).context("cannot mount a ramfs");
    time_us(&mut times.first_us, mount)?;
    let used = use_ramfs(directory);
    let unmount = || {
        loop {
            match unmount(directory, UnmountFlags::empty()) {
                // A child that another thread has just forked may have a copy of the file.
                Err(Errno::BUSY) => interrupt::check()?,
                outcome => return outcome.context("cannot unmount a ramfs"),
            }
        }
    };
    used.and(time_us(&mut times.second_us, unmount))
}

/// Does what the stressor does.
fn use_ramfs(directory: &Path) -> Result<()> {
    let (name, link) = (directory.join("mnt"), directory.join("lnk"));
    let file = fs::File::create_new(&name)?;
    file.metadata()?;
    symlink(directory, &link)?;
    fs::symlink_metadata(&link)?;
    fs::remove_file(&link)?;
    fs::remove_file(&name)?;
    drop(file);
    fs::create_dir(&name)?;
    fs::symlink_metadata(&name)?;
    fs::remove_dir(&name)?;
    Ok(())
}
