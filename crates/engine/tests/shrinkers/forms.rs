//! The waits of each form of the registry, and the calls that all forms refuse.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use slackwater::backend::MemBackend;
use slackwater::shrink::{Count, Scanned, ShrinkerForm, ShrinkerRegistration};
use slackwater::{Engine, InsideScan, MountError, UmountError, UmountOptions};

use crate::rig::{FORMS, Scripted, SlowWalk, end, engine, eventually};

fn register(engine: &Engine) -> ShrinkerRegistration {
    engine.register_shrinker(Scripted::new(|_| Scanned::Freed(1))).unwrap()
}

fn names(engine: &Engine) -> Vec<String> {
    engine.shrinkers().into_iter().map(|shrinker| shrinker.name).collect()
}

#[test]
fn a_slow_scan_does_not_block_registration_in_the_default_form() {
    let engine = engine(ShrinkerForm::default());
    let neighbour = register(&engine);
    let (walk, slow) = SlowWalk::start(&engine);
    let owner = thread::spawn({
        let engine = engine.clone();
        move || {
            assert!(engine.unregister_shrinker(neighbour).is_ok());
            let late = register(&engine);
            assert_eq!(engine.shrink(0), 1, "another walk passes over it too");
            assert!(engine.unregister_shrinker(late).is_ok());
            let volume = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
            volume.umount(UmountOptions::default()).unwrap();
        }
    });
    end("the owner during the scan", owner);
    walk.finish();
    assert!(engine.unregister_shrinker(slow).is_ok());
}

#[test]
fn a_slow_scan_blocks_registration_in_the_form_with_a_lock() {
    let engine = engine(ShrinkerForm::Rwsem);
    let (walk, slow) = SlowWalk::start(&engine);
    assert_eq!(engine.shrink(0), 0, "walks share the lock");
    let mounter = thread::spawn({
        let engine = engine.clone();
        move || drop(engine.mount("a", Arc::new(MemBackend::new())).unwrap())
    });
    eventually("a walk to yield", || engine.shrink(0) == 1);
    assert!(!mounter.is_finished());
    walk.finish();
    end("the mount", mounter);
    assert_eq!(engine.shrink(0), 0);
    assert!(engine.unregister_shrinker(slow).is_ok());
}

#[test]
fn a_slow_scan_blocks_every_unregistration_in_the_form_with_srcu() {
    let engine = engine(ShrinkerForm::Srcu);
    let (walk, slow) = SlowWalk::start(&engine);
    let other = register(&engine);
    assert_eq!(names(&engine), ["scripted-0", "scripted-1"]);
    let owner = thread::spawn({
        let engine = engine.clone();
        move || assert!(engine.unregister_shrinker(other).is_ok())
    });
    eventually("it to be unlisted", || names(&engine) == ["scripted-0"]);
    assert!(!owner.is_finished());
    walk.finish();
    end("unregistering", owner);
    assert!(engine.unregister_shrinker(slow).is_ok());
}

#[test]
fn unregistering_waits_for_the_shrinkers_own_scan_in_each_form() {
    for form in FORMS {
        let engine = engine(form);
        let (walk, slow) = SlowWalk::start(&engine);
        let is_gone = Arc::new(AtomicBool::new(false));
        let owner = thread::spawn({
            let (engine, is_gone) = (engine.clone(), Arc::clone(&is_gone));
            move || {
                assert!(engine.unregister_shrinker(slow).is_ok());
                is_gone.store(true, Ordering::Release);
            }
        });
        eventually("it to disappear from other walks", || {
            engine.shrinkers().is_empty() // the form with a lock yields to the waiting writer
        });
        assert!(!is_gone.load(Ordering::Acquire), "{form:?}");
        walk.finish();
        end("unregistering", owner);
    }
}

