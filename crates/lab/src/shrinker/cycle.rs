//! One cycle: a volume in memory is mounted, used a little, and unmounted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater::backend::{MemBackend, NewNode, Removal};
use slackwater::{Engine, File, SuperBlock, UmountOptions};

use crate::samples::Samples;
use crate::{interrupt, lanes, rig};

/// The parts of a cycle.
#[derive(Clone, Default)]
pub(crate) struct Times {
    pub(crate) mount: Samples,
    pub(crate) umount: Samples,
}

/// What several workers did at once.
pub(crate) struct Cycles {
    pub(crate) per_s: f64,
    pub(crate) times: Times,
}

/// Has `workers` make cycles for `time`, one at least; each is told its number.
///
/// # Errors
/// The first that a worker met.
pub(crate) fn run_lanes(
    workers: usize,
    time: Duration,
    cycle: impl Fn(&mut Times, usize) -> Result<()> + Sync,
) -> Result<Cycles> {
    let mut all: Vec<Times> = vec![Times::default(); workers];
    let lanes: Vec<_> = all.iter_mut().enumerate().collect();
    let span = lanes::run(lanes, |(worker, times)| {
        let end = Instant::now() + time;
        loop {
            interrupt::check()?;
            cycle(times, *worker)?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    })?;
    let mut times = Times::default();
    for Times { mount, umount } in all {
        times.mount.append(mount);
        times.umount.append(umount);
    }
    Ok(Cycles { per_s: times.umount.count() as f64 / span.as_secs_f64().max(1e-9), times })
}

/// Cycles of `workers` at once on one engine.
///
/// # Errors
/// The first that a worker met.
pub(crate) fn run(engine: &Engine, workers: usize, time: Duration) -> Result<Cycles> {
    run_lanes(workers, time, |times, worker| cycle(engine, worker, times))
}

fn cycle(engine: &Engine, worker: usize, times: &mut Times) -> Result<()> {
    let name = format!("ram-{worker}");
    let volume = times.mount.time(|| rig::mount(engine, &name, Arc::new(MemBackend::new())))?;
    use_volume(&volume)?;
    times.umount.time(|| volume.umount(UmountOptions::default())).context("cannot unmount")
}

/// As the stressor does with a ramfs.
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
