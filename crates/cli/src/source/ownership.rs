//! One owner per source.
//!
//! A directory is locked until nothing of it is dirty ([`super::lock`]), which also excludes mounts by other users. A
//! mount of a directory above or below it is found in the registry, whose entries say where their sources are. Such a
//! mount by another user is found in the kernel's mount table, by its path.
//!
//! A mount of the same object volume by this user is found in the registry as well. Other users and machines are
//! excluded by the claim in the store, which the volume takes when it is opened ([`crate::object`]).

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use slackwater_control::client;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::mountpoint;
use slackwater_control::os::mount_table::MountTable;
use slackwater_control::output::shell;
use slackwater_control::protocol::{Phase, Reply, Request};
use slackwater_host::MountInfo;
use slackwater_host::Printable as _;

use crate::registry::{Entry, Found, Registered, Registry};
use crate::source::directory::Directory;
use crate::source::lock::Owner;
use crate::source::{Source, dead_mounts, lock, lock_holders};
use crate::volume::rescued::Removed;

/// How long an owner that does not answer, or has just ended, may still hold what it is about to release.
const LEAVING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// A source that this process owns. Dropping it releases the lock first, because a waiting process looks for the end
/// of the entry.
pub(crate) struct Ownership {
    /// The lock on a directory.
    lock: Option<OwnedFd>,
    pub(crate) registered: Registered,
}

impl Ownership {
    /// The ownership of a predecessor, which has passed its locks on.
    pub(crate) fn inherited(lock: Option<OwnedFd>, registered: Registered) -> Self {
        Self { lock, registered }
    }

    /// The source directory, with its lock.
    pub(crate) fn lock(&self) -> Option<&OwnedFd> {
        self.lock.as_ref()
    }
}

/// A reason why the source cannot be acquired.
enum Obstacle {
    /// A mount of this user.
    Mount(Box<Found>),
    /// A mount that this user's registry does not know: its source and its mount point.
    Unregistered(MountInfo),
    /// Another owner, which has the source locked.
    Locked(Owner),
}

/// Acquires the source of `entry`; a directory is open as `source_fd`. Waits while the owner is only flushing after
/// umount(2), or without limit with `wait`; reports through `say` what it waits for. A live mount of the same source is
/// first given to `attach`, which returns whether its process has mounted it here as well; then there is nothing to own.
///
/// # Errors
/// `Busy`, with the owner and what to do; or an earlier mount left data in another arena.
pub(crate) fn acquire(
    registry: &Registry,
    entry: &Entry,
    source_fd: Option<OwnedFd>,
    wait: bool,
    attach: &dyn Fn(&Found) -> Result<bool, Failure>,
    say: &dyn Fn(&str),
) -> Result<Option<Ownership>, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot register the mount: {error}"));
    let is_of_dead = |found: &Found| !found.is_alive && found.entry.source.conflicts_with(&entry.source);
    // A process that has ended may still be releasing its lock: a killed process closes its descriptors in no defined
    // order.
    let mut left_at: Option<Instant> = None;
    loop {
        let (obstacle, has_died) = {
            let guard = registry.lock().map_err(failed)?;
            let mut mounts = registry.entries_of_others()?;
            match obstacle(registry, &mut mounts, entry, source_fd.as_ref(), say).map_err(failed)? {
                Some(obstacle) => (obstacle, mounts.iter().any(is_of_dead)),
                None => {
                    let dead = || mounts.iter().filter(|found| !found.is_alive);
                    dead_mounts::check_left_elsewhere(dead(), entry)?;
                    if entry.source.directory().is_some() && mounts.iter().any(is_of_dead) {
                        registry.mark_unsynced(&entry.identity).map_err(failed)?;
                    }
                    dead_mounts::forget(dead(), entry);
                    let registered = registry.register(&guard, entry).map_err(failed)?;
                    let ownership = Ownership { lock: source_fd, registered };
                    drop(guard);
                    let is_around = |found: &&Found| !found.is_alive && dead_mounts::is_beside(&found.entry, entry);
                    let alive: Vec<_> =
                        mounts.iter().filter(|found| found.is_alive).map(|found| &found.entry).collect();
                    let mut around = mounts.iter().filter(is_around);
                    around.try_for_each(|found| dead_mounts::write_back(found, &alive, say))?;
                    return Ok(Some(ownership));
                }
            }
        };
        if has_died {
            left_at.get_or_insert_with(Instant::now);
        }
        if matches!(obstacle, Obstacle::Locked(_)) && left_at.is_some_and(|at| at.elapsed() < LEAVING) {
            thread::sleep(LOOK);
            continue;
        }
        if let Obstacle::Mount(found) = &obstacle
            && found.entry.source.is_same(&entry.source)
            && attach(found)?
        {
            return Ok(None);
        }
        let refusal = refusal(&obstacle, &entry.source);
        if !wait && !obstacle.is_going_away() {
            return Err(refusal);
        }
        say(&format!("{}; waiting until it is free", refusal.what));
        match &obstacle {
            Obstacle::Mount(found) => {
                let mut asked_at = Instant::now();
                while found.is_still_alive() {
                    thread::sleep(LOOK);
                    if !wait && asked_at.elapsed() > LEAVING {
                        if let Some(removed) = removed_for_long(found) {
                            return Err(Failure { advice: removed.advice(), ..refusal });
                        }
                        asked_at = Instant::now();
                    }
                }
                left_at = Some(Instant::now());
            }
            // It is not known which of the locks is released first.
            Obstacle::Unregistered(_) | Obstacle::Locked(_) => thread::sleep(LEAVING),
        }
    }
}

