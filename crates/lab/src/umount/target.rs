//! Volumes that are mounted to be unmounted, and what their unmounts wait for.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slackwater::{DrainStats, File, Memcg, SuperBlock, UmountError, UmountOptions};
use slackwater_sync::rcu::{Wait, waits_during};

use super::axes::{Load, Scenario};
use super::testbed::Testbed;
use super::writer::{BLOCK_BYTES, Writer};
use crate::harness::threads::{at_once, beside, wait_until};
use crate::rig;

/// Volumes that are unmounted at once.
pub(crate) const AT_ONCE: usize = 8;
/// A target's own writer stops so many blocks into its second tenant: enough foreign rounds for a switch, and some more.
const BLOCKS_OF_SECOND: u64 = 16;

/// The waits of unmounts.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Costs {
    /// How many unmounts made these waits, in this order, as the RCU layer logged them: for grace periods and for callback
    /// barriers, by the thread that unmounted.
    pub(crate) orders: BTreeMap<Vec<Wait>, u64>,
    /// How many left an inode that something still referenced.
    pub(crate) busy: u64,
    // The rest is what the drain itself counts.
    pub(crate) drains: u64,
    pub(crate) flushes: u64,
    /// Drains that found a switch of their own volume in flight. Only the last form looks.
    pub(crate) waits: u64,
    pub(crate) time: Duration,
}

impl Costs {
    fn between(before: &DrainStats, after: &DrainStats) -> Self {
        Self {
            drains: after.drains - before.drains,
            flushes: after.flushes - before.flushes,
            waits: after.waits - before.waits,
            time: after.time - before.time,
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        other.orders.iter().for_each(|(order, count)| *self.orders.entry(order.clone()).or_default() += count);
        self.busy += other.busy;
        self.drains += other.drains;
        self.flushes += other.flushes;
        self.waits += other.waits;
        self.time += other.time;
    }

    /// Waits of one kind.
    pub(crate) fn rcu_waits(&self, kind: Wait) -> u64 {
        let of_order = |order: &[Wait]| order.iter().filter(|wait| **wait == kind).count() as u64;
        self.orders.iter().map(|(order, count)| of_order(order) * count).sum()
    }

    /// Waits of every kind.
    pub(crate) fn all_rcu_waits(&self) -> u64 {
        [Wait::Normal, Wait::Expedited, Wait::Barrier].into_iter().map(|kind| self.rcu_waits(kind)).sum()
    }
}

/// One unmount, or several at once.
pub(crate) struct Umounts {
    /// The time of each.
    pub(crate) times: Vec<Duration>,
    /// The costs of all together.
    pub(crate) costs: Costs,
}

/// Mounts the targets of `scenario` and unmounts them. A target's own writer churns as the background does under `load`.
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
    let written = AtomicU64::new(0);
    beside([|stop: &AtomicBool| writer.run(stop, &written)], |stop| {
        wait_until("the target's own writer is too slow", || {
            ensure!(!stop.load(Ordering::Relaxed), "the target's own writer has failed");
            Ok(written.load(Ordering::Relaxed) >= blocks + BLOCKS_OF_SECOND)
        })
    })?;
    umount(testbed, &[target])
}

/// Each target has one file, which one tenant wrote and synced.
fn quiet(testbed: &Testbed, count: usize) -> Result<Umounts> {
    let memcg = testbed.engine.memcg_create("quiet", None, None);
    let targets = (0..count).map(|_| Target::written(testbed, &memcg)).collect::<Result<Vec<_>>>();
    let outcome = targets.and_then(|targets| umount(testbed, &targets));
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
fn umount(testbed: &Testbed, targets: &[Target]) -> Result<Umounts> {
    let before = testbed.engine.drain_stats();
    let ended = at_once(targets.iter().collect(), |_, target| {
        waits_during(|| {
            let start = Instant::now();
            let outcome = target.volume.umount(UmountOptions::default());
            (start.elapsed(), outcome)
        })
    });
    let mut costs = Costs::between(&before, &testbed.engine.drain_stats());
    let mut times = Vec::new();
    for ((time, outcome), order) in ended {
        match outcome {
            Err(UmountError::BusyInodes(_)) => costs.busy += 1,
            outcome => outcome.context("cannot unmount a target")?,
        }
        times.push(time);
        *costs.orders.entry(order).or_default() += 1;
    }
    for path in targets.iter().filter_map(|target| target.path.as_deref()) {
        fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(Umounts { times, costs })
}
