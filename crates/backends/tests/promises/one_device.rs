//! P7: what a sync finds ahead of it on a device that it shares with other volumes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater::backend::{Call, Limits};
use slackwater::{File, SuperBlock, Tunables};
use slackwater_testkit::Rule;

use crate::rig::{Disk, Rig, by_hand, create, limits};

/// A volume on the shared device whose writes are held.
struct Writer {
    disk: Disk,
    volume: Arc<SuperBlock>,
    file: File,
    /// Each write, in the order of the calls.
    units: Arc<Mutex<Vec<Unit>>>,
}

struct Unit {
    bytes: usize,
    flushes: bool,
}

/// The bytes of the least limit, and of its units.
const IN_FLIGHT_BYTES: usize = 1 << 20;
const UNIT_BYTES: usize = 256 << 10;
/// The same if units are flushed: one.
const FLUSHED_BYTES: usize = 128 << 10;
/// More than the limit for each volume.
const FILE_BYTES: usize = 3 << 20;

fn on_the_device() -> Limits {
    Limits { device: Some(7), ..limits() }
}

impl Writer {
    /// A volume with a file that is larger than what the backend takes at once.
    fn new(rig: &Rig, name: &str, limits: Limits) -> Self {
        let disk = Disk::with_limits(limits);
        let volume = rig.engine.mount(name, disk.backend.clone()).unwrap();
        let units: Arc<Mutex<Vec<Unit>>> = Arc::default();
        let seen = Arc::clone(&units);
        disk.faults.add(Rule::hold().on("write").matching(move |call| {
            let Call::Write(unit) = call else { return false };
            seen.lock().unwrap().push(Unit { bytes: unit.len_bytes(), flushes: unit.flushes() });
            true
        }));
        let file = create(&volume, "file");
        file.write_at(0, &vec![1; FILE_BYTES]).unwrap();
        Self { disk, volume, file, units }
    }

    /// The sizes of the units in flight, by ticket.
    fn in_flight(&self) -> BTreeMap<u64, usize> {
        let held = self.disk.faults.held();
        let units = self.units.lock().unwrap();
        let first = units.len() - held.len(); // units end in their order here
        held.iter().zip(&units[first..]).map(|(held, unit)| (held.ticket, unit.bytes)).collect()
    }

    fn end_oldest(&self) -> usize {
        let (ticket, bytes) = self.in_flight().pop_first().unwrap();
        assert!(self.disk.faults.release(ticket));
        bytes
    }
}

fn bytes_in_flight(writers: &[Writer]) -> usize {
    writers.iter().flat_map(|writer| writer.in_flight().into_values()).sum()
}

/// Ends a unit of some writer that has one in flight, and lets the flushers go on. Returns its bytes.
fn end_one(rig: &Rig, writers: &[Writer]) -> usize {
    let busy = writers.iter().find(|writer| !writer.in_flight().is_empty()).unwrap();
    let bytes = busy.end_oldest();
    let _ = rig.engine.step();
    bytes
}

/// Three volumes, and `synced` on a fourth.
fn rig() -> (Rig, [Writer; 3], File) {
    rig_with(on_the_device())
}

fn rig_with(limits: Limits) -> (Rig, [Writer; 3], File) {
    let tunables = Tunables { dirty_background_percent: 1, ..by_hand() };
    let rig = Rig::with(Disk::with_limits(limits.clone()), tunables);
    let synced = rig.create("synced");
    synced.write_at(0, b"x").unwrap();
    let writers = ["a", "b", "c"].map(|name| Writer::new(&rig, name, limits.clone()));
    (rig, writers, synced)
}

fn end(rig: Rig, writers: [Writer; 3], synced: File) {
    for writer in writers {
        writer.disk.faults.clear();
        writer.disk.faults.release_all();
        drop(writer.file);
        writer.volume.umount(slackwater::UmountOptions::default()).unwrap();
    }
    drop(synced);
    rig.unmount_and_find_nothing_left();
}

#[test]
fn p07_while_syncs_are_made_little_of_other_volumes_is_in_flight_on_the_device() {
    let (rig, writers, synced) = rig();
    synced.fsync().unwrap();
    let _ = rig.engine.step();
    assert_eq!(bytes_in_flight(&writers), IN_FLIGHT_BYTES, "the limit is used, and holds for all together");
    for _ in 0..20 {
        assert!(end_one(&rig, &writers) <= UNIT_BYTES);
        assert_eq!(bytes_in_flight(&writers), IN_FLIGHT_BYTES);
    }
    end(rig, writers, synced);
}

