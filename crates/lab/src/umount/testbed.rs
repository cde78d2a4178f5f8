//! An engine with one form of unmount, and four volumes in its background.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use slackwater::backend::{Backend, MemBackend};
use slackwater::{Engine, Forms, MemcgState, SuperBlock, Tunables, UmountOptions};
use slackwater_backends::DirBackend;
use slackwater_sync::rcu;
use slackwater_sync::shim::Fences;

use super::axes::{Load, Place, Setting};
use super::writer::Writer;
use crate::scratch::Scratch;
use crate::{interrupt, rig};

/// Volumes in the background.
const BACKGROUND: usize = 4;
/// Some MiB more than is ever written at once.
const ARENA_BYTES: u64 = 24 << 20;
/// Blocks by all writers together before anything is measured: each has begun.
const WARM_UP_BLOCKS: u64 = 16 * BACKGROUND as u64;
/// Longest wait for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time that a timer keeps what it was set for.
const TIMERS: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(500);

/// See the [module documentation](self).
pub(crate) struct Testbed {
    pub(crate) setting: Setting,
    pub(crate) engine: Engine,
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
    /// An engine with its background; a tenant of the writers writes `blocks` at a time. Directories are made in `home`.
    pub(crate) fn new(home: &Path, setting: Setting, blocks: u64) -> Result<Self> {
        let rcu = rcu::Options { fences: Fences::Full, coalesce: setting.delay.time(), ..rcu::Options::default() };
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
    pub(crate) fn mount(&self) -> Result<(Arc<SuperBlock>, Option<PathBuf>)> {
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

    /// Does `work` while `load` goes on in the background. When this returns, all that the load began has ended.
    pub(crate) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let switched = self.engine.inodes_switched();
        let outcome = thread::scope(|scope| {
            let writers = self.background.iter().filter_map(|background| background.writer(load));
            let threads: Vec<_> = writers.map(|writer| scope.spawn(|| writer.run(&stop, &written))).collect();
            let has_begun = wait_until("the load in the background does not begin", &stop, || match load {
                Load::Idle => true,
                Load::Control => written.load(Ordering::Relaxed) >= WARM_UP_BLOCKS,
                Load::Churn => self.engine.inodes_switched() >= switched + BACKGROUND as u64,
            });
            let outcome = has_begun.and_then(|()| work());
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            outcome
        })?;
        wait_until("switches do not end", &AtomicBool::new(false), || self.engine.switches_in_flight() == 0)?;
        Ok(outcome)
    }

    /// Tenants that are offline and of which something stays: none. Timers of what they had may take a period to run out.
    pub(crate) fn tenants_left(&self) -> usize {
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

impl Background {
    fn writer(&self, load: Load) -> Option<&Writer> {
        match load {
            Load::Churn => Some(&self.churning),
            Load::Control => Some(&self.steady),
            Load::Idle => None,
        }
    }
}

/// Looks every now and then; fails when `is_over`, or with `what` when it takes too long.
pub(crate) fn wait_until(what: &str, is_over: &AtomicBool, is_reached: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_reached() {
        interrupt::check()?;
        ensure!(!is_over.load(Ordering::Relaxed) && start.elapsed() < PATIENCE, "{what}");
        thread::sleep(PAUSE);
    }
    Ok(())
}
