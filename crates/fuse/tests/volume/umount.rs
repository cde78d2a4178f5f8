//! Unmounting: who is in the way, what is flushed, and what is never lost.

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
use slackwater_backends::Rule;
use slackwater_fuse::mount::unmount;
use slackwater_fuse::{MountedError, Step, UmountRequest};

use crate::programs::{LONG, spawn, until, wait};
use crate::rig::{Rig, assert_same, pattern, umount, within};

fn holders(error: &MountedError) -> Vec<(u32, String)> {
    let MountedError::Busy { holders, .. } = error else { panic!("{error}") };
    holders.iter().map(|holder| (holder.pid, holder.path.display().to_string())).collect()
}

#[test]
fn who_is_in_the_way_is_named() {
    let rig = Rig::new();
    fs::create_dir(rig.file("d")).unwrap();
    fs::write(rig.file("d/open"), b"x").unwrap();
    let mut tail = spawn("tail", &["-f", rig.file("d/open").to_str().unwrap()]);
    let script = format!("cd {} && exec sleep 1000", rig.file("d").display());
    let mut sleep = spawn("sh", &["-c", &script]);
    until("both are there, and the shell is the other program", || {
        let holders = rig.mounted.holders();
        holders.len() == 2 && holders.iter().any(|holder| holder.command == "sleep")
    });
    let error = rig.umount_at_once().unwrap_err();
    let mut wanted =
        [(tail.id(), rig.file("d/open").display().to_string()), (sleep.id(), rig.file("d").display().to_string())];
    wanted.sort();
    assert_eq!(holders(&error), wanted);
    assert!(error.to_string().contains(&format!("sleep ({})", sleep.id())), "{error}");
    fs::write(rig.file("still"), b"works").unwrap();
    for child in [&mut tail, &mut sleep] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    rig.umount().unwrap();
    assert_eq!(fs::read(rig.stored("still")).unwrap(), b"works");
}

/// A descriptor on its way through a socket keeps the mount in use, and no process has it.
struct OnItsWay {
    _sockets: [OwnedFd; 2],
}

impl OnItsWay {
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
fn who_is_not_to_be_found_is_in_the_way_if_he_stays_and_not_if_he_passes() {
    let rig = Rig::new();
    fs::write(rig.file("a"), b"a").unwrap();
    let on_its_way = || OnItsWay::new(File::open(rig.file("a")).unwrap());
    let stays = on_its_way();
    until("nobody is to be found", || rig.mounted.holders().is_empty());
    let start = Instant::now();
    let error = rig.umount_at_once().unwrap_err();
    // A child of another test may have had the file for a moment, and then it is named at once.
    assert!(!holders(&error).is_empty() || start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    drop(stays);
    // On a machine that is very busy he may stay longer than he is waited for.
    let has_passed = (0..20).any(|_| {
        let passes = on_its_way();
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
fn a_plain_umount_by_somebody_else_loses_nothing() {
    let rig = Rig::new();
    let wanted = pattern(1, 10_000_000);
    fs::write(rig.file("a"), &wanted).unwrap();
    until("umount(2) does it", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &wanted);
    assert_eq!(rig.mounted.super_block().status().bytes_left(), 0);
}

#[test]
fn an_unmount_under_load_ends_with_all_that_was_written() {
    let rig = Rig::new();
    fs::write(rig.file("marker"), b"").unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let (path, count) = (rig.path.clone(), written.clone());
    let writer = std::thread::spawn(move || {
        // Between two files nothing is in use, so an unmount can win; then the mountpoint is an empty directory.
        for number in 0.. {
            std::thread::sleep(Duration::from_millis(3));
            match File::options().write(true).create_new(true).open(path.join(format!("{number}"))) {
                Ok(file) if path.join("marker").exists() || file.metadata().unwrap().dev() != dev_of(&path) => {
                    file.write_all_at(&pattern(number as u8, 10_000), 0).unwrap();
                    count.store(number + 1, Ordering::Release);
                }
                Ok(_) => return fs::remove_file(path.join(format!("{number}"))).unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    });
    until("it writes", || written.load(Ordering::Acquire) > 20);
    until("an unmount wins", || match rig.umount_at_once() {
        Ok(()) => true,
        Err(MountedError::Busy { .. }) => false,
        Err(error) => panic!("{error}"),
    });
    writer.join().unwrap();
    for number in 0..written.load(Ordering::Acquire) {
        let stored = fs::read(rig.stored(format!("{number}"))).unwrap_or_default();
        assert_same(&stored, &pattern(number as u8, 10_000));
    }
}

fn dev_of(path: &std::path::Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

#[test]
fn past_the_deadline_the_volume_is_mounted_and_loses_nothing() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(2, 1_000_000)).unwrap();
    let steps = Mutex::new(Vec::new());
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    let error = umount(&rig.mounted, soon, &|progress| steps.lock().unwrap().push(progress)).unwrap_err();
    assert!(matches!(error, MountedError::Deadline { dirty_bytes: 1_000_000.., .. }), "{error}");
    assert!(steps.lock().unwrap().iter().all(|progress| progress.step == Step::Flushing && progress.bytes_left > 0));
    assert!(!steps.lock().unwrap().is_empty());
    fs::write(rig.file("b"), b"works").unwrap();
    assert_same(&fs::read(rig.file("a")).unwrap(), &pattern(2, 1_000_000));
    rig.faults.clear();
    rig.faults.release_all();
    rig.umount().unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 1_000_000));
    assert_eq!(fs::read(rig.stored("b")).unwrap(), b"works");
}

#[test]
fn force_takes_it_from_who_has_it_open_and_keeps_what_was_written() {
    let rig = Rig::new();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("a")).unwrap();
    file.write_all(&pattern(3, 500_000)).unwrap();
    let request = UmountRequest { deadline: Some(LONG), force: true, ..UmountRequest::default() };
    rig.mounted.umount(request, &|_| {}).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(3, 500_000));
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.read_at(&mut [0], 0).is_err());
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "nothing is mounted there");
}

