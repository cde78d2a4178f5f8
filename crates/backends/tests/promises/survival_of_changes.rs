//! P12 across a crash: files that another program changes or removes before the next mount.

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{AttrChange, Limits, MemBackend, Removal};
use slackwater::{Clock, Engine, ErrorKind, File, ManualClock, RescuedFrom, SuperBlock, Timestamp, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_testkit::Rule;

use crate::rig::{Disk, PAGE, Rig, assert_same, by_hand, create, limits, open, read_all, recover, remount, snapshot};
use crate::survival::{kill_and_mount, unmount};

/// Later than all times of the rigs.
const LATER_NS: i64 = i64::MAX / 2;

/// Another engine changes files that the dead one left on the backend.
fn by_others(mem: &Arc<MemBackend>, change: impl FnOnce(&Arc<SuperBlock>)) {
    let arena = Arena::create(&ArenaConfig::memfd(4 << 20)).unwrap();
    let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(LATER_NS))), by_hand());
    let volume = engine.mount("other", mem.clone()).unwrap();
    change(&volume);
    volume.umount(UmountOptions::default()).unwrap();
}

/// The file of `rescued`, and its content.
fn rescued_bytes(volume: &Arc<SuperBlock>) -> (RescuedFrom, Vec<u8>) {
    let [rescued] = &volume.rescued()[..] else { panic!("one file: {:?}", volume.rescued()) };
    assert_eq!(volume.status().rescued_files, 1);
    (rescued.from, read_all(&open(volume, rescued.name.to_str().unwrap())))
}

/// Writes two pages of a file of three, one of them durably, and lets `meanwhile` change the backend after the kill.
fn killed_with_a_dirty_page(meanwhile: impl FnOnce(&Arc<MemBackend>)) -> (Engine, Arc<SuperBlock>, Arc<MemBackend>) {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[7; 3 * PAGE]).unwrap();
    file.fsync().unwrap();
    file.write_at(PAGE as u64, &[8; PAGE]).unwrap();
    let left = snapshot(&rig.engine);
    rig.disk.faults.clear();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    let mem = rig.disk.mem.clone();
    drop((file, rig));
    meanwhile(&mem);
    let (engine, _) = recover(left);
    let volume = remount(&engine, &mem).unwrap();
    (engine, volume, mem)
}

/// Our page as it looks beside holes.
fn dirty_page_alone() -> Vec<u8> {
    let mut bytes = vec![0; 3 * PAGE];
    bytes[PAGE..2 * PAGE].fill(8);
    bytes
}

#[test]
fn p12_a_file_that_was_changed_after_the_crash_stays_and_the_dirty_data_is_kept_beside_it() {
    for len in [PAGE / 2, 3 * PAGE, 5 * PAGE] {
        let theirs = vec![9; len];
        let (engine, volume, mem) = killed_with_a_dirty_page(|mem| {
            by_others(mem, |other| {
                let file = open(other, "a");
                file.set_len(0).unwrap();
                file.write_at(0, &theirs).unwrap();
            });
        });
        assert_same(&read_all(&open(&volume, "a")), &theirs, "the source stays");
        let (from, ours) = rescued_bytes(&volume);
        assert_eq!(from, RescuedFrom::Changed);
        assert_same(&ours, &dirty_page_alone(), "ours");
        unmount(&engine, &volume);
        assert_same(&mem.durable_file("a").unwrap(), &theirs, "durable");
    }
}

#[test]
fn p12_a_file_that_was_removed_or_replaced_after_the_crash_leaves_its_dirty_data_in_a_file_of_its_own() {
    for is_replaced in [false, true] {
        let (engine, volume, _mem) = killed_with_a_dirty_page(|mem| {
            by_others(mem, |other| {
                let root = other.root().unwrap();
                other.remove(&root, "a", Removal::File).unwrap();
                if is_replaced {
                    create(other, "a").write_at(0, b"new").unwrap();
                }
            });
        });
        let (from, ours) = rescued_bytes(&volume);
        assert_eq!(from, RescuedFrom::Removed);
        assert_same(&ours, &dirty_page_alone(), "ours");
        match volume.walk("a") {
            Ok(_) => assert_same(&read_all(&open(&volume, "a")), b"new", "theirs"),
            Err(error) => assert!(!is_replaced && error.kind() == ErrorKind::NotFound, "{error}"),
        }
        unmount(&engine, &volume);
    }
}

