//! Engines for the tests, and shrinkers with scripted behaviour.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackwater::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerForm};
use slackwater::{Engine, Forms, ManualClock, Timestamp, Tunables};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_sync::Completion;

/// Timeout for operations that take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const FORMS: [ShrinkerForm; 3] = [ShrinkerForm::Rwsem, ShrinkerForm::Srcu, ShrinkerForm::RefcountRcu];

/// Stepped by hand, except grace periods.
pub(crate) fn engine(shrinkers: ShrinkerForm) -> Engine {
    let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
    let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
    let forms = Forms { shrinkers, ..Forms::default() };
    Engine::with_forms(arena, Survivors::default(), Arc::new(ManualClock::new(Timestamp(1))), tunables, forms)
}

pub(crate) fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::yield_now();
    }
}

/// The result of a thread that should end on its own.
pub(crate) fn end<T>(what: &str, thread: JoinHandle<T>) -> T {
    eventually(what, || thread.is_finished());
    thread.join().unwrap()
}

/// Always has one object. Each scan runs `scan` with the number of earlier scans.
pub(crate) struct Scripted<F>(F, AtomicU64);

impl<F: Fn(u64) -> Scanned + Send + Sync> Scripted<F> {
    pub(crate) fn new(scan: F) -> Box<Self> {
        Box::new(Self(scan, AtomicU64::new(0)))
    }
}

impl<F: Fn(u64) -> Scanned + Send + Sync> Shrinker for Scripted<F> {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn count(&self, _control: &ShrinkControl) -> Count {
        Count::Objects(1)
    }

    fn scan(&self, _control: &mut ShrinkControl) -> Scanned {
        self.0(self.1.fetch_add(1, Ordering::Relaxed))
    }
}

/// A walk that stays inside the scan of one shrinker until it is released. Other walks pass over that shrinker.
pub(crate) struct SlowWalk {
    go_on: Arc<Completion>,
    thread: JoinHandle<u64>,
}

impl SlowWalk {
    /// Also returns the registration of the slow shrinker.
    pub(crate) fn start(engine: &Engine) -> (Self, slackwater::shrink::ShrinkerRegistration) {
        let (is_there, go_on) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
        let slow = Scripted::new({
            let (is_there, go_on) = (Arc::clone(&is_there), Arc::clone(&go_on));
            move |scans| {
                if scans == 0 {
                    is_there.complete();
                    go_on.wait();
                }
                Scanned::Stop
            }
        });
        let registration = engine.register_shrinker(slow).unwrap();
        let thread = thread::spawn({
            let engine = engine.clone();
            move || engine.shrink(0)
        });
        is_there.wait();
        (Self { go_on, thread }, registration)
    }

    pub(crate) fn finish(self) {
        self.go_on.complete();
        end("the walk to end", self.thread);
    }
}
