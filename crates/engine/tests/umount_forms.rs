//! The race of sem. 6.2, replayed for each of the four forms: a switch is held between *prepare* and *queue* while its
//! volume is unmounted. Only the first form lets the unmount pass it.

#![cfg(all(debug_assertions, not(any(slackwater_loom, slackwater_shuttle))))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use slackwater::backend::{MemBackend, NewNode};
use slackwater::{
    DrainStats, Engine, File, Forms, ManualClock, SuperBlock, Timestamp, Tunables, UmountError, UmountForm,
    UmountOptions,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_sync::gate;

/// A volume with one clean inode that belongs to a tenant which goes offline: whoever steps next begins the switch.
struct Rig {
    engine: Engine,
    volume: Arc<SuperBlock>,
}

impl Rig {
    fn new(umount: UmountForm) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let tunables = Tunables { flusher_threads: 0, ..Tunables::default() };
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let forms = Forms { umount, ..Forms::default() };
        let engine = Engine::with_forms(arena, slackwater_arena::Survivors::default(), clock, tunables, forms);
        let volume = engine.mount("rig", Arc::new(MemBackend::new())).unwrap();
        let memcg = engine.memcg_create("a", None, None);
        let inode = volume.make(&volume.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
        let file = File::open_for(&inode, &memcg).unwrap();
        file.write_at(0, b"x").unwrap();
        file.fsync().unwrap();
        assert!(engine.memcg_offline(&memcg));
        Self { engine, volume }
    }

    /// Unmounts while the switch is held at `gate`; says whether the unmount ended before the switch was let go on.
    fn umount_while_held(&self, gate: &'static str) -> (bool, Result<(), UmountError>) {
        let hold = gate::hold(gate);
        let stop = Arc::new(AtomicBool::new(false));
        let switcher = thread::spawn({
            let (engine, stop) = (self.engine.clone(), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Acquire) {
                    let _ = engine.step();
                    thread::yield_now();
                }
            }
        });
        hold.wait_reached();
        let umounter = thread::spawn({
            let volume = Arc::clone(&self.volume);
            move || volume.umount(UmountOptions::default())
        });
        let began = Instant::now();
        while !umounter.is_finished() && began.elapsed() < Duration::from_millis(300) {
            thread::yield_now();
        }
        let passed = umounter.is_finished();
        drop(hold);
        let result = umounter.join().unwrap();
        while self.engine.switches_in_flight() != 0 {
            thread::yield_now();
        }
        stop.store(true, Ordering::Release);
        switcher.join().unwrap();
        (passed, result)
    }

    fn waits(&self) -> (u64, u64, u64) {
        let DrainStats { grace_periods, barriers, flushes, .. } = self.engine.drain_stats();
        (grace_periods, barriers, flushes)
    }
}

#[test]
fn sem_6_2_the_base_form_leaves_a_busy_inode_and_its_switch_ends_on_a_dead_volume() {
    let rig = Rig::new(UmountForm::Base);
    let (passed, result) = rig.umount_while_held("switch.prepared");
    assert!(passed, "it does not see the switch");
    assert!(matches!(result, Err(UmountError::BusyInodes(1))), "{result:?}");
    assert_eq!(rig.engine.dead_volume_uses(), 1);
    assert_eq!(rig.waits(), (0, 1, 1), "and yet it has waited");
}

#[test]
fn the_other_forms_wait_for_a_switch_that_is_prepared_and_not_queued() {
    for (form, waits) in
        [(UmountForm::Race, (1, 1, 1)), (UmountForm::RmBarrier, (1, 0, 1)), (UmountForm::PerSb, (0, 0, 0))]
    {
        let rig = Rig::new(form);
        let (passed, result) = rig.umount_while_held("switch.prepared");
        assert!(!passed, "{form:?} passed the switch");
        result.unwrap();
        assert_eq!(rig.engine.dead_volume_uses(), 0, "{form:?}");
        assert_eq!(rig.waits(), waits, "{form:?}");
    }
}

#[test]
fn the_forms_that_are_right_wait_until_the_inode_was_let_go_of() {
    for form in [UmountForm::PerSb, UmountForm::Race, UmountForm::RmBarrier] {
        let rig = Rig::new(form);
        let (passed, result) = rig.umount_while_held("switch.iput");
        assert!(!passed, "{form:?} passed the switch");
        result.unwrap();
        assert_eq!(rig.engine.dead_volume_uses(), 0, "{form:?}");
    }
}

#[test]
fn a_volume_without_switches_waits_for_nobody_elses() {
    let rig = Rig::new(UmountForm::PerSb);
    let other = rig.engine.mount("other", Arc::new(MemBackend::new())).unwrap();
    let hold = gate::hold("switch.prepared");
    let switcher = thread::spawn({
        let engine = rig.engine.clone();
        move || engine.step()
    });
    hold.wait_reached();
    other.umount(UmountOptions::default()).unwrap();
    assert_eq!(rig.engine.switches_in_flight(), 1, "that of the other volume, which stands at the gate");
    drop(hold);
    switcher.join().unwrap();
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert_eq!((rig.waits(), rig.engine.dead_volume_uses()), ((0, 0, 0), 0));
}
