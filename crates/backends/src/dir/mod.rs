//! A volume in a directory of a mounted file system.
//!
//! Every call is a few system calls on the volume's own [`Workers`], or on the thread of a caller that waits: any of
//! them may block forever when the file system does. Data bypasses the kernel's page cache where it can, since the
//! engine is one.
//!
//! # Invariants
//! R1. Every name is looked up relative to a directory descriptor, is a single component, and is never
//!     followed when it is a link: no call leaves the root. Mount points below the root are refused
//!     (`CrossDevice`): a sync of this volume would not cover them.
//! R2. The data descriptor of a node is open before the first write to it, and stays open while the node is. The kernel
//!     reports an asynchronous write error to descriptors that were open at the time. So B4 of the contract requires
//!     that the caller keeps the node open from the first write to the sync; the engine does.
//! R3. A file is never longer than the writes to it: unaligned ends are not written with direct I/O.
//! R4. A sync of the volume syncs every node that has changed and was not synced since, or the whole file system
//!     (`unsynced`).
//! R5. Dropping a node does not wait for a server: where a close may wait, a thread does it (`closer`).
//! R6. The new bytes of a file that was emptied ([`WriteUnit::refills`]) are sent to the disk as soon as they are
//!     written, as at a close on ext4 (`auto_da_alloc`). The truncation is in the file system's journal. Bytes that
//!     stayed in the kernel's page cache would reach the disk long after it, and a power failure would leave the file
//!     empty.
//!
//! # Identity and handles
//! A node is identified by device, number, and a fingerprint of its kernel file handle, which holds the inode's
//! generation. If the file system has no handles, the generation is 0. `Call::Reopen` uses `open_by_handle_at`. Where
//! that is missing or not permitted (it needs CAP_DAC_READ_SEARCH), and on FUSE, which forgets nodes that are not open,
//! each node that was found stays open instead, while descriptors are left. Handles are then valid in this process
//! only, and in one that [adopts](DirBackend::adopt) its descriptors. The oldest become `Stale` first. `Limits::reopens` reports this to the engine, which then keeps the nodes
//! of open files open.
//!
//! All descriptors of nodes are counted for the process (`descriptors`), so that engines learn when they are short.
//!
//! Where number and generation of a node have 32 bits each, they are its whole handle (`numbers`), which a front end
//! can use as its own node number.
//!
//! # Requirements
//! Linux 5.8 (`AT_EMPTY_PATH` for times) with `/proc` mounted. Without `openat2`, lookups use `openat` on checked
//! single names, and mount points are recognised by their device number.

mod acls;
mod attributes;
mod closer;
mod create;
mod creator;
mod descriptors;
mod errno;
mod file_system;
mod flags;
mod handles;
mod limits;
mod names;
mod node;
mod numbers;
mod parents;
mod ranges;
mod readdir;
mod serve;
mod sys;
mod transfer;
mod unsynced;
mod volume;
mod xattrs;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slackwater::BackendError;
#[cfg(doc)]
use slackwater::backend::WriteUnit;
use slackwater::backend::{Backend, Call, Found, Limits, Node, NodeSupply};
use slackwater_sync::shim::Arc;

pub use self::transfer::DirStats;
pub use self::volume::OpenError;

use self::handles::Reopening;
use self::volume::Volume;
use crate::workers::{Lane, Workers};

/// Threads of one volume.
const THREADS_MAX: usize = 8;
/// Threads that data calls and syncs never take, so that a lookup does not wait behind all slow writes of a volume. The
/// rest is as many as the units in flight of [`limits`].
const THREADS_RESERVED: usize = 2;

/// How long the end of a volume waits for its threads, and then for nodes that are being closed. A call that is answered has
/// only references left to drop, but on a busy machine that may take 20 ms.
const SETTLES_WITHIN: Duration = Duration::from_millis(200);

