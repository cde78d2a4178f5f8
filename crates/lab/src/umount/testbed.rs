//! An engine with one form of unmount, four volumes in its background, each with a writer that syncs every block, and volumes
//! that are mounted to be unmounted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use slackwater::backend::{Backend, MemBackend};
use slackwater::{
    DrainStats, Engine, File, Forms, Memcg, MemcgState, SuperBlock, Tunables, UmountError, UmountOptions,
};
use slackwater_backends::DirBackend;
use slackwater_sync::rcu::{self, Wait, waits_during};
use slackwater_sync::shim::Fences;

use super::{Injected, Load, Place, Scenario, Setting};
use crate::harness::threads::{at_once, beside, wait_until};
use crate::rig;
use crate::scratch::Scratch;

/// Volumes in the background.
const BACKGROUND: usize = 4;
/// Some MiB more than is ever written at once.
const ARENA_BYTES: u64 = 24 << 20;
/// Blocks by all writers together before anything is measured, so that each has begun.
const WARM_UP_BLOCKS: u64 = 16 * BACKGROUND as u64;
/// Longest time that a timer holds a reference.
const TIMERS: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(500);

pub(super) struct Testbed {
    pub(super) setting: Setting,
    pub(super) engine: Engine,
    background: Vec<Background>,
    next_volume: AtomicU64,
    scratch: Scratch,
}

/// A volume with a writer for each load.
struct Background {
    churning: Writer,
    steady: Writer,
    volume: Arc<SuperBlock>,
}

impl Testbed {
    /// An engine with its background, and with directories in `home`. Each tenant writes `blocks` before the next one.
    pub(super) fn new(home: &Path, setting: Setting, blocks: u64) -> Result<Self> {
        let coalesce = Duration::from_millis(if setting.injected == Injected::Nothing { 0 } else { 12 });
        let rcu = rcu::Options { fences: Fences::Full, coalesce, ..rcu::Options::default() };
        let forms = Forms { umount: setting.form, rcu, ..Forms::default() };
        let engine = rig::engine_with_forms(ARENA_BYTES, Tunables::default(), forms)?;
        let scratch = Scratch::in_folder(home)?;
        let mut testbed = Self { setting, engine, background: Vec::new(), next_volume: AtomicU64::new(0), scratch };
        for _ in 0..BACKGROUND {
            let (volume, _) = testbed.mount()?;
            let churning = Writer::churning(&testbed.engine, &volume, blocks)?;
            let steady = Writer::steady(&testbed.engine, &volume, blocks)?;
            testbed.background.push(Background { churning, steady, volume });
        }
        Ok(testbed)
    }

    /// A new volume, with its directory if it has one.
    pub(super) fn mount(&self) -> Result<(Arc<SuperBlock>, Option<PathBuf>)> {
        let name = format!("volume-{}", self.next_volume.fetch_add(1, Ordering::Relaxed));
        let (backend, path): (Arc<dyn Backend>, _) = match self.setting.place {
            Place::Mem => (Arc::new(MemBackend::new()), None),
            Place::Dir => {
                let path = self.scratch.subdirectory(&name)?;
                (Arc::new(DirBackend::open(&path)?), Some(path))
            }
        };
        Ok((rig::mount(&self.engine, &name, backend)?, path))
    }

    /// Does `work` under `load`. Writers and switches have ended when this returns.
    pub(super) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (written, switched) = (&AtomicU64::new(0), self.engine.inodes_switched());
        let writers = self.background.iter().filter_map(|background| match load {
            Load::Churn => Some(&background.churning),
            Load::Control => Some(&background.steady),
            Load::Idle => None,
        });
        let (outcome, _) = beside(writers.map(|writer| |stop: &AtomicBool| writer.run(stop, written)), |stop| {
            wait_until("the load in the background does not begin", || {
                ensure!(!stop.load(Ordering::Relaxed), "a writer in the background has failed");
                Ok(match load {
                    Load::Idle => true,
                    Load::Control => written.load(Ordering::Relaxed) >= WARM_UP_BLOCKS,
                    Load::Churn => self.engine.inodes_switched() >= switched + BACKGROUND as u64,
                })
            })?;
            work()
        })?;
        wait_until("switches do not end", || Ok(self.engine.switches_in_flight() == 0))?;
        Ok(outcome)
    }

    /// Mounts the targets of `scenario` and unmounts them. A target's own writer churns as the background does under `load`.
    pub(super) fn measure(&self, scenario: Scenario, load: Load, blocks: u64) -> Result<Umounts> {
        match scenario {
            Scenario::OwnWriter => with_own_writer(self, load, blocks),
            Scenario::Quiet => quiet(self, 1),
            Scenario::EightQuiet => quiet(self, AT_ONCE),
        }
    }

    /// Offline tenants that still have something in memory. There should be none; timers may hold them for a while.
    pub(super) fn tenants_left(&self) -> usize {
        let left = || self.engine.memcgs().iter().filter(|memcg| memcg.state() == MemcgState::Offline).count();
        let start = Instant::now();
        while left() != 0 && start.elapsed() < TIMERS {
            thread::sleep(PAUSE);
        }
        left()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for background in self.background.drain(..) {
            if let Err(error) = background.volume.umount(UmountOptions::default()) {
                eprintln!("cannot unmount {}: {error}", background.volume.name());
            }
        }
    }
}

