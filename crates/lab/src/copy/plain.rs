//! The same copy without the engine: the kernel's own page cache, made durable by `syncfs`.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, syncfs, utimensat};
use slackwater::Timestamp;

use super::plan::{Entry, Kind, Plan};
use crate::harness::threads::at_once;
use crate::interrupt;

/// The times of the two parts.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PlainTimes {
    pub(crate) copying: Duration,
    pub(crate) syncing: Duration,
}

/// Copies everything in `plan` into the empty directory `destination` with `threads` threads, and makes it
/// durable.
///
/// # Errors
/// The first failure, with its path, or an interrupt.
pub(crate) fn copy(plan: &Plan, destination: &Path, threads: usize) -> Result<PlainTimes> {
    let start = Instant::now();
    for entry in &plan.entries {
        let path = destination.join(&entry.path);
        let made = match &entry.kind {
            Kind::Directory => fs::create_dir(&path),
            Kind::Symlink { target } => {
                std::os::unix::fs::symlink(target, &path).and_then(|()| set_link_time(&path, entry.mtime))
            }
            Kind::File { .. } => Ok(()),
        };
        made.with_context(|| format!("cannot create {}", path.display()))?;
    }
    let next = AtomicUsize::new(0);
    let copied = at_once(vec![(); threads], |_, ()| copy_files(plan, destination, &next));
    copied.into_iter().collect::<Result<()>>()?;
    // From the leaves up, because creating an entry changes the time of its directory.
    for entry in plan.entries.iter().rev().filter(|entry| entry.kind == Kind::Directory) {
        let path = destination.join(&entry.path);
        let set = fs::set_permissions(&path, Permissions::from_mode(entry.mode))
            .and_then(|()| set_link_time(&path, entry.mtime));
        set.with_context(|| format!("cannot set mode and times of {}", path.display()))?;
    }
    let copying = start.elapsed();
    let start = Instant::now();
    syncfs(File::open(destination)?).context("syncfs")?;
    Ok(PlainTimes { copying, syncing: start.elapsed() })
}

fn copy_files(plan: &Plan, destination: &Path, next: &AtomicUsize) -> Result<()> {
    while let Some(entry) = plan.entries.get(next.fetch_add(1, Ordering::Relaxed)) {
        interrupt::check()?;
        if matches!(entry.kind, Kind::File { .. }) {
            copy_file(plan, destination, entry)
                .with_context(|| format!("cannot copy {}", plan.source.join(&entry.path).display()))?;
        }
    }
    Ok(())
}

fn copy_file(plan: &Plan, destination: &Path, entry: &Entry) -> Result<()> {
    let path = destination.join(&entry.path);
    fs::copy(plan.source.join(&entry.path), &path)?;
    let time = match u64::try_from(entry.mtime.0) {
        Ok(ns) => SystemTime::UNIX_EPOCH + Duration::from_nanos(ns),
        Err(_) => SystemTime::UNIX_EPOCH - Duration::from_nanos(entry.mtime.0.unsigned_abs()),
    };
    File::open(&path)?.set_times(FileTimes::new().set_modified(time))?;
    Ok(())
}

/// Sets the time of a directory, or of a link and not of its target.
fn set_link_time(path: &Path, mtime: Timestamp) -> std::io::Result<()> {
    let last_modification =
        Timespec { tv_sec: mtime.0.div_euclid(1_000_000_000), tv_nsec: mtime.0.rem_euclid(1_000_000_000) };
    let times = Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
