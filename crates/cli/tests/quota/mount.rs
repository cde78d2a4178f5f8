//! A mount of a directory with a quota: P11, and nothing that `fsync` acknowledged is lost.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::disk::Disk;
use crate::quota::Quota;
use crate::rig::{Mount, Scratch, bytes, run, wait_until};
use crate::{MIB, assert_is_quota, limited, on_each_disk, write_until_refused};

/// A mount that writes nothing back on its own.
struct Limited {
    source: PathBuf,
    quota: Quota,
    path: PathBuf,
    mount: Mount,
}

impl Limited {
    /// `None` on a kernel that is too old for mounts.
    fn new(scratch: &Scratch, disk: &Disk, inodes_max: Option<u64>) -> Option<Self> {
        let release = rustix::system::uname();
        let mut numbers =
            release.release().to_str().unwrap().split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        if (numbers.next(), numbers.next()) < (Some(6), Some(9)) {
            eprintln!("skipped: {release:?} is too old for mounts");
            return None;
        }
        let (source, quota) = limited(disk, 32 * MIB, inodes_max);
        let path = scratch.dir("mount", 0o755);
        let mount = scratch.mount(&source, &path, &["--dirty-ratio", "90", "--dirty-expire", "10m"]);
        Some(Self { source, quota, path, mount })
    }

    fn end(mut self, scratch: &Scratch) -> PathBuf {
        scratch.umount(&self.path);
        self.mount.wait().expect(0, &[]);
        self.source
    }
}

#[test]
fn p11_what_a_mount_accepts_fits_the_quota() {
    on_each_disk("mount::p11_what_a_mount_accepts_fits_the_quota", |scratch, disk| {
        let Some(limited) = Limited::new(scratch, disk, None) else { return };
        let mut df = Command::new("df");
        df.args(["--output=size", "-k"]).arg(&limited.path);
        run(df).expect(0, &[&(32 * MIB / 1024).to_string()]);
        let (file, mut accepted) = write_until_refused(&limited.path.join("data"));
        assert!((30 * MIB..=32 * MIB).contains(&(accepted.len() as u64)), "{}", accepted.len());
        file.sync_all().unwrap();
        drop(file);
        // Raised while it is mounted.
        limited.quota.set(Some(40 * MIB), None).unwrap();
        let (file, more) = write_until_refused(&limited.path.join("more"));
        assert!((6 * MIB..=9 * MIB).contains(&(more.len() as u64)), "{}", more.len());
        // Space that is freed can be used again, after the kernel has let go of the file.
        drop(file);
        fs::remove_file(limited.path.join("data")).unwrap();
        let free = || statvfs(&limited.path).map(|shown| shown.f_bavail * shown.f_frsize).unwrap();
        wait_until("the file is gone", || free() > 30 * MIB);
        (_, accepted) = write_until_refused(&limited.path.join("data"));
        assert!((30 * MIB..=33 * MIB).contains(&(accepted.len() as u64)), "{}", accepted.len());
        let source = limited.end(scratch);
        assert!(fs::read(source.join("data")).unwrap() == accepted, "other bytes than accepted");
        assert!(fs::read(source.join("more")).unwrap() == more, "other bytes than accepted");
    });
}

#[test]
fn p11_names_beyond_the_quota_are_refused_and_cost_no_accepted_bytes() {
    on_each_disk("mount::p11_names_beyond_the_quota_are_refused_and_cost_no_accepted_bytes", |scratch, disk| {
        let Some(limited) = Limited::new(scratch, disk, Some(100)) else { return };
        let (file, accepted) = write_until_refused(&limited.path.join("data"));
        let refused = (0..100).find_map(|nth| fs::create_dir(limited.path.join(nth.to_string())).err());
        assert_is_quota(&refused.expect("the source has less space"));
        let other = File::create(limited.path.join("other"));
        let allocated = other
            .map_err(|error| assert_is_quota(&error))
            .map(|other| fallocate(&other, FallocateFlags::empty(), 0, 20 * MIB).unwrap_err());
        allocated.map(|errno| assert_is_quota(&errno.into())).unwrap_or_default();
        file.sync_all().unwrap();
        drop(file);
        let source = limited.end(scratch);
        assert!(fs::read(source.join("data")).unwrap() == accepted, "other bytes than accepted");
    });
}

/// Bytes in an old hole are accepted without space (the limits of P11). Their error is reported, and they stay.
#[test]
fn p02_bytes_that_the_quota_refuses_later_are_reported_and_kept() {
    on_each_disk("mount::p02_bytes_that_the_quota_refuses_later_are_reported_and_kept", |scratch, disk| {
        let Some(limited) = Limited::new(scratch, disk, None) else { return };
        let path = limited.path.join("sparse");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(64 * MIB).unwrap();
        file.write_all_at(b"end", 64 * MIB - 3).unwrap();
        file.sync_all().unwrap();
        let data = bytes(7, 40 * MIB as usize);
        let written = file.write_all_at(&data, 0);
        let synced = file.sync_all();
        let error = written.and(synced).expect_err("the quota is smaller");
        assert_is_quota(&error);
        limited.quota.set(Some(96 * MIB), None).unwrap();
        // A write-back that failed before may still be reported.
        wait_until("the quota suffices", || file.write_all_at(&data, 0).and_then(|()| file.sync_all()).is_ok());
        drop(file);
        let mut other = File::create(limited.path.join("other")).unwrap();
        other.write_all(&data).unwrap();
        drop(other);
        let source = limited.end(scratch);
        assert!(fs::read(source.join("sparse")).unwrap()[..data.len()] == data[..], "other bytes than accepted");
        assert!(fs::read(source.join("other")).unwrap() == data, "other bytes than accepted");
    });
}