pub(super) const BLOCK_BYTES: usize = 4096;

/// Overwrites a file from its start, again and again. Each block is one round of writeback.
pub(super) struct Writer {
    engine: Engine,
    volume: Arc<SuperBlock>,
    name: &'static str,
    /// Blocks that a tenant writes before the next one takes over.
    blocks: u64,
    /// `None`: a new tenant each time, which goes offline afterwards.
    tenant: Option<Arc<Memcg>>,
}

impl Writer {
    /// A writer whose tenants come and go, and its file.
    pub(super) fn churning(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "churned", blocks, None)
    }

    /// A writer with one tenant, and its file.
    pub(super) fn steady(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "steady", blocks, Some(engine.memcg_create("steady", None, None)))
    }

    fn new(
        engine: &Engine,
        volume: &Arc<SuperBlock>,
        name: &'static str,
        blocks: u64,
        tenant: Option<Arc<Memcg>>,
    ) -> Result<Self> {
        drop(rig::new_file(volume, name)?);
        Ok(Self { engine: engine.clone(), volume: Arc::clone(volume), name, blocks, tenant })
    }

    /// Writes until `stop` and counts blocks in `written`. A fresh tenant is offline when this returns.
    pub(super) fn run(&self, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(tenant) = &self.tenant {
                self.write_for(tenant, stop, written)?;
            } else {
                let fresh = self.engine.memcg_create("fresh", None, None);
                let outcome = self.write_for(&fresh, stop, written);
                self.engine.memcg_offline(&fresh);
                outcome?;
            }
        }
        Ok(())
    }

    fn write_for(&self, memcg: &Arc<Memcg>, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        let inode = self.volume.lookup(&self.volume.root()?, self.name)?;
        let file = File::open_for(&inode, memcg)?;
        let block = [5; BLOCK_BYTES];
        for number in (0..self.blocks).take_while(|_| !stop.load(Ordering::Relaxed)) {
            file.write_at(number * BLOCK_BYTES as u64, &block)?;
            file.fsync()?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(tenant) = &self.tenant {
            self.engine.memcg_offline(tenant);
        }
    }
}

/// Volumes that are unmounted at once.
pub(super) const AT_ONCE: usize = 8;
/// A target's own writer stops so many blocks into its second tenant: enough foreign rounds for a switch, and some more.
const BLOCKS_OF_SECOND: u64 = 16;

/// The waits of unmounts.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub(super) struct Costs {
    /// How many unmounts made these waits, in this order, as the RCU layer logged them: for grace periods and for callback
    /// barriers, by the thread that unmounted.
    pub(super) orders: BTreeMap<Vec<Wait>, u64>,
    /// How many left an inode that something still referenced.
    pub(super) busy: u64,
    // The rest is what the drain itself counts.
    pub(super) drains: u64,
    pub(super) flushes: u64,
    /// Drains that found a switch of their own volume in flight. Only the last form looks.
    pub(super) waits: u64,
    pub(super) time: Duration,
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

    pub(super) fn add(&mut self, other: &Self) {
        other.orders.iter().for_each(|(order, count)| *self.orders.entry(order.clone()).or_default() += count);
        self.busy += other.busy;
        self.drains += other.drains;
        self.flushes += other.flushes;
        self.waits += other.waits;
        self.time += other.time;
    }

    /// Waits of one kind.
    pub(super) fn rcu_waits(&self, kind: Wait) -> u64 {
        let of_order = |order: &[Wait]| order.iter().filter(|wait| **wait == kind).count() as u64;
        self.orders.iter().map(|(order, count)| of_order(order) * count).sum()
    }

    /// Waits of every kind.
    pub(super) fn all_rcu_waits(&self) -> u64 {
        [Wait::Normal, Wait::Expedited, Wait::Barrier].into_iter().map(|kind| self.rcu_waits(kind)).sum()
    }
}

/// The figures of one unmount, or of several at once.
pub(super) struct Umounts {
    /// The time of each unmount.
    pub(super) times: Vec<Duration>,
    /// The costs of all unmounts together.
    pub(super) costs: Costs,
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
