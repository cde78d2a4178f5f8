//! Hooks for the end of a mount are called once, whatever ends it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slackwater_fuse::mount::unmount;
use slackwater_mount::UmountRequest;
use slackwater_testkit::pattern;

use crate::programs::until;
use crate::rig::{Rig, assert_same, within};

/// Adds a hook and counts its calls.
fn count_calls(rig: &Rig) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, mounted) = (Arc::clone(&calls), Arc::downgrade(&rig.mounted));
    rig.mounted.on_unmounted(move || {
        assert!(mounted.upgrade().is_none_or(|mounted| mounted.is_unmounted()));
        count.fetch_add(1, Ordering::SeqCst);
    });
    calls
}

/// Checks that both hooks were called once, that a later hook is called at once, and that the volume ends as usual.
fn assert_called_once(rig: &Rig, calls: &[Arc<AtomicUsize>; 2], wanted: &[u8]) {
    until("the hooks are called", || calls.iter().all(|calls| calls.load(Ordering::SeqCst) > 0));
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended(UmountRequest::default())).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), wanted);
    assert_eq!(count_calls(rig).load(Ordering::SeqCst), 1, "called at once");
    for calls in calls {
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn an_unmount_by_this_process_calls_each_hook_once() {
    let rig = Rig::new();
    let calls = [count_calls(&rig), count_calls(&rig)];
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    let file = fs::File::open(rig.file("a")).unwrap();
    rig.umount_at_once().unwrap_err();
    assert_eq!(calls[0].load(Ordering::SeqCst), 0, "the mount is in use and still mounted");
    drop(file);
    rig.umount().unwrap();
    assert_called_once(&rig, &calls, &pattern(1, 100_000));
}

#[test]
fn an_unmount_by_another_program_calls_each_hook_once() {
    let rig = Rig::new();
    let calls = [count_calls(&rig), count_calls(&rig)];
    fs::write(rig.file("a"), pattern(2, 100_000)).unwrap();
    until("umount(8) does it", || Command::new("umount").arg(&rig.path).output().unwrap().status.success());
    assert_called_once(&rig, &calls, &pattern(2, 100_000));
}

#[test]
fn an_aborted_connection_calls_each_hook_once() {
    let rig = Rig::new();
    let calls = [count_calls(&rig), count_calls(&rig)];
    fs::write(rig.file("a"), pattern(3, 100_000)).unwrap();
    let connection = rustix::fs::minor(fs::metadata(&rig.path).unwrap().dev());
    let abort = PathBuf::from(format!("/sys/fs/fuse/connections/{connection}/abort"));
    if !abort.exists() {
        return println!("skipped: fusectl is not mounted here");
    }
    fs::write(abort, b"1").unwrap();
    assert_called_once(&rig, &calls, &pattern(3, 100_000));
    fs::metadata(&rig.path).expect_err("the dead mount is there");
    unmount(&rig.path, true).unwrap();
}

/// Hooks run on a thread that serves other sessions too.
#[test]
fn a_panicking_hook_affects_no_other() {
    let rig = Rig::new();
    rig.mounted.on_unmounted(|| std::panic::resume_unwind(Box::new("on purpose")));
    let calls = [count_calls(&rig), count_calls(&rig)];
    fs::write(rig.file("a"), pattern(4, 100_000)).unwrap();
    rig.umount().unwrap();
    assert_called_once(&rig, &calls, &pattern(4, 100_000));
}
