//! Volumes that are mounted to be unmounted, and what that takes.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater::{DrainStats, File, Memcg, SuperBlock, UmountError, UmountOptions};

use super::axes::{Load, Scenario};
use super::testbed::{Testbed, wait_until};
use super::writer::{BLOCK_BYTES, Writer};
use crate::rig;

/// Volumes that are unmounted at once.
pub(crate) const AT_ONCE: usize = 8;
/// Blocks into its second tenant a target's own writer is stopped: enough foreign rounds for a switch, and some more.
const BLOCKS_OF_SECOND: u64 = 16;

/// What drains waited for.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) drains: u64,
    pub(crate) grace_periods: u64,
    pub(crate) barriers: u64,
    pub(crate) flushes: u64,
    /// Drains that found a switch of their own volume in flight. Counted by the last form alone.
    pub(crate) waits: u64,
    pub(crate) time: Duration,
}

impl Costs {
    fn between(before: &DrainStats, after: &DrainStats) -> Self {
        Self {
            drains: after.drains - before.drains,
            grace_periods: after.grace_periods - before.grace_periods,
            barriers: after.barriers - before.barriers,
            flushes: after.flushes - before.flushes,
            waits: after.waits - before.waits,
            time: after.time - before.time,
        }
    }
}

impl std::ops::AddAssign for Costs {
    fn add_assign(&mut self, other: Self) {
        self.drains += other.drains;
        self.grace_periods += other.grace_periods;
        self.barriers += other.barriers;
        self.flushes += other.flushes;
        self.waits += other.waits;
        self.time += other.time;
    }
}

/// One unmount, or several at once.
pub(crate) struct Umounts {
    /// Of each.
    pub(crate) times: Vec<Duration>,
    /// Of all together.
    pub(crate) costs: Costs,
    /// How many left an inode that somebody had.
    pub(crate) busy: u64,
}

/// Mounts what `scenario` says, and unmounts it. Its own writer churns as the background does under `load`.
pub(crate) fn measure(testbed: &Testbed, scenario: Scenario, load: Load, blocks: u64) -> Result<Umounts> {
    match scenario {
        Scenario::OwnWriter => with_own_writer(testbed, load, blocks),
        Scenario::Quiet => quiet(testbed, 1),
        Scenario::EightQuiet => quiet(testbed, AT_ONCE),
    }
}

fn with_own_writer(testbed: &Testbed, load: Load, blocks: u64) -> Result<Umounts> {
    let target = Target::new(testbed)?;
    let writer = match load {
        Load::Churn => Writer::churning(&testbed.engine, &target.volume, blocks)?,
        Load::Control | Load::Idle => Writer::steady(&testbed.engine, &target.volume, blocks)?,
    };
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let thread = scope.spawn(|| writer.run(&stop, &written));
        let enough = blocks + BLOCKS_OF_SECOND;
        let has_churned =
            wait_until("the target's own writer is too slow", &stop, || written.load(Ordering::Relaxed) >= enough);
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        has_churned
    })?;
    umount(testbed, vec![target])
}

/// One file each, written and synced by one tenant.
fn quiet(testbed: &Testbed, count: usize) -> Result<Umounts> {
    let memcg = testbed.engine.memcg_create("quiet", None, None);
    let targets = (0..count).map(|_| Target::written(testbed, &memcg)).collect::<Result<Vec<_>>>();
    let outcome = targets.and_then(|targets| umount(testbed, targets));
    testbed.engine.memcg_offline(&memcg);
    outcome
}

struct Target {
    volume: Arc<SuperBlock>,
    path: Option<PathBuf>,
}

impl Target {
    fn new(testbed: &Testbed) -> Result<Self> {
        let (volume, path) = testbed.mount()?;
        Ok(Self { volume, path })
    }

    fn written(testbed: &Testbed, memcg: &Arc<Memcg>) -> Result<Self> {
        let target = Self::new(testbed)?;
        drop(rig::new_file(&target.volume, "file")?);
        let inode = target.volume.lookup(&target.volume.root()?, "file")?;
        let file = File::open_for(&inode, memcg)?;
        file.write_at(0, &[5; BLOCK_BYTES])?;
        file.fsync()?;
        Ok(target)
    }
}

/// Unmounts all of `targets` at once, and removes their directories.
fn umount(testbed: &Testbed, targets: Vec<Target>) -> Result<Umounts> {
    let before = testbed.engine.drain_stats();
    let timed = |target: &Target| {
        let start = Instant::now();
        let outcome = target.volume.umount(UmountOptions::default());
        (start.elapsed(), outcome)
    };
    let ended: Vec<_> = if let [target] = &targets[..] {
        vec![timed(target)]
    } else {
        let barrier = Barrier::new(targets.len());
        thread::scope(|scope| {
            let start = |target| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    timed(target)
                })
            };
            let threads: Vec<_> = targets.iter().map(start).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    };
    let costs = Costs::between(&before, &testbed.engine.drain_stats());
    let (mut times, mut busy) = (Vec::new(), 0);
    for (time, outcome) in ended {
        match outcome {
            Err(UmountError::BusyInodes(_)) => busy += 1,
            outcome => outcome.context("cannot unmount a target")?,
        }
        times.push(time);
    }
    for path in targets.iter().filter_map(|target| target.path.as_deref()) {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(Umounts { times, costs, busy })
}
