//! Processes that were killed and cannot end.
//!
//! A thread of a mount process may be asking the kernel for pages of a shared mapping. It then waits in the kernel
//! until the same process has written them back. If all threads of the process are killed meanwhile, nothing answers:
//! the thread waits forever, and its descriptors, the connection and the locks stay open with it. Only another process
//! can end that, by aborting the connection, which serves nothing any more.
//!
//! # Kernel counterpart
//! `folio_wait_writeback` in `fuse_launder_folio`, which no signal ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use slackwater_control::os::mount_table::mount_at;
use slackwater_fuse::{abort_connection, is_closed};
use slackwater_host::MountInfo;

/// SIGKILL among the pending signals of a thread.
const SIGKILL_BIT: u64 = 1 << 8;

/// Aborts the connections of a process that was killed and has only dying threads left. Returns whether it had any.
/// They are those that its descriptors name, which Linux shows from 6.17 on; its mount point may already have another
/// mount.
pub(crate) fn abort_connections_of(pid: u32) -> bool {
    if !is_killed(pid) {
        return false;
    }
    let named = descriptors(pid).filter_map(|path| Some((connection_of(&path)?, path)));
    let connections: BTreeMap<u32, PathBuf> = named.collect();
    let mut has_any = false;
    for (connection, descriptor) in connections {
        let is_meant = || {
            let is_meant = is_of(connection, &descriptor);
            has_any |= is_meant;
            is_meant
        };
        if let Err(error) = abort_connection(connection, is_meant) {
            tracing::info!(%error, connection, "cannot abort the FUSE connection of a killed process");
        }
    }
    has_any
}

/// Aborts the connection of a mount that serves nothing, if it is still mounted.
pub(crate) fn end_connection_at(mount: &MountInfo) {
    let number = mount.device.split_once(':').and_then(|(_, minor)| minor.parse().ok());
    let is_there = || mount_at(&mount.point).as_ref() == Some(mount);
    if let Some(Err(error)) = number.map(|number| abort_connection(number, is_there)) {
        tracing::info!(%error, device = mount.device, "cannot abort the FUSE connection of a dead process");
    }
}

/// Whether the connection with this number is that of a descriptor of a killed process. A connection that has ended keeps its
/// number in the descriptor, and the kernel may have given it to another mount.
fn is_of(connection: u32, descriptor: &Path) -> bool {
    match copy_of(descriptor) {
        Ok(copy) => !is_closed(copy.as_fd()),
        // A security module can forbid it. The server of another mount has a descriptor with the number too.
        Err(_) => !is_served(connection),
    }
}

/// A duplicate of a descriptor of a thread, from the file in `/proc` that describes it.
fn copy_of(descriptor: &Path) -> Result<OwnedFd, Errno> {
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    let thread = descriptor.parent().and_then(Path::parent).and_then(number).and_then(Pid::from_raw);
    let (thread, fd) = thread.zip(number(descriptor)).ok_or(Errno::INVAL)?;
    pidfd_getfd(pidfd_open(thread, THREAD)?, fd, PidfdGetfdFlags::empty())
}

/// Whether a process that was not killed has a descriptor of the connection.
fn is_served(connection: u32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.any(|pid| !is_killed(pid) && descriptors(pid).any(|path| connection_of(&path) == Some(connection)))
}

/// Whether every thread is gone or was killed, so that none will do anything again.
pub(crate) fn is_killed(pid: u32) -> bool {
    let mut threads = threads(pid).peekable();
    threads.peek().is_some() && threads.all(|thread| is_thread_killed(&thread))
}

/// Whether no thread of a process is left, although another process may still hold its descriptors
/// ([`crate::os::early_exit`]). This is also true for a process of another pid namespace.
pub(crate) fn is_gone(pid: u32) -> bool {
    threads(pid).all(|thread| has_ended(&thread))
}

fn is_thread_killed(thread: &Path) -> bool {
    let status = status_of(thread);
    let pending = field(&status, "SigPnd:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    is_over(&status) || pending.is_some_and(|bits| bits & SIGKILL_BIT != 0)
}

/// The kernel's status of a thread; empty if the thread is gone.
fn status_of(thread: &Path) -> String {
    fs::read_to_string(thread.join("status")).unwrap_or_default()
}

/// Whether a thread, by its folder in `/proc`, is gone or only waits to be reaped.
pub(crate) fn has_ended(thread: &Path) -> bool {
    is_over(&status_of(thread))
}

fn is_over(status: &str) -> bool {
    field(status, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
}

/// The threads of a process, by their folders in `/proc`; none if it is gone.
pub(crate) fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The kernel's descriptions of all descriptors that a thread still has.
fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    let of = |thread: PathBuf| fs::read_dir(thread.join("fdinfo")).into_iter().flatten().flatten();
    threads(pid).flat_map(of).map(|entry| entry.path())
}

/// The number of the connection, if the descriptor is one of `/dev/fuse`.
fn connection_of(descriptor: &Path) -> Option<u32> {
    field(&fs::read_to_string(descriptor).ok()?, "fuse_connection:")?.parse().ok()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim())
}
