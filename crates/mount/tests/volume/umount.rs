//! Unmounting: busy mounts, the flush, and no loss of data.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};
use slackwater_fuse::mount::unmount;
use slackwater_mount::{MountedError, Step, UmountRequest};
use slackwater_testkit::{Rule, pattern};

use crate::programs::{LONG, spawn, until, wait};
use crate::rig::{Rig, assert_same, umount, within};

fn holders(error: &MountedError) -> Vec<(u32, String)> {
    let MountedError::Busy { holders, .. } = error else { panic!("{error}") };
    holders.iter().map(|holder| (holder.pid, holder.path.display().to_string())).collect()
}

#[test]
fn the_processes_that_keep_a_mount_busy_are_named() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    fs::write(rig.file("d/open"), b"x").unwrap();
    let mut tail = spawn("tail", &["-f", rig.file("d/open").to_str().unwrap()]);
    let script = format!("cd {} && exec sleep 1000", rig.file("d").display());
    let mut sleep = spawn("sh", &["-c", &script]);
    until("both programs are found, and the shell has executed sleep", || {
        let holders = rig.mounted.holders();
        holders.len() == 2 && holders.iter().any(|holder| holder.command == "sleep")
    });
    let mut wanted =
        [(tail.id(), rig.file("d/open").display().to_string()), (sleep.id(), rig.file("d").display().to_string())];
    wanted.sort();
    // On a very busy machine a process may not be examined in time.
    let mut errors = (0..20).map(|_| rig.umount_at_once().unwrap_err());
    let are_named = |error: &MountedError| {
        let found = holders(error);
        assert!(found.iter().all(|holder| wanted.contains(holder)), "{found:?}");
        found == wanted
    };
    let error = errors.find(are_named).expect("both programs are named");
    assert!(error.to_string().contains(&format!("sleep ({})", sleep.id())), "{error}");
    fs::write(rig.file("still"), b"works").unwrap();
    for child in [&mut tail, &mut sleep] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("still")).unwrap(), b"works");
}

/// A descriptor in a socket keeps the mount in use without any process that holds it.
struct FdInFlight {
    _sockets: [OwnedFd; 2],
}

impl FdInFlight {
    fn new(file: File) -> Self {
        let (from, to) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&from, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        Self { _sockets: [from, to] }
    }
}

#[test]
fn a_hidden_user_keeps_a_mount_busy_unless_it_is_transient() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"a").unwrap();
    let fd_in_flight = || FdInFlight::new(File::open(rig.file("a")).unwrap());
    let stays = fd_in_flight();
    until("no holder is found", || rig.mounted.holders().is_empty());
    let start = Instant::now();
    let error = rig.umount_at_once().unwrap_err();
    // A child of another test may have had the file for a moment; then it is named at once.
    assert!(!holders(&error).is_empty() || start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    drop(stays);
    // On a very busy machine the descriptor may be held for longer than the unmount waits.
    let has_passed = (0..20).any(|_| {
        let passes = fd_in_flight();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                drop(passes);
            });
            rig.umount_at_once().is_ok()
        })
    });
    assert!(has_passed);
    assert!(rig.mounted.is_unmounted());
}

