//! Processes that were killed and cannot end.
//!
//! A thread of a mount process may be asking the kernel for pages of a shared mapping. It then waits in the kernel
//! until the same process has written them back. If all threads of the process are killed meanwhile, nothing answers:
//! the thread waits forever, and its descriptors, the connection and the locks stay open with it. Only another process
//! can end that, by aborting the connection, which serves nothing any more.
//!
//! # Kernel counterpart
//! `folio_wait_writeback` in `fuse_launder_folio`, which no signal ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slackwater_arena::MountInfo;
use slackwater_fuse::abort_connection;

/// SIGKILL among the pending signals of a thread.
const SIGKILL_BIT: u64 = 1 << 8;

/// Aborts the connections of a process that was killed and has only dying threads left. Returns whether there were any.
/// They are those that its descriptors name, which Linux shows from 6.17 on; its mount point may already have another
/// mount.
pub(crate) fn abort_connections_of(pid: u32) -> bool {
    if !is_killed(pid) {
        return false;
    }
    let connections: BTreeSet<u32> = descriptors(pid).filter_map(|path| connection_of(&path)).collect();
    for connection in &connections {
        if let Err(error) = abort_connection(*connection) {
            tracing::info!(%error, connection, "cannot abort the FUSE connection of a killed process");
        }
    }
    !connections.is_empty()
}

/// Aborts the connection of a mount that serves nothing.
pub(crate) fn end_connection_at(mount: &MountInfo) {
    let number = mount.device.split_once(':').and_then(|(_, minor)| minor.parse().ok());
    if let Some(Err(error)) = number.map(abort_connection) {
        tracing::info!(%error, device = mount.device, "cannot abort the FUSE connection of a dead process");
    }
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
