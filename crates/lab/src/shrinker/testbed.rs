//! An engine with one form of registry, and a thread that walks it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use slackwater::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerForm, ShrinkerRegistration};
use slackwater::{Engine, Forms, Tunables};
use slackwater_sync::rcu;

use super::cycle::{Times, run_lanes};
use super::{Load, Subject};
use crate::harness::threads::{beside, wait_until};
use crate::harness::time_us;
use crate::rig;

/// More than the volumes of all workers hold at once, so nothing is written back.
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

/// A shrinker that always has an object, and scans slowly.
struct Slow(Arc<Scans>);

/// The scans of [`Slow`].
#[derive(Default)]
struct Scans {
    begun: AtomicU64,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Scans {
    /// Takes its time, unless the scans are over.
    fn scan(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.over.wait_timeout_while(is_over, SCAN, |is_over| !*is_over));
    }

    fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.notify_all();
    }
}

impl Shrinker for Slow {
    fn name(&self) -> String {
        "slow".to_owned()
    }

    fn count(&self, _: &ShrinkControl) -> Count {
        Count::Objects(1)
    }

    fn scan(&self, _: &mut ShrinkControl) -> Scanned {
        self.0.scan();
        Scanned::Freed(1)
    }
}

impl Testbed {
    /// `None`: the subject is not an engine.
    pub(super) fn new(subject: Subject) -> Result<Option<Self>> {
        let default = rcu::Options::default();
        let (shrinkers, coalesce) = match subject {
            Subject::Rwsem => (ShrinkerForm::Rwsem, default.coalesce),
            Subject::Srcu => (ShrinkerForm::Srcu, default.coalesce),
            Subject::SrcuAtOnce => (ShrinkerForm::Srcu, Duration::ZERO),
            Subject::RefcountRcu => (ShrinkerForm::RefcountRcu, default.coalesce),
            Subject::Kernel => return Ok(None),
        };
        let forms = Forms { shrinkers, rcu: rcu::Options { coalesce, ..default }, ..Forms::default() };
        Ok(Some(Self { subject, engine: rig::engine_with_forms(ARENA_BYTES, Tunables::default(), forms)? }))
    }

    /// Does `work` under `load`, which has ended when this returns.
    pub(super) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match load {
            Load::Quiet => work(),
            Load::SlowScans => self.beside_slow_scans(work),
        }
    }

    fn beside_slow_scans<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let scans = Arc::new(Scans::default());
        let slow = self.engine.register_shrinker(Box::new(Slow(Arc::clone(&scans))))?;
        let walk = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                self.engine.shrink(0);
            }
            Ok(())
        };
        let outcome = beside([walk], |stop| {
            let begun = wait_until("the walks do not begin", || Ok(scans.begun.load(Ordering::Relaxed) != 0));
            let outcome = begun.and_then(|()| work());
            stop.store(true, Ordering::Relaxed); // before the end of the scan, or another one would begin
            scans.end();
            outcome
        });
        self.unregister(slow)?;
        Ok(outcome?.0)
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