#[test]
fn a_plain_umount_by_another_process_loses_nothing() {
    let rig = Rig::new();
    let wanted = pattern(1, 10_000_000);
    fs::write(rig.file("a"), &wanted).unwrap();
    until("umount(2) succeeds", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    assert_eq!(rig.mounted.super_block().status().bytes_left(), 0);
}

#[test]
fn an_unmount_under_load_loses_nothing() {
    let rig = Rig::new();
    fs::write(rig.file("marker"), b"").unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let (path, count) = (rig.path.clone(), written.clone());
    let writer = std::thread::spawn(move || {
        // Between two files the mount is not in use, so an unmount can succeed; then the mount point is an empty
        // directory. The pause grows, since an unmount has to write back within it.
        let begun = Instant::now();
        for number in 0.. {
            std::thread::sleep(Duration::from_millis(3).max(begun.elapsed() / 20));
            match File::options().write(true).create_new(true).open(path.join(format!("{number}"))) {
                Ok(file) if path.join("marker").exists() || file.metadata().unwrap().dev() != dev_of(&path) => {
                    file.write_all_at(&pattern(number as u64, 10_000), 0).unwrap();
                    count.store(number + 1, Ordering::Release);
                }
                Ok(_) => return fs::remove_file(path.join(format!("{number}"))).unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    });
    until("the writer has started", || written.load(Ordering::Acquire) > 20);
    until("an unmount succeeds", || match rig.umount_at_once() {
        Ok(()) => true,
        Err(MountedError::Busy { .. }) => false,
        Err(error) => panic!("{error}"),
    });
    writer.join().unwrap();
    for number in 0..written.load(Ordering::Acquire) {
        let stored = fs::read(rig.stored(format!("{number}"))).unwrap_or_default();
        assert_same(&stored, &pattern(number as u64, 10_000));
    }
}

fn dev_of(path: &std::path::Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

#[test]
fn after_the_deadline_the_volume_is_still_mounted_and_complete() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(2, 1_000_000)).unwrap();
    let steps = Mutex::new(Vec::new());
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    // On a very busy machine the deadline may pass before the first report.
    let is_reported = (0..20).any(|_| {
        let error = umount(&rig.mounted, soon, &|progress| steps.lock().unwrap().push(progress)).unwrap_err();
        assert!(matches!(error, MountedError::Deadline { dirty_bytes: 1_000_000.., .. }), "{error}");
        !steps.lock().unwrap().is_empty()
    });
    assert!(is_reported, "progress is reported");
    assert!(steps.lock().unwrap().iter().all(|progress| progress.step == Step::Flushing && progress.bytes_left > 0));
    fs::write(rig.file("b"), b"works").unwrap();
    assert_same(&fs::read(rig.file("a")).unwrap(), &pattern(2, 1_000_000));
    rig.faults.clear();
    rig.faults.release_all();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 1_000_000));
    assert_eq!(fs::read(rig.stored("b")).unwrap(), b"works");
}

#[test]
fn a_forced_unmount_closes_open_files_and_keeps_written_data() {
    let rig = Rig::new();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("a")).unwrap();
    file.write_all(&pattern(3, 500_000)).unwrap();
    let request = UmountRequest { deadline: Some(LONG), force: true, ..UmountRequest::default() };
    rig.mounted.umount(request, &|_| {}).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(3, 500_000));
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "the mount point is free");
}

/// P3.
#[test]
fn p03_after_its_deadline_a_forced_unmount_frees_the_mount_point_and_keeps_the_data() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    let mut file = File::create(rig.file("a")).unwrap();
    file.write_all(&pattern(2, 1_000_000)).unwrap();
    let request = UmountRequest { deadline: Some(Duration::from_millis(300)), force: true, ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || mounted.umount(request, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Left { dirty_bytes: 1_000_000.., .. }), "{error}");
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "the mount point is free");
    assert!(file.write_at(b"x", 0).is_err());
    let mounted = rig.mounted.clone();
    let again = within("a second one", move || mounted.umount(request, &|_| {})).unwrap_err();
    assert!(matches!(again, MountedError::Left { dirty_bytes: 1_000_000.., .. }), "{again}");
    rig.faults.clear();
    rig.faults.release_all();
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 1_000_000));
}

#[test]
fn a_forced_unmount_does_not_wait_for_one_without_a_deadline() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(2, 100_000)).unwrap();
    let mounted = rig.mounted.clone();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let patient = std::thread::spawn(move || {
        umount(&mounted, UmountRequest::default(), &|_| {
            let _ = begun.send(());
        })
    });
    has_begun.recv_timeout(LONG).unwrap();
    let request = UmountRequest { deadline: Some(Duration::from_millis(300)), force: true, ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || mounted.umount(request, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Left { dirty_bytes: 100_000.., .. }), "{error}");
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "the mount point is free");
    rig.faults.clear();
    rig.faults.release_all();
    within("the patient unmount", move || patient.join().unwrap()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn an_unmount_that_gives_up_on_a_stall_waits_while_data_moves() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    let stall = Duration::from_secs(5);
    (0..6).for_each(|n| fs::write(rig.file(n.to_string()), pattern(n, 100_000)).unwrap());
    let request = UmountRequest { stall: Some(stall), ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || umount(&mounted, request, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Deadline { dirty_bytes: 600_000.., .. }), "{error}");
    // Six writes, one every fifth of the stall time, take longer than the stall time together.
    let mounted = rig.mounted.clone();
    let unmounting = std::thread::spawn(move || umount(&mounted, request, &|_| {}));
    let mut released = 0;
    until("all data is written back", || {
        std::thread::sleep(stall / 5);
        released += usize::from(rig.faults.held().first().is_some_and(|held| rig.faults.release(held.ticket)));
        unmounting.is_finished()
    });
    within("the unmount", move || unmounting.join().unwrap()).unwrap();
    assert!(released >= 6, "{released}");
    (0..6).for_each(|n| assert_same(&fs::read(rig.stored(n.to_string())).unwrap(), &pattern(n, 100_000)));
}