#[test]
fn p07_a_second_after_the_last_sync_the_device_is_used_in_full_again() {
    let (rig, writers, synced) = rig();
    synced.fsync().unwrap();
    let _ = rig.engine.step();
    rig.clock.advance(Duration::from_millis(1100));
    for _ in 0..5 {
        end_one(&rig, &writers);
    }
    assert!(bytes_in_flight(&writers) > 4 * IN_FLIGHT_BYTES, "{}", bytes_in_flight(&writers));
    end(rig, writers, synced);
}

/// Flushed units cost a sync nothing once they have ended, so those in flight count alone.
#[test]
fn p07_a_backend_that_can_is_asked_to_flush_units_while_syncs_are_made() {
    let (rig, writers, synced) = rig_with(Limits { flushes: true, ..on_the_device() });
    let count = |matches: fn(&Unit) -> bool| -> usize {
        writers.iter().map(|writer| writer.units.lock().unwrap().iter().filter(|unit| matches(unit)).count()).sum()
    };
    let (flushed, submitted) = (|| count(|unit| unit.flushes), || count(|_| true));
    synced.fsync().unwrap();
    let _ = rig.engine.step();
    for _ in 0..20 {
        assert_eq!(bytes_in_flight(&writers), FLUSHED_BYTES);
        end_one(&rig, &writers);
    }
    assert_eq!((flushed(), submitted()), (21, 21));
    rig.clock.advance(Duration::from_millis(1100));
    for _ in 0..5 {
        end_one(&rig, &writers);
    }
    assert!(bytes_in_flight(&writers) >= 2 << 20, "{}", bytes_in_flight(&writers));
    assert_eq!(flushed(), 21, "no sync is made, so throughput is all that counts");
    assert!(submitted() > 21);
    end(rig, writers, synced);
}

/// A program that syncs every second, as Redis does, is no stranger to the gate.
#[test]
fn p07_regular_syncs_keep_the_limit_between_them() {
    let (rig, writers, synced) = rig();
    let sync_after = |ms| {
        rig.clock.advance(Duration::from_millis(ms));
        synced.write_at(0, b"y").unwrap();
        synced.fsync().unwrap();
        let _ = rig.engine.step();
    };
    let limit_holds_after = |ms| {
        rig.clock.advance(Duration::from_millis(ms));
        for _ in 0..5 {
            end_one(&rig, &writers);
        }
        bytes_in_flight(&writers) <= IN_FLIGHT_BYTES
    };
    sync_after(0);
    sync_after(1050);
    assert!(limit_holds_after(2000), "twice the pause");
    sync_after(60_000);
    writers.iter().for_each(|writer| writer.file.write_at(0, &vec![2; FILE_BYTES]).map(drop).unwrap());
    assert!(!limit_holds_after(1100), "such a sync says nothing about the next one");
    end(rig, writers, synced);
}

/// The limit is what the device writes in 2 ms, but not less than 1 MiB.
#[test]
fn p07_the_limit_is_a_time() {
    for (mib_per_s, limit) in [(100, IN_FLIGHT_BYTES), (2048, 4 * IN_FLIGHT_BYTES)] {
        let (rig, writers, synced) = rig();
        for _ in 0..16 {
            writers.iter().for_each(|writer| writer.file.write_at(0, &vec![2; FILE_BYTES]).map(drop).unwrap());
            let _ = rig.engine.step();
            while let Some(writer) = writers.iter().find(|writer| !writer.in_flight().is_empty()) {
                let ns = writer.in_flight().values().next().unwrap() * 1_000_000_000 / (mib_per_s << 20);
                rig.clock.advance(Duration::from_nanos(ns as u64));
                writer.end_oldest();
                let _ = rig.engine.step();
            }
        }
        synced.fsync().unwrap();
        writers.iter().for_each(|writer| writer.file.write_at(0, &vec![3; FILE_BYTES]).map(drop).unwrap());
        let _ = rig.engine.step();
        assert_eq!(bytes_in_flight(&writers), limit, "at {mib_per_s} MiB/s");
        end(rig, writers, synced);
    }
}
