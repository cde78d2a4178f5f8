//! The lock of an owner on its source, across users, registries and mount namespaces (ADR 0024).
//!
//! # Invariants
//! O1. An owner *marks* the source with a shared lock of its descriptor (`F_OFD_SETLK`), which it takes itself and
//!     keeps until nothing is dirty. It also has an exclusive lock of flock(2), unless a stranger has that one.
//! O2. A stranger is a process that may not write to the source ([`super::lock_holders`]). Its locks prevent no mount.
//!     If the holder of a lock cannot be determined, it counts as an owner.
//! O3. An owner checks for the marks of others after it has set its own. So of two owners that pass over a stranger's
//!     lock at the same time, at least one gives way.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use slackwater_host::Printable as _;

use crate::os::sys;
use crate::source::directory::Directory;
use crate::source::lock_holders::Holders;

/// The pid of the owner; `None` if it cannot be determined.
#[derive(Debug)]
pub(super) struct Owner(pub(super) Option<u32>);

/// Takes the lock on `source`, which is open as `fd`. Returns the owner if there already is one. Reports a stranger
/// through `say`.
///
/// # Errors
/// The file system does not support locks.
pub(super) fn take(source: &Directory, fd: &OwnedFd, say: &dyn Fn(&str)) -> io::Result<Option<Owner>> {
    let is_locked = match flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::WOULDBLOCK) => false,
        Err(errno) => return Err(errno.into()),
    };
    if !is_locked && let Err(owner) = look(source, fd)? {
        return Ok(Some(owner));
    }
    // On a file system without such locks, flock alone counts.
    let _ = sys::mark(fd);
    if is_locked && !sys::is_marked_by_others(fd) {
        return Ok(None);
    }
    match look(source, fd)? {
        Err(owner) => {
            give_back(fd);
            return Ok(Some(owner));
        }
        Ok(Some(stranger)) if !is_locked => say(&format!(
            "{} is locked by {stranger}, which has no write permission: mounting anyway",
            source.path.printable()
        )),
        Ok(_) => {}
    }
    Ok(None)
}

/// Releases what [`take`] has taken. Closing the descriptor does so too.
pub(super) fn give_back(fd: &OwnedFd) {
    // It fails only for a descriptor that is not open.
    let _ = flock(fd, FlockOperation::Unlock);
    let _ = sys::unmark(fd);
}

/// The owner that has a lock; otherwise the stranger, if it can be named (O2).
fn look(source: &Directory, fd: &OwnedFd) -> io::Result<Result<Option<String>, Owner>> {
    let holders = Holders::of(source, fd)?;
    if holders.owner.is_some() {
        return Ok(Err(Owner(holders.owner)));
    }
    let stranger =
        holders.stranger.map(|(pid, user)| format!("pid {pid} ({}) of user {user}", command_of(pid).printable()));
    // If a stranger has the flock(2) lock, no owner has it; and without a mark no owner has passed over it.
    let is_certain = holders.are_all_seen || stranger.is_some() && !sys::is_marked_by_others(fd);
    Ok(if is_certain { Ok(stranger) } else { Err(Owner(None)) })
}

/// The name of a process.
pub(super) fn command_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}
