//! An engine volume served as a FUSE file system: what each kernel request does.
//!
//! # Path of a request
//! 1. [`dispatch`] finds the node or handle that the request names. If the cache can answer, the reading thread
//!    answers.
//! 2. A call that may wait for the backend runs on a thread that the pool has replaced ([`blocking`]). Its reply is
//!    held where an interrupt finds it ([`callers`]). If the volume may not block another thread, the call is queued.
//! 3. A write for which no frame is free is parked ([`worker`]), and so are pages from mappings ([`mapped_writes`]).
//!    The reply to a throttled writer is held until it is due ([`paused`]). None of these occupies a thread.
//! 4. If the kernel writes back a page of a mapping, bytes that a newer `write` put there are kept ([`kernel_pages`]).
//!
//! # Invariants
//! V1. FLUSH, RELEASE and FORGET never wait for the backend. The exception is a FLUSH of a file that was truncated to
//!     zero.
//! V2. If an answer does not arrive, the lookups and handles that it hands out are taken back ([`answer`]).
//! V3. While the volume is frozen, changes wait. Once it is unmounted by force, every request gets EIO.

mod answer;
mod attributes;
mod blocking;
mod by_handle;
mod callers;
mod change;
mod directories;
mod dispatch;
mod dontcache;
mod emptied;
mod errno;
mod flags;
mod handles;
mod inherited;
mod inherited_numbers;
mod kept_nodes;
mod kernel_pages;
mod lent;
mod mapped_flush;
mod mapped_writes;
mod names;
mod nodes;
mod open_files;
mod paused;
mod processes;
mod pruning;
mod read_buffer;
mod reads;
mod removed;
mod repeated;
mod reported;
mod worker;
mod writes;
mod xattrs;

use std::collections::VecDeque;
use std::time::Duration;

use slackwater::{BackingDevInfo, FileError, SuperBlock};
use slackwater_fuse::Notifier;
use slackwater_fuse::mount::MountOptions;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, OnceLock};

use crate::lock_order::{KEPT_NODES, LEAF, RECORDING_ERRORS};
use crate::takeover::Keeping;
use crate::tenancy::Tenancy;
use blocking::Backlog;
use handles::Handles;
use nodes::Nodes;
use worker::Worker;

pub(crate) use dispatch::Served;

/// How often a thread that waits for a thaw checks whether the volume is being unmounted by force instead.
const THAW_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A volume that is served.
pub(crate) struct Volume {
    sb: Arc<SuperBlock>,
    nodes: Nodes,
    handles: Handles,
    worker: Worker,
    /// Finds the tenant that pays for a write; `None` charges everything to the engine's root tenant.
    tenancy: Option<Arc<Tenancy>>,
    /// Whether data stays out of the cache unless the file or the tenant says otherwise.
    dontcache: AtomicBool,
    /// How long the kernel may cache names and attributes, and the engine those of the backend.
    cache_timeout: Duration,
    backlog: Backlog,
    notifier: OnceLock<Notifier>,
    /// The same notifier, if the kernel supports prune notifications.
    pruner: OnceLock<Notifier>,
    is_refusing: AtomicBool,
    /// Whether the kernel's page cache was seen to follow writes that go around it.
    is_coherent: AtomicBool,
    /// How the mount outlives this process.
    keeping: Option<Arc<Keeping>>,
    /// Numbers of the nodes of which the keeper has a descriptor, the oldest first. Those of some forgotten nodes too.
    kept_nodes: Mutex<VecDeque<u64>>,
    /// E1 of [`reported`].
    remembering: Mutex<()>,
    /// Nodes of an earlier process whose pages the kernel is to drop, before there is a notifier.
    nodes_to_invalidate: Mutex<Vec<u64>>,
}