#[test]
fn p12_a_file_that_was_not_changed_after_the_crash_gets_its_data_whatever_was_in_flight() {
    for held in ["write", "setattr", "sync_volume"] {
        let rig = Rig::by_hand();
        let file = rig.create("a");
        file.write_at(0, &[7; 3 * PAGE]).unwrap();
        file.fsync().unwrap();
        file.write_at(PAGE as u64, &[8; PAGE]).unwrap();
        rig.disk.faults.add(Rule::hold().on(held));
        rig.flush_without_waiting();
        file.write_at(0, &[6; 10]).unwrap();
        let mut wanted = vec![7; 3 * PAGE];
        wanted[PAGE..2 * PAGE].fill(8);
        wanted[..10].fill(6);
        let (engine, volume, mem) = kill_and_mount(rig);
        assert_eq!(volume.rescued(), [], "{held}");
        assert_same(&read_all(&open(&volume, "a")), &wanted, held);
        unmount(&engine, &volume);
        assert_same(&mem.durable_file("a").unwrap(), &wanted, held);
    }
}

/// Kills the rig's process, which has `file` open, while calls are held. The backend carries them out. Returns an engine on what it left, with the
/// volume mounted.
fn killed_when_carried_out(rig: Rig, file: File) -> (Engine, Arc<SuperBlock>) {
    killed_and_mounted_later(rig, file, |_| ())
}

/// The same, with something that happens to the backend before the mount, an hour later.
fn killed_and_mounted_later(
    rig: Rig,
    file: File,
    meanwhile: impl FnOnce(&Arc<MemBackend>),
) -> (Engine, Arc<SuperBlock>) {
    let left = snapshot(&rig.engine);
    rig.disk.faults.clear();
    rig.disk.faults.release_all();
    rig.disk.faults.add(Rule::fail(ErrorKind::Abandoned));
    let mem = rig.disk.mem.clone();
    let Timestamp(now_ns) = rig.clock.wall();
    drop((file, rig));
    meanwhile(&mem);
    let (engine, clock) = recover(left);
    clock.advance(Duration::from_nanos(now_ns as u64) + Duration::from_secs(3600));
    let volume = remount(&engine, &mem).unwrap();
    (engine, volume)
}

/// A file of three pages that is durable, and whose second page was written since.
fn with_a_dirty_page() -> (Rig, File) {
    let local = Limits { device: Some(7), ..limits() };
    let rig = Rig::with(Disk::with_limits(local), by_hand());
    let file = rig.create("a");
    file.write_at(0, &[7; 3 * PAGE]).unwrap();
    file.fsync().unwrap();
    rig.clock.advance(Duration::from_secs(100));
    file.write_at(PAGE as u64, &[8; PAGE]).unwrap();
    (rig, file)
}

/// The same, and the write of the page to the backend is under way.
fn with_a_held_write() -> (Rig, File) {
    let (rig, file) = with_a_dirty_page();
    rig.disk.faults.add(Rule::hold().on("write"));
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty());
    (rig, file)
}

/// Sets time and size of the file on the backend.
fn change_on_backend(mem: &Arc<MemBackend>, mtime_ns: i64, size_bytes: Option<u64>) {
    by_others(mem, |other| {
        let change = AttrChange { mtime: Some(Timestamp(mtime_ns)), size_bytes, ..AttrChange::default() };
        other.setattr(open(other, "a").inode(), change).unwrap();
    });
}

