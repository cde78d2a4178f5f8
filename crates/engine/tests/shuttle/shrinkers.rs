//! Shrinkers registered and unregistered during walks, in random schedules and in each form; and volumes with theirs.
//!
//! `SLACKWATER_SHUTTLE_EXECUTIONS` sets the number of schedules.

use std::time::Duration;

use crate::schedules::check;
use slackwater::backend::{MemBackend, NewNode};
use slackwater::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerForm};
use slackwater::{Engine, Forms, InodeRef, ManualClock, Timestamp, Tunables, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_sync::lock::{Mutex, Rank};
use slackwater_sync::rcu::Options;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, thread};

fn engine(shrinkers: ShrinkerForm) -> Engine {
    let arena = Arena::create(&ArenaConfig::memfd(64 << 10).with_inodes(4).with_volumes(2)).unwrap();
    let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
    let rcu = Options { coalesce: Duration::ZERO, ..Options::default() };
    let forms = Forms { shrinkers, rcu, ..Forms::default() };
    Engine::with_forms(arena, Survivors::default(), Arc::new(ManualClock::new(Timestamp(1))), tunables, forms)
}

/// Has one object until it is unregistered.
struct Owned(Arc<AtomicBool>);

impl Owned {
    fn check(&self) {
        assert!(!self.0.load(Ordering::Relaxed), "used after it was unregistered");
    }
}

impl Shrinker for Owned {
    fn name(&self) -> String {
        "owned".into()
    }

    fn count(&self, _control: &ShrinkControl) -> Count {
        self.check();
        Count::Objects(1)
    }

    fn scan(&self, _control: &mut ShrinkControl) -> Scanned {
        self.check();
        thread::yield_now();
        self.check();
        Scanned::Stop
    }
}

fn register_and_unregister(form: ShrinkerForm) {
    let engine = engine(form);
    let mut threads = Vec::new();
    for _ in 0..2 {
        let engine = engine.clone();
        threads.push(thread::spawn(move || {
            for _ in 0..2 {
                let is_gone = Arc::new(AtomicBool::new(false));
                let registration = engine.register_shrinker(Box::new(Owned(Arc::clone(&is_gone)))).unwrap();
                thread::yield_now();
                assert!(engine.unregister_shrinker(registration).is_ok());
                is_gone.store(true, Ordering::Relaxed);
            }
        }));
    }
    for _ in 0..2 {
        let engine = engine.clone();
        threads.push(thread::spawn(move || {
            for _ in 0..2 {
                let given = engine.shrink(0);
                assert!(given == 0 || form == ShrinkerForm::Rwsem, "nothing can be freed");
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(engine.shrinkers().is_empty());
}

#[test]
fn shrinkers_register_and_unregister_during_walks_refcount_rcu() {
    check("register and unregister, refcount_rcu", 1000, || register_and_unregister(ShrinkerForm::RefcountRcu));
}

#[test]
fn shrinkers_register_and_unregister_during_walks_srcu() {
    check("register and unregister, srcu", 1000, || register_and_unregister(ShrinkerForm::Srcu));
}

#[test]
fn shrinkers_register_and_unregister_during_walks_rwsem() {
    check("register and unregister, rwsem", 1000, || register_and_unregister(ShrinkerForm::Rwsem));
}

/// Inodes that a front end keeps.
const KNOWN: Rank = Rank::new(20, "KNOWN");

#[test]
fn a_volume_is_unmounted_during_walks_and_lookups() {
    check("unmount during walks", 500, || {
        let engine = engine(ShrinkerForm::default());
        let volume = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let known = Arc::new(Mutex::new(KNOWN, Vec::<InodeRef>::new()));
        volume.on_inode_pressure({
            let known = Arc::clone(&known);
            move |ids| {
                // Dropped under the lock: a thread that finds the list empty then finds no reference either.
                let mut known = known.lock();
                let before = known.len();
                known.retain(|inode| !ids.contains(&inode.id()));
                before - known.len()
            }
        });
        for name in ["x", "y"] {
            known.lock().push(volume.make(&volume.root().unwrap(), name, NewNode::File, 0o644).unwrap());
        }
        let walkers = [(); 2].map(|()| {
            let engine = engine.clone();
            thread::spawn(move || engine.shrink(0))
        });
        let user = thread::spawn({
            let (volume, known) = (Arc::clone(&volume), Arc::clone(&known));
            move || {
                known.lock().push(volume.lookup(&volume.root().unwrap(), "x").unwrap());
                volume.lookup(&volume.root().unwrap(), "y").map(drop).unwrap();
            }
        });
        user.join().unwrap();
        known.lock().clear();
        volume.umount(UmountOptions::default()).unwrap();
        assert!(engine.shrinkers().is_empty());
        walkers.into_iter().for_each(|walker| _ = walker.join().unwrap());
        let status = volume.status();
        assert_eq!((status.inodes, status.open_files), (0, 0));
        engine.check_counts().unwrap();
    });
}
