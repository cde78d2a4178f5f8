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
use crate::harness::threads::{beside, wait_until};
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
    /// An engine with its background, and with directories in `home`. Each tenant writes `blocks` before the next one.
    pub(crate) fn new(home: &Path, setting: Setting, blocks: u64) -> Result<Self> {
        let rcu = rcu::Options { fences: Fences::Full, coalesce: setting.injected.time(), ..rcu::Options::default() };
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

    /// Does `work` under `load`. Writers and switches have ended when this returns.
    pub(crate) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
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

    /// Offline tenants that still have something in memory. There should be none; timers may hold them for a while.
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