/// P3.
#[test]
fn p03_past_its_deadline_a_forced_unmount_frees_the_mount_point_and_keeps_the_data() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    let mut file = File::create(rig.file("a")).unwrap();
    file.write_all(&pattern(2, 1_000_000)).unwrap();
    let request = UmountRequest { deadline: Some(Duration::from_millis(300)), force: true, ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || mounted.umount(request, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Left { dirty_bytes: 1_000_000.., .. }), "{error}");
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "nothing is mounted there");
    assert!(file.write_at(b"x", 0).is_err());
    let mounted = rig.mounted.clone();
    let again = within("a second one", move || mounted.umount(request, &|_| {})).unwrap_err();
    assert!(matches!(again, MountedError::Left { dirty_bytes: 1_000_000.., .. }), "{again}");
    rig.faults.clear();
    rig.faults.release_all();
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 1_000_000));
}

#[test]
fn force_does_not_wait_for_an_unmount_that_waits_for_ever() {
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
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "nothing is mounted there");
    rig.faults.clear();
    rig.faults.release_all();
    within("the patient unmount", move || patient.join().unwrap()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn an_unmount_that_gives_up_on_a_stall_waits_while_data_moves() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    let stall = Duration::from_secs(1);
    (0..6).for_each(|n| fs::write(rig.file(n.to_string()), pattern(n, 100_000)).unwrap());
    let request = UmountRequest { stall: Some(stall), ..UmountRequest::default() };
    let mounted = rig.mounted.clone();
    let error = within("the unmount", move || umount(&mounted, request, &|_| {})).unwrap_err();
    assert!(matches!(error, MountedError::Deadline { dirty_bytes: 600_000.., .. }), "{error}");
    // Six writes, each in half the time that it would wait for one, are more than that time together.
    let mounted = rig.mounted.clone();
    let unmounting = std::thread::spawn(move || umount(&mounted, request, &|_| {}));
    let mut released = 0;
    until("all is written", || {
        std::thread::sleep(stall / 2);
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
fn a_discard_that_came_to_nothing_takes_nothing_from_a_later_unmount() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    let discard = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    let soon = UmountRequest { deadline: Some(Duration::from_millis(300)), ..UmountRequest::default() };
    let refused = AtomicUsize::new(0);
    let error = umount(&rig.mounted, soon, &|_| {
        let second = || rig.mounted.umount(discard, &|_| {});
        let second = std::thread::scope(|scope| scope.spawn(second).join().unwrap());
        assert!(matches!(second, Err(MountedError::InProgress)), "{second:?}");
        refused.fetch_add(1, Ordering::Relaxed);
    });
    assert!(matches!(error, Err(MountedError::Deadline { .. })), "{error:?}");
    assert!(refused.into_inner() > 0);
    fs::write(rig.file("b"), pattern(2, 100_000)).unwrap();
    until("umount(2) does it", || unmount(&rig.path, false).is_ok());
    rig.faults.clear();
    rig.faults.release_all();
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn a_flush_after_umount2_that_hangs_can_be_given_up() {
    let rig = Rig::new();
    rig.faults.add(Rule::hold().on("write"));
    fs::write(rig.file("lost"), pattern(1, 100_000)).unwrap();
    until("umount(2) does it", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    let flushing = std::thread::spawn(move || mounted.wait_ended());
    until("it is known to be unmounted", || rig.mounted.is_unmounted());
    let mounted = rig.mounted.clone();
    let request = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    // Whether this finds the flush at work or not.
    let _ = within("the discard", move || mounted.umount(request, &|_| {}));
    within("the flush", move || flushing.join().unwrap()).unwrap();
    assert_eq!(fs::metadata(rig.stored("lost")).unwrap().len(), 0);
}

/// After a failed attempt the next is an hour away, for the flusher and for the flush of the unmount. Any other attempt
/// is one without a pause. A sync tries at once, and ends both pauses.
#[test]
fn a_flush_that_fails_is_tried_again_with_pauses() {
    let hour = Duration::from_secs(3600);
    let rig = Rig::with(32 << 20, slackwater::Tunables { retry_min: hour, retry_max: hour, ..Default::default() });
    let rule = rig.faults.add(Rule::fail(slackwater::ErrorKind::NoSpace).on("write"));
    fs::write(rig.file("a"), pattern(1, 4096)).unwrap();
    until("umount(2) does it", || unmount(&rig.path, false).is_ok());
    let mounted = rig.mounted.clone();
    let flushing = std::thread::spawn(move || mounted.wait_ended());
    until("the flush has tried", || rig.faults.strikes(rule) > 0);
    std::thread::sleep(Duration::from_millis(1500)); // more than a slice of the flush: a loop without pauses shows
    assert!(rig.faults.strikes(rule) <= 3, "{} attempts", rig.faults.strikes(rule));
    rig.faults.clear();
    rig.mounted.super_block().sync().unwrap();
    within("the flush", move || flushing.join().unwrap()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 4096));
}

#[test]
fn force_and_discard_together_wait_for_nobody() {
    let rig = Rig::with(8 << 20, slackwater::Tunables::default());
    fs::write(rig.file("kept"), b"kept").unwrap();
    rig.mounted.sync().unwrap();
    rig.faults.add(Rule::hold().on("write"));
    let mut open = OpenOptions::new().read(true).write(true).create_new(true).open(rig.file("open")).unwrap();
    open.write_all(&pattern(1, 100_000)).unwrap();
    // More than there is room for.
    let lost = format!("of={}", rig.file("lost").display());
    let mut dd = spawn("dd", &["if=/dev/zero", &lost, "bs=1M", "count=64"]);
    until("a write is parked", || rig.mounted.parked_bytes() > 0);
    let discard = UmountRequest { deadline: Some(LONG), discard: true, ..UmountRequest::default() };
    let error = rig.mounted.umount(discard, &|_| {}).unwrap_err();
    assert!(matches!(error, MountedError::Busy { .. }), "{error}");
    open.read_exact_at(&mut [0; 100], 1000).expect("it is mounted and works");
    let mounted = rig.mounted.clone();
    let request = UmountRequest { force: true, ..discard };
    within("the unmount", move || mounted.umount(request, &|_| {})).unwrap();
    assert!(!wait(&mut dd).expect("who wrote is told").success());
    assert!(open.write_at(b"x", 0).is_err());
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "nothing is mounted there");
    until("nothing is parked any more", || rig.mounted.parked_bytes() == 0);
    assert_eq!(fs::read(rig.stored("kept")).unwrap(), b"kept");
    assert_eq!(fs::metadata(rig.stored("open")).unwrap().len(), 0);
}

#[test]
fn a_volume_that_is_bound_elsewhere_works_on_and_loses_nothing() {
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
    until("it is unmounted there too", || unmount(&bound, false).is_ok());
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended()).unwrap();
    fs::remove_dir(&bound).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), &pattern(1, 100_000));
    assert_same(&fs::read(rig.stored("b")).unwrap(), &pattern(2, 100_000));
}

#[test]
fn force_ends_a_volume_that_is_bound_elsewhere_with_all_data_in_the_backend() {
    let rig = Rig::new();
    let bound = rig.source.parent().unwrap().join("bound");
    fs::create_dir(&bound).unwrap();
    rustix::mount::mount_bind(&rig.path, &bound).unwrap();
    until("it is gone from its mount point", || unmount(&rig.path, false).is_ok());
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
    rig.mounted.wait_ended().unwrap();
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
    assert_eq!(fs::read_dir(&rig.path).unwrap().count(), 0, "it is mounted and works");
    rig.faults.clear();
    rig.faults.release_all();
    rig.umount().unwrap();
    assert!(rig.stored("d").is_dir());
}