impl Volume {
    /// Prepares a volume to be served with the `dontcache` and `cache_timeout` of `options`; no request arrives yet.
    ///
    /// # Errors
    /// The volume is unmounted.
    pub(crate) fn new(
        sb: &Arc<SuperBlock>,
        tenancy: Option<Arc<Tenancy>>,
        options: &MountOptions,
        keeping: Option<Arc<Keeping>>,
    ) -> Result<Arc<Self>, FileError> {
        Ok(Arc::new(Self {
            sb: Arc::clone(sb),
            nodes: Nodes::new(sb.root()?, keeping.as_ref()),
            handles: Handles::new(keeping.as_ref().map(|keeping| Arc::clone(&keeping.record))),
            worker: Worker::new(),
            tenancy,
            dontcache: AtomicBool::new(options.dontcache),
            cache_timeout: options.cache_timeout,
            backlog: Backlog::new(),
            notifier: OnceLock::new(),
            pruner: OnceLock::new(),
            is_refusing: AtomicBool::new(false),
            is_coherent: AtomicBool::new(false),
            keeping,
            kept_nodes: Mutex::new(KEPT_NODES, VecDeque::new()),
            remembering: Mutex::new(RECORDING_ERRORS, ()),
            nodes_to_invalidate: Mutex::new(LEAF, Vec::new()),
        }))
    }

    /// Runs a change. If the volume is frozen, waits for the thaw first.
    fn unfrozen<T>(&self, change: impl Fn() -> Result<T, FileError>) -> Result<T, FileError> {
        loop {
            match change() {
                Err(FileError::NotMounted) if self.wait_until_thawed() => {}
                other => return other,
            }
        }
    }

    /// Waits for the end of a freeze. Returns false if the volume was unmounted or is being unmounted by force.
    fn wait_until_thawed(&self) -> bool {
        while !self.is_refusing() {
            if self.sb.wait_while_frozen(Some(self.sb.now() + THAW_POLL_INTERVAL)) {
                return true;
            }
            if !self.sb.is_frozen() {
                return false;
            }
        }
        false
    }

    /// How the mount outlives this process.
    pub(crate) fn keeping(&self) -> Option<&Arc<Keeping>> {
        self.keeping.as_ref()
    }

    /// Whether every request is refused.
    fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Acquire)
    }

    /// Starts or stops refusing every request.
    pub(crate) fn set_refusing(&self, refuse: bool) {
        self.is_refusing.store(refuse, Ordering::Release);
    }

    pub(crate) fn bdi(&self) -> &BackingDevInfo {
        self.sb.bdi()
    }

    /// Sets whether data stays out of the cache by default, from the next request on.
    pub(crate) fn set_dontcache(&self, dontcache: bool) {
        self.dontcache.store(dontcache, Ordering::Relaxed);
    }

    /// Lets readers use the kernel's page cache from now on.
    pub(crate) fn trust_kernel_cache(&self) {
        self.is_coherent.store(true, Ordering::Release);
    }

    /// Number of open files.
    pub(crate) fn open_files(&self) -> usize {
        self.handles.open_files()
    }

    /// Number of calls that wait for the backend, including those whose callers are gone.
    pub(crate) fn calls(&self) -> usize {
        self.backlog.calls()
    }

    /// Bytes of parked writes.
    pub(crate) fn parked_bytes(&self) -> usize {
        self.worker.parked_bytes()
    }

    /// Bytes of mappings that were refused so far.
    pub(crate) fn refused_bytes(&self) -> u64 {
        self.worker.mapped_writes.refused_bytes()
    }

    /// Number of parked writes.
    pub(crate) fn parked_writes(&self) -> usize {
        self.worker.parked()
    }

    /// Number of completed writes whose replies are held because their writers are throttled.
    pub(crate) fn paused_writes(&self) -> usize {
        self.worker.paused.len()
    }

    /// Node numbers of files that may have been modified through a mapping.
    pub(crate) fn mapped_nodes(&self) -> Vec<u64> {
        self.nodes.mapped().iter().map(|node| node.id()).collect()
    }

    /// Leaves everything as it is when the session ends.
    pub(crate) fn set_handed_over(&self) {
        if let Some(keeping) = &self.keeping {
            keeping.is_handed_over.store(true, Ordering::Release);
        }
    }

    /// Whether another process goes on with the volume.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.is_handed_over.load(Ordering::Acquire))
    }

    /// The connection is gone: drops all nodes and handles, and ends the worker.
    pub(crate) fn tear_down(&self) {
        self.worker.stop();
        self.handles.clear();
        self.nodes.clear();
    }
}
