//! Quotas of directories, on real ext4 and XFS, and mounts of such directories.
//!
//! A kernel without quotas cannot mount these file systems. Each test then runs itself in user-mode Linux ([`guest`]).

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(clippy::duplicate_mod, reason = "tests look at quotas by the calls of the module under test")]

mod directory;
mod disk;
mod engine;
mod guest;
mod mount;
#[path = "../../../containers/src/quota/mod.rs"]
mod quota;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../../../containers/src/quota/sys.rs"]
#[allow(dead_code, reason = "tests only look at quotas by it")]
mod sys;
mod unsupported;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::disk::{Disk, Kind};
use crate::quota::Quota;
use crate::rig::{Scratch, bytes, need_fuse};

const MIB: u64 = 1 << 20;

/// Runs `body` on an ext4 and on an XFS with project quotas; `test` is the name of the test.
#[track_caller]
fn on_each_disk(test: &str, body: fn(&Scratch, &Disk)) {
    guest::prepare();
    need_fuse();
    for kind in [Kind::Ext4, Kind::Xfs] {
        let scratch = Scratch::new();
        let Some(disk) = Disk::new(&scratch, kind, "prjquota") else {
            assert!(!guest::is_inside(), "the guest has no quotas on {kind:?}");
            return guest::run(test);
        };
        obey_quotas();
        body(&scratch, &disk);
    }
}

/// On ext4, a thread with this capability is not limited.
fn obey_quotas() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    set_capabilities(None, sets).unwrap();
}

/// A directory with a quota.
fn limited(disk: &Disk, bytes_max: u64, inodes_max: Option<u64>) -> (std::path::PathBuf, Quota) {
    let path = disk.path.join("limited");
    std::fs::create_dir(&path).unwrap();
    let quota = Quota::of(&path).unwrap();
    quota.set(Some(bytes_max), inodes_max).unwrap();
    (path, quota)
}

/// Appends pieces of 64 KiB until one is refused. Returns what was accepted.
#[track_caller]
fn write_until_refused(path: &Path) -> (File, Vec<u8>) {
    let mut file = File::create(path).unwrap();
    let mut accepted = Vec::new();
    loop {
        assert!(accepted.len() < 128 << 20, "nothing is refused");
        let piece = bytes(accepted.len() as u64, 64 << 10);
        match file.write(&piece) {
            Ok(count) => accepted.extend(&piece[..count]),
            Err(error) => {
                assert_is_quota(&error);
                return (file, accepted);
            }
        }
    }
}

/// XFS says ENOSPC where ext4 says EDQUOT.
#[track_caller]
fn assert_is_quota(error: &io::Error) {
    let errno = Errno::from_io_error(error);
    assert!(matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)), "{error}");
}
