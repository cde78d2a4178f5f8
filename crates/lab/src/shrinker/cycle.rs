//! One cycle: a volume in memory is mounted, used a little, and unmounted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater::backend::{MemBackend, NewNode, Removal};
use slackwater::{Engine, File, SuperBlock, UmountOptions};

use crate::harness::{threads, time_us};
use crate::{interrupt, rig};

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
pub(super) fn run_lanes(
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
pub(super) fn cycle(engine: &Engine, worker: usize, times: &mut Times) -> Result<()> {
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
