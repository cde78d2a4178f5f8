//! Processes that were killed and cannot end.
//!
//! A thread of a mount process may be asking the kernel for pages of a shared mapping, and waits in the kernel until they are
//! written back, to that same process. If all its threads are killed meanwhile, nobody answers: the thread waits for ever, its
//! descriptors stay open with it, and so do the connection and the locks. Only who cuts the connection off from outside ends
//! that. The connection of such a process serves nobody any more.
//!
//! # Kernel counterpart
//! `folio_wait_writeback` in `fuse_launder_folio`, which no signal ends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slackwater_fuse::abort_connection;

/// SIGKILL among the pending signals of a thread.
const SIGKILL_BIT: u64 = 1 << 8;

/// Cuts off the connections of a process that was killed, if it is at its end. True if there were some. They are those that its
/// descriptors name, which Linux tells from 6.17 on: at its mount point there may be another mount by now.
pub(crate) fn help_to_end(pid: u32) -> bool {
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

/// Whether every thread is gone or was killed: none will do anything again.
fn is_killed(pid: u32) -> bool {
    let mut threads = threads(pid).peekable();
    threads.peek().is_some() && threads.all(|thread| is_thread_killed(&thread))
}

/// Whether no thread of a process is left, though it may have left its descriptors to another ([`crate::os::early_exit`]). So it is also of a
/// process of another pid namespace.
pub(crate) fn is_gone(pid: u32) -> bool {
    threads(pid).all(|thread| has_ended(&status_of(&thread)))
}

fn is_thread_killed(thread: &Path) -> bool {
    let status = status_of(thread);
    let pending = field(&status, "SigPnd:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    has_ended(&status) || pending.is_some_and(|bits| bits & SIGKILL_BIT != 0)
}

/// What the kernel says of a thread; nothing of one that is gone.
fn status_of(thread: &Path) -> String {
    fs::read_to_string(thread.join("status")).unwrap_or_default()
}

fn has_ended(status: &str) -> bool {
    field(status, "State:").is_none_or(|state| state.starts_with(['Z', 'X']))
}

fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// What the kernel says of each descriptor that a thread still has.
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
