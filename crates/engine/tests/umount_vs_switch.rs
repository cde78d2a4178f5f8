//! The race of an unmount with `inode_switch_wbs`, replayed for each of the four forms: a switch is held between *prepare* and *queue* while its
//! volume is unmounted. Only the first form lets the unmount overtake it. The last form also takes back queued
//! switches.

#![cfg(all(debug_assertions, not(any(slackwater_loom, slackwater_shuttle))))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use slackwater::backend::{Backend, Call, Limits, MemBackend, NewNode};
use slackwater::{
    DrainStats, Engine, File, Forms, InodeRef, ManualClock, Memcg, SuperBlock, Timestamp, Tunables, UmountError,
    UmountForm, UmountOptions,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_sync::gate;
use slackwater_sync::rcu::Options;

/// Timeout for operations that take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time within which a forbidden event would usually happen.
const MOMENT: Duration = Duration::from_millis(300);

/// Serialises the tests: switches of any of them stop at a gate that one of them holds.
fn serialize() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Rig {
    clock: Arc<ManualClock>,
    engine: Engine,
    volume: Arc<SuperBlock>,
}

impl Rig {
    /// Stepped by hand, except grace periods. It has one clean inode that belongs to a tenant going offline, so the
    /// next step begins the switch.
    fn new(umount: UmountForm) -> Self {
        let rig = Self::with(0, Forms { umount, ..Forms::default() });
        rig.leave_files(1);
        rig
    }

    fn with(flusher_threads: u32, forms: Forms) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).unwrap();
        let tunables = Tunables { flusher_threads, ..Tunables::default() };
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let engine = Engine::with_forms(arena, slackwater_arena::Survivors::default(), clock.clone(), tunables, forms);
        let volume = engine.mount("rig", Arc::new(MemBackend::new())).unwrap();
        Self { clock, engine, volume }
    }

    fn create(&self, name: &str) -> InodeRef {
        self.volume.make(&self.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap()
    }

    /// Creates clean files that belong to a tenant going offline.
    fn leave_files(&self, count: usize) {
        let memcg = self.engine.memcg_create("a", None, None);
        for number in 0..count {
            write_round(&self.create(&number.to_string()), &memcg);
        }
        assert!(self.engine.memcg_offline(&memcg));
    }

    /// A clean file of the first tenant, which the next round of the second one moves to the second.
    fn contested_file(&self) -> (InodeRef, [Arc<Memcg>; 2]) {
        let [a, b] = ["a", "b"].map(|name| self.engine.memcg_create(name, None, None));
        let inode = self.create("x");
        write_round(&inode, &a);
        (0..8).for_each(|_| write_round(&inode, &b));
        (inode, [a, b])
    }

    /// Unmounts while a switch is in flight. The switch ends although no grace period does, and no inode is moved.
    fn umount_takes_back(&self) {
        assert_ne!(self.engine.switches_in_flight(), 0);
        umount(&self.volume).unwrap();
        eventually("the switches to end", || self.engine.switches_in_flight() == 0);
        assert_eq!((self.waits(), self.engine.inodes_switched(), self.engine.dead_volume_uses()), ((0, 0, 0), 0, 0));
    }

    fn assert_released(&self, memcgs: impl IntoIterator<Item = Arc<Memcg>>) {
        memcgs.into_iter().for_each(|memcg| assert!(self.engine.memcg_offline(&memcg)));
        eventually("the tenants to be released", || {
            let _ = self.engine.step();
            self.engine.memcgs().len() == 1
        });
    }

    /// Unmounts while the switch is held at `gate`. Returns whether the unmount, having seen it, ended within `window`
    /// while the switch was still held.
    fn umount_while_held(&self, gate: &'static str, window: Duration) -> (bool, Result<(), UmountError>) {
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
        let umounter = start_umount(&self.volume);
        eventually("the unmount to check for switches", || {
            let DrainStats { grace_periods, barriers, waits, .. } = self.engine.drain_stats();
            grace_periods + barriers + waits != 0
        });
        let began = Instant::now();
        while !umounter.is_finished() && began.elapsed() < window {
            thread::yield_now();
        }
        let passed = umounter.is_finished();
        drop(hold);
        let result = end_umount(umounter);
        eventually("the switches to end", || self.engine.switches_in_flight() == 0);
        stop.store(true, Ordering::Release);
        switcher.join().unwrap();
        (passed, result)
    }

    fn waits(&self) -> (u64, u64, u64) {
        let DrainStats { grace_periods, barriers, flushes, .. } = self.engine.drain_stats();
        (grace_periods, barriers, flushes)
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::yield_now();
    }
}

