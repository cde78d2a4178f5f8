//! An engine with one form of registry, and who walks it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slackwater::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerForm, ShrinkerRegistration};
use slackwater::{Engine, Forms, Tunables};

use super::axes::Load;
use super::records::Registrations;
use crate::{interrupt, lanes, rig};

/// More than what is in the volumes of all workers at once: nothing is written.
const ARENA_BYTES: u64 = 24 << 20;
/// A slow scan.
pub(super) const SCAN: Duration = Duration::from_millis(50);
/// Longest wait for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the [module documentation](self).
pub(crate) struct Testbed {
    pub(crate) form: ShrinkerForm,
    pub(crate) engine: Engine,
}

/// Has nothing.
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

/// Always has something, and takes its time to look for it.
struct Slow(Arc<Scans>);

/// Scans of [`Slow`] so far.
#[derive(Default)]
struct Scans {
    begun: AtomicU64,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Scans {
    /// A scan, as long as they are not over.
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
    pub(crate) fn new(form: ShrinkerForm) -> Result<Self> {
        let forms = Forms { shrinkers: form, ..Forms::default() };
        Ok(Self { form, engine: rig::engine_with_forms(ARENA_BYTES, Tunables::default(), forms)? })
    }

    /// Does `work` while `load` goes on beside it. When this returns, that has ended.
    pub(crate) fn under<T>(&self, load: Load, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match load {
            Load::Quiet => work(),
            Load::SlowScans => self.beside_slow_scans(work),
        }
    }

    fn beside_slow_scans<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (scans, stop) = (Arc::new(Scans::default()), AtomicBool::new(false));
        let slow = self.engine.register_shrinker(Box::new(Slow(Arc::clone(&scans))))?;
        let outcome = thread::scope(|scope| {
            let walker = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.engine.shrink(0);
                }
            });
            let outcome = wait_for(|| scans.begun.load(Ordering::Relaxed) != 0).and_then(|()| work());
            stop.store(true, Ordering::Relaxed);
            scans.end();
            walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome
        });
        self.unregister(slow)?;
        outcome
    }

    /// Has `workers` register and unregister for `time`, once at least.
    pub(crate) fn register(&self, workers: usize, time: Duration) -> Result<Registrations> {
        let mut all = vec![Registrations::default(); workers];
        lanes::run(all.iter_mut().collect(), |lane: &mut &mut Registrations| {
            let end = Instant::now() + time;
            loop {
                interrupt::check()?;
                let registration = lane.register.time(|| self.engine.register_shrinker(Box::new(Nothing)))?;
                lane.unregister.time(|| self.unregister(registration))?;
                if Instant::now() >= end {
                    return Ok(());
                }
            }
        })?;
        let mut sum = Registrations::default();
        for Registrations { register, unregister } in all {
            sum.register.append(register);
            sum.unregister.append(unregister);
        }
        Ok(sum)
    }

    fn unregister(&self, registration: ShrinkerRegistration) -> Result<()> {
        self.engine.unregister_shrinker(registration).ok().context("it is not the scan that unregisters")
    }
}

/// Looks every now and then.
fn wait_for(is_reached: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_reached() {
        interrupt::check()?;
        ensure!(start.elapsed() < PATIENCE, "the walks beside do not begin");
        thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}