/// The obstacle; a mount is taken out of `mounts`.
fn obstacle(
    registry: &Registry,
    mounts: &mut Vec<Found>,
    entry: &Entry,
    source_fd: Option<&OwnedFd>,
    say: &dyn Fn(&str),
) -> std::io::Result<Option<Obstacle>> {
    let is_in_the_way = |found: &Found| found.is_alive && found.entry.source.conflicts_with(&entry.source);
    if let Some(owner) = mounts.iter().position(is_in_the_way) {
        return Ok(Some(Obstacle::Mount(Box::new(mounts.swap_remove(owner)))));
    }
    let Some((directory, source_fd)) = entry.source.directory().zip(source_fd) else { return Ok(None) };
    if let Some(owner) = lock::take(directory, source_fd, say)? {
        return Ok(Some(Obstacle::Locked(owner)));
    }
    let others = mount_of_others(registry, mounts, directory);
    if others.is_some() {
        lock::give_back(source_fd);
    }
    Ok(others.map(Obstacle::Unregistered))
}

/// A live mount that is neither in `mounts` nor of this process, and whose source overlaps `source`. It is found by its
/// path in the mount table and not opened, so a hung source does not block other mounts.
fn mount_of_others(registry: &Registry, mounts: &[Found], source: &Directory) -> Option<MountInfo> {
    let known: HashSet<_> = mounts.iter().map(|found| &found.entry.mountpoint).collect();
    let listed = MountTable::now();
    let is_in_the_way = |mount: &&MountInfo| {
        // This process knows the overlaps of its own mounts, of which there may be thousands.
        !(registry.is_own_mountpoint(&mount.point) || known.contains(&mount.point))
            && mount.source.is_absolute()
            && source.overlaps_path(&mount.source, &listed)
            && may_have_data(mount)
            && !mountpoint::is_dead(&mount.point)
    };
    listed.of_slackwater().find(is_in_the_way).cloned()
}

/// Whether a mount may have data for its source. Any user may mount a file system that claims to be ours and shows
/// anything, so its user must have write permission there.
fn may_have_data(mount: &MountInfo) -> bool {
    let user = mount.super_options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    let Some(user) = user else { return true };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, &mount.source, flags, StatxFlags::UID | StatxFlags::MODE) {
        Ok(source) => lock_holders::may_write(user, source.stx_uid, source.stx_mode.into()),
        Err(errno) => errno != Errno::NOENT,
    }
}

impl Obstacle {
    /// Whether the obstacle ends without help.
    fn is_going_away(&self) -> bool {
        let Self::Mount(found) = self else { return false };
        let start = Instant::now();
        loop {
            match client::ask(&found.socket(), &found.entry.volume_ref(), &Request::Status, client::ANSWER_WITHIN) {
                // Just unmounted, and the process has not noticed yet.
                Ok(Reply::Status(status)) if status.phase == Phase::Elsewhere && start.elapsed() < LEAVING => {
                    thread::sleep(LOOK);
                }
                Ok(Reply::Status(status)) => return status.phase == Phase::Flushing,
                Ok(_) => return false,
                Err(_) if !found.is_still_alive() => return true,
                // It has just begun, or is about to end.
                Err(_) if start.elapsed() < LEAVING => thread::sleep(LOOK),
                Err(_) => return false,
            }
        }
    }
}

/// The removed files of a mount. `None` if there are none, or if it copies them within [`LEAVING`]. Otherwise they have no
/// place in its source, and it never ends by itself.
fn removed_for_long(found: &Found) -> Option<Removed> {
    let start = Instant::now();
    loop {
        let answer = client::ask(&found.socket(), &found.entry.volume_ref(), &Request::Status, client::ANSWER_WITHIN);
        let Ok(Reply::Status(status)) = answer else { return None };
        let removed = Removed::of(&status)?;
        if start.elapsed() >= LEAVING {
            return Some(removed);
        }
        thread::sleep(LOOK);
    }
}

fn refusal(obstacle: &Obstacle, source: &Source) -> Failure {
    match obstacle {
        Obstacle::Mount(found) => taken_by(&found.entry, source).advise("or pass --wait to wait for it"),
        Obstacle::Unregistered(mount) => {
            let (path, others, point) = (source.name().printable(), mount.source.printable(), mount.point.printable());
            Failure::busy(format!("{path} overlaps {others}, which another user mounted at {point}"))
                .advise(format!("use {point}, have it unmounted first, or pass --wait to wait for it"))
        }
        Obstacle::Locked(owner) => {
            let holder = match owner.0 {
                Some(pid) => format!("pid {pid}, {}", lock::command_of(pid).printable()),
                None => "a process that cannot be seen from here".to_owned(),
            };
            Failure::new(Reason::Busy, format!("{} is locked by {holder}", source.name().printable())).advise(
                "two mounts of one directory would overwrite each other's data: end that process first, or use --wait",
            )
        }
    }
}

/// The message about a source that another mount has, in whole or in part, or about a mount point that another mount
/// has.
pub(crate) fn taken_by(owner: &Entry, source: &Source) -> Failure {
    let (path, mountpoint, pid) = (source.name().printable(), owner.mountpoint.printable(), owner.pid);
    let others = owner.source.name().printable();
    let what = match () {
        () if owner.source.is_same(source) => format!("{path} is already mounted at {mountpoint} (pid {pid})"),
        () if owner.source.contains(source) => {
            format!("{path} is inside {others}, which is mounted at {mountpoint} (pid {pid})")
        }
        () if source.contains(&owner.source) => {
            format!("{path} contains {others}, which is mounted at {mountpoint} (pid {pid})")
        }
        () => format!("{others} is mounted at {mountpoint} (pid {pid})"),
    };
    let unmount = format!("slackwater umount {}", shell::word(&owner.mountpoint));
    Failure::new(Reason::Busy, what).advise(format!("use {mountpoint}, or unmount it first: {unmount}"))
}