fn start_umount(volume: &Arc<SuperBlock>) -> JoinHandle<Result<(), UmountError>> {
    let volume = Arc::clone(volume);
    thread::spawn(move || volume.umount(UmountOptions::default()))
}

fn end_umount(umounter: JoinHandle<Result<(), UmountError>>) -> Result<(), UmountError> {
    eventually("the unmount to end", || umounter.is_finished());
    umounter.join().unwrap()
}

fn umount(volume: &Arc<SuperBlock>) -> Result<(), UmountError> {
    end_umount(start_umount(volume))
}

/// Writes the first bytes for `memcg` and makes them durable, which is one round of write-back.
fn write_round(inode: &InodeRef, memcg: &Arc<Memcg>) {
    let file = File::open_for(inode, memcg).unwrap();
    file.write_at(0, b"x").unwrap();
    file.fsync().unwrap();
}

#[test]
fn sem_6_2_the_base_form_leaves_a_busy_inode_and_its_switch_ends_on_a_dead_volume() {
    let _turn = serialize();
    let rig = Rig::new(UmountForm::Base);
    let (passed, result) = rig.umount_while_held("switch.prepared", PATIENCE);
    assert!(passed, "it does not see a switch that is not queued");
    assert!(matches!(result, Err(UmountError::BusyInodes(1))), "{result:?}");
    assert_eq!(rig.engine.dead_volume_uses(), 1);
    assert_eq!(rig.waits(), (0, 1, 1), "although it waited");
}

#[test]
fn the_other_forms_wait_for_a_switch_that_is_prepared_and_not_queued() {
    let _turn = serialize();
    for (form, waits, switched) in
        [(UmountForm::Race, (1, 1, 1), 1), (UmountForm::RmBarrier, (1, 0, 1), 1), (UmountForm::PerSb, (0, 0, 0), 0)]
    {
        let rig = Rig::new(form);
        let (passed, result) = rig.umount_while_held("switch.prepared", MOMENT);
        assert!(!passed, "{form:?} overtook the switch");
        result.unwrap();
        assert_eq!(rig.engine.dead_volume_uses(), 0, "{form:?}");
        assert_eq!((rig.waits(), rig.engine.inodes_switched()), (waits, switched), "{form:?}");
    }
}

#[test]
fn the_correct_forms_wait_until_the_inode_is_dropped() {
    let _turn = serialize();
    for form in [UmountForm::PerSb, UmountForm::Race, UmountForm::RmBarrier] {
        let rig = Rig::new(form);
        let (passed, result) = rig.umount_while_held("switch.iput", MOMENT);
        assert!(!passed, "{form:?} overtook the switch");
        result.unwrap();
        assert_eq!(rig.engine.dead_volume_uses(), 0, "{form:?}");
    }
}

#[test]
fn a_volume_without_switches_does_not_wait_for_those_of_others() {
    let _turn = serialize();
    let rig = Rig::new(UmountForm::PerSb);
    let other = rig.engine.mount("other", Arc::new(MemBackend::new())).unwrap();
    let hold = gate::hold("switch.prepared");
    let switcher = thread::spawn({
        let engine = rig.engine.clone();
        move || engine.step()
    });
    hold.wait_reached();
    umount(&other).unwrap();
    assert_eq!(rig.engine.switches_in_flight(), 1, "the other volume's, held at the gate");
    drop(hold);
    switcher.join().unwrap();
    umount(&rig.volume).unwrap();
    assert_eq!((rig.waits(), rig.engine.dead_volume_uses()), ((0, 0, 0), 0));
}

