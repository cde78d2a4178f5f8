//! Who asked to hear of the end of a mount hears of it once, whoever ends it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slackwater_fuse::mount::unmount;

use crate::programs::until;
use crate::rig::{Rig, assert_same, pattern, within};

/// Counts how often it is told.
fn told(rig: &Rig) -> Arc<AtomicUsize> {
    let told = Arc::new(AtomicUsize::new(0));
    let (count, mounted) = (Arc::clone(&told), Arc::downgrade(&rig.mounted));
    rig.mounted.on_unmounted(move || {
        assert!(mounted.upgrade().is_none_or(|mounted| mounted.is_unmounted()));
        count.fetch_add(1, Ordering::SeqCst);
    });
    told
}

/// Two are told, and who asks afterwards is told at once. The volume itself ends as ever.
fn told_once(rig: &Rig, told: &[Arc<AtomicUsize>; 2], wanted: &[u8]) {
    until("they are told", || told.iter().all(|told| told.load(Ordering::SeqCst) > 0));
    let mounted = rig.mounted.clone();
    within("the flush", move || mounted.wait_ended()).unwrap();
    assert_same(&fs::read(rig.stored("a")).unwrap(), wanted);
    assert_eq!(self::told(rig).load(Ordering::SeqCst), 1, "here and now");
    for told in told {
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn our_own_unmount_tells_once() {
    let rig = Rig::new();
    let told = [told(&rig), told(&rig)];
    fs::write(rig.file("a"), pattern(1, 100_000)).unwrap();
    let file = fs::File::open(rig.file("a")).unwrap();
    rig.umount_at_once().unwrap_err();
    assert_eq!(told[0].load(Ordering::SeqCst), 0, "it is in use, and mounted still");
    drop(file);
    rig.umount().unwrap();
    told_once(&rig, &told, &pattern(1, 100_000));
}

#[test]
fn an_unmount_by_the_program_tells_once() {
    let rig = Rig::new();
    let told = [told(&rig), told(&rig)];
    fs::write(rig.file("a"), pattern(2, 100_000)).unwrap();
    until("umount(8) does it", || Command::new("umount").arg(&rig.path).output().unwrap().status.success());
    told_once(&rig, &told, &pattern(2, 100_000));
}

#[test]
fn a_connection_that_is_cut_tells_once() {
    let rig = Rig::new();
    let told = [told(&rig), told(&rig)];
    fs::write(rig.file("a"), pattern(3, 100_000)).unwrap();
    let connection = rustix::fs::minor(fs::metadata(&rig.path).unwrap().dev());
    let abort = PathBuf::from(format!("/sys/fs/fuse/connections/{connection}/abort"));
    if !abort.exists() {
        return println!("skipped: fusectl is not mounted here");
    }
    fs::write(abort, b"1").unwrap();
    told_once(&rig, &told, &pattern(3, 100_000));
    fs::metadata(&rig.path).expect_err("the dead mount is there");
    unmount(&rig.path, true).unwrap();
}

/// It is told on a thread that serves others too.
#[test]
fn who_panics_when_told_harms_nobody_else() {
    let rig = Rig::new();
    rig.mounted.on_unmounted(|| std::panic::resume_unwind(Box::new("on purpose")));
    let told = [told(&rig), told(&rig)];
    fs::write(rig.file("a"), pattern(4, 100_000)).unwrap();
    rig.umount().unwrap();
    told_once(&rig, &told, &pattern(4, 100_000));
}
