//! An ordinary user, and places where such a user may mount.

mod sys;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use self::sys::leave_mount_namespace;
use super::kept::NOBODY;

/// Runs a test in a mount namespace of its own, in which every user may open /dev/fuse, as on most machines.
#[track_caller]
pub(super) fn in_own_namespace(test: impl FnOnce() + Send) {
    let run = move || {
        leave_mount_namespace();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        remove_mounts_of_other_tests();
        mount("none", "/dev", "tmpfs", MountFlags::empty(), None).unwrap();
        for (name, minor, major) in [("/dev/fuse", 229, 10), ("/dev/null", 3, 1)] {
            mknodat(CWD, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor)).unwrap();
            fs::set_permissions(name, fs::Permissions::from_mode(0o666)).unwrap();
        }
        fs::create_dir("/dev/shm").unwrap();
        fs::set_permissions("/dev/shm", fs::Permissions::from_mode(0o1777)).unwrap();
        test();
    };
    let outcome = thread::scope(|scope| scope.spawn(run).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The copies of mounts in this namespace would keep the volumes of other tests in use.
fn remove_mounts_of_other_tests() {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    for fields in fields.filter(|fields| fields[2] == "fuse.slackwater") {
        // The other test may have unmounted it meanwhile.
        let _ = unmount(fields[1], UnmountFlags::DETACH);
    }
}

/// Makes this thread one of an ordinary user. Other users may not enter the mounts of that user, not even root.
pub(super) fn become_user() {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
}

/// Does work in a program of an ordinary user.
#[track_caller]
pub(super) fn as_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let outcome = thread::scope(|scope| {
        let run = || {
            become_user();
            work()
        };
        scope.spawn(run).join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