#[test]
fn switches_that_wait_for_their_grace_period_are_taken_back() {
    let _turn = serialize();
    let rig = Rig::with(0, Forms::default());
    rig.leave_files(130); // more than fit in one context
    let hold = gate::hold("switch.grace");
    let _ = rig.engine.step();
    hold.wait_reached();
    rig.umount_takes_back();
    assert_eq!(rig.engine.drain_stats().waits, 1);
    drop(hold);
    rig.assert_released([]);
}

#[test]
fn a_switch_to_another_tenant_is_taken_back() {
    let _turn = serialize();
    let rig = Rig::with(0, Forms::default());
    let (inode, tenants) = rig.contested_file();
    let hold = gate::hold("switch.grace");
    write_round(&inode, &tenants[1]);
    drop(inode);
    rig.umount_takes_back();
    assert_eq!(rig.engine.drain_stats().waits, 1);
    drop(hold);
    rig.assert_released(tenants);
}

/// A backend whose writes stop at a gate.
struct Gated(MemBackend);

impl Backend for Gated {
    fn submit(&self, call: Call) {
        if matches!(call, Call::Write(_)) {
            gate::pass("backend.write");
        }
        self.0.submit(call);
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

/// The only flusher is held in the backend of another volume.
#[test]
fn a_switch_that_no_flusher_has_seen_is_taken_back() {
    let _turn = serialize();
    let rig = Rig::with(1, Forms::default());
    let (inode, tenants) = rig.contested_file();
    let other = rig.engine.mount("other", Arc::new(Gated(MemBackend::new()))).unwrap();
    let hold = gate::hold("backend.write");
    let file = other.make(&other.root().unwrap(), "x", NewNode::File, 0o644).unwrap();
    File::open(&file).unwrap().write_at(0, b"x").unwrap();
    let syncer = thread::spawn({
        let other = Arc::clone(&other);
        move || other.sync()
    });
    hold.wait_reached();
    write_round(&inode, &tenants[1]);
    drop(inode);
    rig.umount_takes_back();
    assert_eq!(rig.engine.drain_stats().waits, 1);
    drop(hold);
    syncer.join().unwrap().unwrap();
    drop(file);
    umount(&other).unwrap();
    rig.assert_released(tenants);
}

/// The flusher is working on the volume, so the unmount reaches the switches after they have been queued.
#[test]
fn a_switch_that_a_flusher_is_about_to_queue_is_taken_back() {
    let _turn = serialize();
    let rig = Rig::with(0, Forms::default());
    let (inode, tenants) = rig.contested_file();
    File::open_for(&inode, &tenants[1]).unwrap().write_at(0, b"x").unwrap();
    drop(inode);
    rig.clock.advance(Duration::from_secs(60));
    // Otherwise a step of the unmount may find the switch ready.
    let grace = gate::hold("switch.grace");
    let hold = gate::hold("switch.prepared");
    let flusher = thread::spawn({
        let engine = rig.engine.clone();
        move || engine.step()
    });
    hold.wait_reached();
    let umounter = start_umount(&rig.volume);
    thread::sleep(MOMENT);
    assert!(!umounter.is_finished());
    drop(hold);
    end_umount(umounter).unwrap();
    let _ = flusher.join().unwrap();
    assert_eq!((rig.engine.switches_in_flight(), rig.waits()), (0, (0, 0, 0)));
    assert_eq!((rig.engine.inodes_switched(), rig.engine.dead_volume_uses()), (0, 0));
    drop(grace);
    rig.assert_released(tenants);
}

#[test]
fn an_unmount_does_not_wait_for_a_grace_period_of_an_hour() {
    let _turn = serialize();
    let rcu = Options { coalesce: Duration::from_secs(3600), ..Options::default() };
    // Never dropped: dropping it would wait for the callbacks.
    let rig = ManuallyDrop::new(Rig::with(2, Forms { rcu, ..Forms::default() }));
    rig.leave_files(1);
    eventually("the switch", || rig.engine.switches_in_flight() != 0);
    rig.umount_takes_back();
}