#[test]
fn calls_that_would_wait_for_themselves_are_refused_inside_a_scan_in_each_form() {
    for form in FORMS {
        let engine = engine(form);
        let volume = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let other = engine.register_shrinker(Scripted::new(|_| Scanned::Stop)).unwrap();
        let registrations = Arc::new(Mutex::new(vec![other]));
        let own = Scripted::new({
            let (engine, volume, registrations) = (engine.clone(), Arc::clone(&volume), Arc::clone(&registrations));
            move |_| {
                let all = std::mem::take(&mut *registrations.lock().unwrap());
                let refused: Vec<_> =
                    all.into_iter().filter_map(|registration| engine.unregister_shrinker(registration).err()).collect();
                assert_eq!(refused.len(), 2, "its own and another's registration are both returned");
                *registrations.lock().unwrap() = refused;
                assert!(engine.register_shrinker(Scripted::new(|_| Scanned::Stop)).is_err());
                assert_eq!(engine.shrink(0), 0, "a nested walk does nothing");
                let mounted = engine.mount("b", Arc::new(MemBackend::new()));
                assert!(matches!(mounted, Err(MountError::InsideScan(InsideScan))));
                let unmounted = volume.umount(UmountOptions::default());
                assert!(matches!(unmounted, Err(UmountError::InsideScan(InsideScan))));
                Scanned::Freed(1)
            }
        });
        registrations.lock().unwrap().push(engine.register_shrinker(own).unwrap());
        assert_eq!(engine.shrink(0), 1, "{form:?}");
        for registration in std::mem::take(&mut *registrations.lock().unwrap()) {
            assert!(engine.unregister_shrinker(registration).is_ok());
        }
        volume.umount(UmountOptions::default()).unwrap();
        assert!(engine.shrinkers().is_empty());
    }
}

#[test]
fn no_scan_runs_after_unregistering_in_any_form() {
    const ROUNDS: u64 = 100;
    for form in FORMS {
        let engine = engine(form);
        let (is_over, scans) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let walkers: Vec<_> = (0..2)
            .map(|_| {
                let (engine, is_over) = (engine.clone(), Arc::clone(&is_over));
                thread::spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = engine.shrink(0);
                        thread::yield_now();
                    }
                })
            })
            .collect();
        let owners: Vec<_> = (0..2)
            .map(|_| {
                let (engine, scans) = (engine.clone(), Arc::clone(&scans));
                thread::spawn(move || {
                    for round in 0..ROUNDS {
                        let is_gone = Arc::new(AtomicBool::new(false));
                        let before = scans.load(Ordering::Relaxed);
                        let shrinker = Scripted::new({
                            let (is_gone, scans) = (Arc::clone(&is_gone), Arc::clone(&scans));
                            move |_| {
                                thread::yield_now();
                                scans.fetch_add(1, Ordering::Relaxed);
                                assert!(!is_gone.load(Ordering::Relaxed), "scanned after it was unregistered");
                                Scanned::Freed(1)
                            }
                        });
                        let registration = engine.register_shrinker(shrinker).unwrap();
                        if round % 10 == 0 {
                            eventually("a scan", || scans.load(Ordering::Relaxed) != before);
                        }
                        assert!(engine.unregister_shrinker(registration).is_ok());
                        is_gone.store(true, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        owners.into_iter().for_each(|owner| end("the owners", owner));
        is_over.store(true, Ordering::Relaxed);
        walkers.into_iter().for_each(|walker| end("the walkers", walker));
        assert!(engine.shrinkers().is_empty());
    }
}

#[test]
fn shrinkers_are_listed_under_numbers_that_are_reused() {
    for form in FORMS {
        let engine = engine(form);
        let [first, second] = [(); 2].map(|()| register(&engine));
        assert_eq!(names(&engine), ["scripted-0", "scripted-1"], "{form:?}");
        let first_status = engine.shrinkers().swap_remove(0);
        assert_eq!((first_status.count, first_status.deferred), (Count::Objects(1), 0));
        assert!(engine.unregister_shrinker(first).is_ok());
        assert_eq!(names(&engine), ["scripted-1"]);
        // Once the first entry is freed, which may take a grace period.
        eventually("its number to be reused", || {
            let third = register(&engine);
            let is_again = names(&engine).contains(&"scripted-0".to_owned());
            assert!(engine.unregister_shrinker(third).is_ok());
            is_again
        });
        assert!(engine.unregister_shrinker(second).is_ok());
    }
}