#[test]
fn discarding_needs_no_backend() {
    let rig = Rig::new();
    fs::write(rig.file("kept"), b"kept").unwrap();
    rig.mounted.sync().unwrap();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("lost"), pattern(4, 100_000)).unwrap();
    assert!(!rig.mounted.super_block().would_lose().is_empty());
    let mounted = rig.mounted.clone();
    let request = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    within("the unmount", move || umount(&mounted, request, &|_| {})).unwrap();
    assert_eq!(fs::read(rig.stored("kept")).unwrap(), b"kept");
    assert_eq!(fs::metadata(rig.stored("lost")).unwrap().len(), 0);
}

#[test]
fn a_failed_discard_does_not_affect_a_later_unmount() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    let discard = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    let refused = AtomicUsize::new(0);
    // On a very busy machine the deadline may pass before the first report.
    until("an unmount reports progress", || {
        let error = umount(&rig.mounted, soon, &|_| {
            let second = || rig.mounted.umount(discard, &|_| {});
            let second = std::thread::scope(|scope| scope.spawn(second).join().unwrap());
            assert!(matches!(second, Err(MountedError::InProgress)), "{second:?}");
            refused.fetch_add(1, Ordering::Relaxed);
        });
        assert!(matches!(error, Err(MountedError::Deadline { .. })), "{error:?}");
        refused.load(Ordering::Relaxed) > 0
    });
    fs::write(rig.file("b"), pattern(2, 100_000)).unwrap();
    until("umount(2) succeeds", || unmount(&rig.path, false).is_ok());
    rig.faults.clear();
    rig.faults.release_all();
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn a_hung_flush_after_umount2_can_be_discarded() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("lost"), pattern(1, 100_000)).unwrap();
    until("umount(2) succeeds", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    let flushing = std::thread::spawn(move || mounted.wait_ended(UmountRequest::default()));
    until("the unmount is noticed", || rig.mounted.is_unmounted());
    let mounted = rig.mounted.clone();
    let request = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    // The flush may or may not be running at this moment.
    let _ = within("the discard", move || mounted.umount(request, &|_| {}));
    within("the flush", move || flushing.join().unwrap()).unwrap();
    assert_eq!(fs::metadata(rig.stored("lost")).unwrap().len(), 0);
}

/// Another waiter, without a limit, continues meanwhile.
#[test]
fn a_wait_for_the_end_returns_at_its_deadline_and_when_nothing_moves() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    until("umount(2) succeeds", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    let flushing = std::thread::spawn(move || mounted.wait_ended(UmountRequest::default()));
    let soon = Some(Duration::from_millis(300));
    for (deadline, stall) in [(soon, None), (Some(LONG), soon), (None, soon)] {
        let mounted = rig.mounted.clone();
        let limit = UmountRequest { deadline, stall, ..UmountRequest::default() };
        let ended = within("the limit", move || mounted.wait_ended(limit));
        let Err(MountedError::Left { dirty_bytes, .. }) = ended else { panic!("{ended:?}") };
        assert!(dirty_bytes >= 100_000);
    }
    rig.faults.clear();
    rig.faults.release_all();
    let mounted = rig.mounted.clone();
    let limit = UmountRequest { deadline: Some(LONG), ..UmountRequest::default() };
    within("the flush", move || mounted.wait_ended(limit)).unwrap();
    within("the flush of the other", move || flushing.join().unwrap()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
}

/// After a failed attempt the next one comes an hour later, for the flusher and for the flush of the unmount. More
/// attempts mean that a pause is missing. A sync tries at once, and ends both pauses.
#[test]
fn a_failed_flush_is_retried_after_a_pause() {
    let hour = Duration::from_secs(3600);
    let rig = Rig::with(32 << 20, slackwater::Tunables { retry_min: hour, retry_max: hour, ..Default::default() });
    let rule = rig.faults.add(Rule::fail(slackwater::ErrorKind::NoSpace).on("write"));
    fs::write(rig.file("a"), pattern(1, 4096)).unwrap();
    until("umount(2) succeeds", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    let flushing = std::thread::spawn(move || mounted.wait_ended(UmountRequest::default()));
    until("the flush has failed once", || rig.faults.strikes(rule) > 0);
    std::thread::sleep(Duration::from_millis(1500)); // more than a slice of the flush, so that a loop without pauses is detected
    assert!(rig.faults.strikes(rule) <= 3, "{} attempts", rig.faults.strikes(rule));
    rig.faults.clear();
    rig.mounted.super_block().sync().unwrap();
    within("the flush", move || flushing.join().unwrap()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 4096));
}

#[test]
fn force_and_discard_together_wait_for_nothing() {
    let rig = Rig::with(8 << 20, slackwater::Tunables::default());
    fs::write(rig.file("kept"), b"kept").unwrap();
    rig.mounted.sync().unwrap();
    rig.faults.add(Rule::hold().on("write"));
    let mut open = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("open")).unwrap();
    open.write_all(&pattern(1, 100_000)).unwrap();
    // More than fits into the volume's share.
    let lost = format!("of={}", rig.file("lost").display());
    let mut dd = spawn("dd", &["if=/dev/zero", &lost, "bs=1M", "count=64"]);
    until("a write is parked", || rig.mounted.parked_bytes() > 0);
    let discard = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    let error = rig.mounted.umount(discard, &|_| {}).unwrap_err();
    assert!(matches!(error, MountedError::Busy { .. }), "{error}");
    open.read_exact_at(&mut [0; 100], 1000).expect("the volume is mounted and works");
    let mounted = rig.mounted.clone();
    let request = UmountRequest { force: true, ..discard };
    within("the unmount", move || mounted.umount(request, &|_| {})).unwrap();
    assert!(!wait(&mut dd).expect("the writer gets an error").success());
    assert!(open.write_at(b"x", 0).is_err());
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "the mount point is free");
    until("no write is parked any more", || rig.mounted.parked_bytes() == 0);
    assert_eq!(fs::read(rig.stored("kept")).unwrap(), b"kept");
    assert_eq!(fs::metadata(rig.stored("open")).unwrap().len(), 0);
}