/// A volume in a directory of a mounted file system.
///
/// No call leaves the directory: names are single components, links are not followed, and mount points below it are
/// refused as [`CrossDevice`](slackwater::ErrorKind::CrossDevice). Every call runs on the volume's own few threads, or
/// on that of a caller that waits for it anyway, so that a file system that hangs affects nothing else. Data bypasses
/// the kernel's page cache where the file system allows it.
///
/// The kernel reports a later write error to descriptors that were open at the time: keep a node open from the first
/// write to its sync. A sync of the volume covers every write error of the nodes that were changed through it. It does not
/// wait for data of other programs, unless many nodes have changed since the last one.
///
/// Dropping it answers queued calls as abandoned and lets running ones finish; the last of them closes the root.
pub struct DirBackend {
    volume: Arc<Volume>,
    workers: Workers,
}

impl DirBackend {
    /// A volume of everything below the directory `path`.
    ///
    /// # Errors
    /// If `path` is not a directory or cannot be opened, or `/proc` is not mounted.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path.as_ref(), Reopening::ByKernel)
    }

    /// Opens a directory as [`DirBackend::open`] does, but keeps found nodes open even where kernel handles work. A
    /// process without CAP_DAC_READ_SEARCH gets this mode anyway.
    ///
    /// # Errors
    /// As [`DirBackend::open`].
    pub fn open_unprivileged(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(path.as_ref(), Reopening::ByDescriptor)
    }

    /// Declares that all changes of earlier processes are durable, since the last one has ended in order. Otherwise the first
    /// sync of the volume syncs the whole file system, with the data of other programs. To be called before the first
    /// change.
    pub fn assume_synced(&self) {
        self.volume.unsynced.assume_synced();
    }

    /// Whether a node can be reopened only after this process has found it by name. Otherwise its handle works in any
    /// process.
    pub fn keeps_nodes_open(&self) -> bool {
        self.volume.handles.are_pinned()
    }

    /// Takes a [descriptor](Backend::descriptor) of a node from an earlier process. The node is found by its handle while
    /// the returned node exists, even if it has no name.
    ///
    /// # Errors
    /// It is not a node of this directory's file system.
    ///
    /// # Blocking
    /// Never: the attributes are those that the kernel has.
    pub fn adopt(&self, descriptor: OwnedFd) -> Result<Found, BackendError> {
        self.volume.adopt(descriptor)
    }

    /// How many reads and writes used each I/O path so far, and how many syncs there were of the whole file system.
    pub fn stats(&self) -> DirStats {
        self.volume.stats()
    }

    fn open_with(path: &Path, reopening: Reopening) -> Result<Self, OpenError> {
        let volume = Arc::new(Volume::open(path, reopening)?);
        Ok(Self { volume, workers: Workers::new("slackwater-dir", THREADS_MAX, THREADS_RESERVED) })
    }
}

impl Backend for DirBackend {
    fn submit(&self, call: Call) {
        let is_long = matches!(call, Call::Sync { .. } | Call::SyncVolume { .. } | Call::Fallocate { .. });
        let lane = if is_long || call.range_bytes().is_some() { Lane::Bulk } else { Lane::Quick };
        let volume = self.volume.clone();
        self.workers.run(lane, move || volume.serve(call));
    }

    /// On the caller's thread, which saves passing the call to a worker and back.
    fn submit_and_wait(&self, call: Call) {
        self.volume.serve(call);
    }

    fn settle(&self) {
        let _is_idle = self.workers.wait_idle(SETTLES_WITHIN);
        if let Some(closer) = &self.volume.closer {
            closer.wait_closed(SETTLES_WITHIN);
        }
    }

    fn limits(&self) -> Limits {
        self.volume.limits()
    }

    fn node_supply(&self) -> NodeSupply {
        descriptors::supply()
    }

    fn descriptor(&self, node: &Node) -> Option<OwnedFd> {
        self.volume.descriptor(node)
    }

    fn last_path(&self, node: &Node) -> Option<PathBuf> {
        self.volume.last_path(node)
    }
}