/// The backend hung for a minute, and the process was killed meanwhile. Its write was carried out when the backend
/// answered again, and gave the file that time. It was taken for a change by another program, because it was more than 5 s
/// later than the call: the file kept the old content of other pages, and their new content was moved to a rescue file.
#[test]
fn p12_a_call_carried_out_long_after_the_death_is_no_change_by_another_program() {
    let (rig, file) = with_a_held_write();
    file.write_at(0, &[6; 10]).unwrap();
    let Timestamp(now_ns) = rig.clock.wall();
    let (engine, volume) =
        killed_and_mounted_later(rig, file, |mem| change_on_backend(mem, now_ns + 60_000_000_000, None));
    assert_eq!(volume.rescued(), []);
    let mut wanted = vec![7; 3 * PAGE];
    wanted[PAGE..2 * PAGE].fill(8);
    wanted[..10].fill(6);
    assert_same(&read_all(&open(&volume, "a")), &wanted, "a");
    unmount(&engine, &volume);
}

/// A change up to 5 s after the last call was not noticed, although all calls had been answered.
#[test]
fn p12_a_change_soon_after_the_last_call_is_noticed_unless_that_was_under_way() {
    let written = || {
        let (rig, file) = with_a_dirty_page();
        file.write_back().unwrap(); // and not durable
        (rig, file)
    };
    for ((rig, file), later_ns, size_bytes) in [
        (written(), 2_000_000_000, None),
        (written(), 2_000_000_000, Some(5 * PAGE as u64)),
        (with_a_held_write(), 60_000_000_000, Some(5 * PAGE as u64)),
    ] {
        let Timestamp(now_ns) = rig.clock.wall();
        let (engine, volume) =
            killed_and_mounted_later(rig, file, |mem| change_on_backend(mem, now_ns + later_ns, size_bytes));
        let (from, ours) = rescued_bytes(&volume);
        assert_eq!(from, RescuedFrom::Changed);
        assert_same(&ours, &dirty_page_alone(), "ours");
        unmount(&engine, &volume);
    }
}

/// The call that was in flight at the kill was carried out. The time that it set is older than the last write, and older
/// than the call itself.
#[test]
fn p12_a_time_that_a_call_in_flight_set_is_no_change_by_another_program() {
    let local = Limits { device: Some(7), ..limits() };
    let rig = Rig::with(Disk::with_limits(local), by_hand());
    let file = rig.create("a");
    file.write_at(0, &[7; 3 * PAGE]).unwrap();
    file.fsync().unwrap();
    rig.clock.advance(Duration::from_secs(100));
    file.write_at(PAGE as u64, &[8; PAGE]).unwrap();
    rig.disk.faults.add(Rule::hold().on("setattr"));
    rig.flush_without_waiting();
    assert!(!rig.disk.faults.held().is_empty());
    file.write_at(0, &[6; 10]).unwrap();
    let (engine, volume) = killed_when_carried_out(rig, file);
    assert_eq!(volume.rescued(), []);
    let mut wanted = vec![7; 3 * PAGE];
    wanted[PAGE..2 * PAGE].fill(8);
    wanted[..10].fill(6);
    assert_same(&read_all(&open(&volume, "a")), &wanted, "a");
    unmount(&engine, &volume);
}

/// The file system below has a finer clock than programs see here, so its time of the creation is after that of a write
/// which came later. A flush that sets the time of that write was in flight at the kill.
#[test]
fn p12_a_time_before_that_of_the_backend_is_no_change_by_another_program() {
    for writes_again in [false, true] {
        let local = Limits { device: Some(7), ..limits() };
        let rig = Rig::with(Disk::with_limits(local), by_hand());
        let file = rig.create("a");
        rig.clock.advance(Duration::from_secs(100));
        let Timestamp(now_ns) = rig.clock.wall();
        let change = AttrChange { mtime: Some(Timestamp(now_ns + 2_500_000)), ..AttrChange::default() };
        rig.volume.setattr(file.inode(), change).unwrap();
        file.write_at(0, &[7; PAGE]).unwrap();
        rig.clock.advance(Duration::from_secs(10));
        rig.disk.faults.add(Rule::hold().on("setattr"));
        rig.flush_without_waiting();
        assert!(!rig.disk.faults.held().is_empty());
        if writes_again {
            file.write_at(0, &[7; PAGE]).unwrap();
        }
        let (engine, volume) = killed_when_carried_out(rig, file);
        assert_eq!(volume.rescued(), [], "another write: {writes_again}");
        assert_same(&read_all(&open(&volume, "a")), &[7; PAGE], "a");
        unmount(&engine, &volume);
    }
}