#[test]
fn a_bind_mounted_volume_keeps_working_and_loses_nothing() {
    let rig = Rig::new();
    let bound = rig.source.parent().unwrap().join("bound");
    fs::create_dir(&bound).unwrap();
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    rustix::mount::mount_bind(&rig.path, &bound).unwrap();
    for discard in [false, true] {
        let request = UmountRequest { deadline: Some(LONG), discard, ..UmountRequest::default() };
        let error = umount(&rig.mounted, request, &|_| {}).unwrap_err();
        assert!(matches!(error, MountedError::Elsewhere { .. }), "{error}");
        assert_same(&fs::read(bound.join("a")).unwrap(), &pattern(1, 100_000));
        fs::write(bound.join("b"), pattern(2, 100_000)).unwrap();
    }
    assert!(!rig.mounted.is_unmounted());
    until("the bind mount is unmounted too", || unmount(&bound, false).is_ok());
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
    fs::remove_dir(&bound).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn a_forced_unmount_of_a_bind_mounted_volume_writes_all_data_back() {
    let rig = Rig::new();
    let bound = rig.source.parent().unwrap().join("bound");
    fs::create_dir(&bound).unwrap();
    rustix::mount::mount_bind(&rig.path, &bound).unwrap();
    until("the first mount is unmounted", || unmount(&rig.path, false).is_ok());
    let mut file = File::create(bound.join("a")).unwrap();
    file.write_all(&pattern(1, 100_000)).unwrap();
    let request = UmountRequest { deadline: Some(LONG), force: true, ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    within("the unmount", move || mounted.umount(request, &|_| {})).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
    assert!(file.write_at(b"x", 0).is_err());
    assert_eq!(fs::read_dir(&bound).unwrap_err().raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    unmount(&bound, true).unwrap();
    fs::remove_dir(&bound).unwrap();
}

#[test]
fn an_unmounted_volume_has_no_threads_or_nodes_left() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"a").unwrap();
    let mut cat = spawn("cat", &[rig.file("a").to_str().unwrap()]);
    assert!(wait(&mut cat).unwrap().success());
    rig.umount().unwrap();
    rig.umount().unwrap();
    assert_eq!(rig.mounted.super_block().status().inodes, 0);
    rig.mounted.wait_ended(UmountRequest::default()).unwrap();
}

#[test]
fn a_call_that_outlives_its_caller_delays_an_unmount_and_is_not_lost() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("make"));
    let mut mkdir = spawn("mkdir", &[rig.file("d").to_str().unwrap()]);
    assert_eq!(rig.faults.wait_held(1, LONG).len(), 1);
    mkdir.kill().unwrap();
    assert!(wait(&mut mkdir).is_some());
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || umount(&mounted, soon, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Deadline { .. }), "{error}");
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "the volume is mounted and works");
    rig.faults.clear();
    rig.faults.release_all();
    rig.umount().unwrap();
    assert!(rig.stored("d").is_dir());
}
