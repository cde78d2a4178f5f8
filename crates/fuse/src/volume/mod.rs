//! A volume of the engine as a file system: what each request of the kernel means.
//!
//! # A request's way
//! 1. [`dispatch`] looks up what it is about. What the cache can answer is answered on the reading thread.
//! 2. What may have to wait for the backend runs on a thread that the pool has replaced ([`blocking`]), with its
//!    reply where an interrupt finds it ([`callers`]). Where as many threads wait as may, it queues.
//! 3. A write without room is parked ([`worker`]), and so are pages of mappings ([`mapped_writes`]); a reply whose writer is to
//!    slow down is held until its time ([`paused`]). Nobody waits on a thread for any of them.
//! 4. What is written beside a mapping is kept when the kernel hands over older pages ([`kernel_pages`]).
//!
//! # Invariants
//! V1. FLUSH (but for a file that was emptied), RELEASE and FORGET never wait for the backend.
//! V2. What an answer hands out is taken back if it does not arrive ([`answer`]).
//! V3. While the volume is frozen, changes wait; once it is taken away by force, everything gets EIO.

mod answer;
mod attributes;
mod blocking;
mod by_handle;
mod callers;
mod directories;
mod dispatch;
mod dontcache;
mod errno;
mod flags;
mod handles;
mod kernel_pages;
pub(crate) mod lock_order;
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
mod worker;
mod writes;
mod xattrs;

use std::time::Duration;

use slackwater::{FileError, SuperBlock};
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, OnceLock};

use crate::notifier::Notifier;
use crate::tenancy::Tenancy;
use blocking::Backlog;
use handles::Handles;
use nodes::Nodes;
use worker::Worker;

pub(crate) use dispatch::Served;

/// How often who waits for a thaw looks whether the volume is taken away instead.
const THAW_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A volume that is served.
pub(crate) struct Volume {
    sb: Arc<SuperBlock>,
    nodes: Nodes,
    handles: Handles,
    worker: Worker,
    /// Who pays for what; `None`: whoever, all of them together.
    tenancy: Option<Arc<Tenancy>>,
    /// Whether what nobody else says anything of is to stay out of the cache.
    dontcache: AtomicBool,
    backlog: Backlog,
    notifier: OnceLock<Notifier>,
    /// The same, of a kernel that can be asked for nodes.
    pruner: OnceLock<Notifier>,
    is_refusing: AtomicBool,
    /// Whether the kernel's cache was seen to follow every write around it.
    is_coherent: AtomicBool,
}

impl Volume {
    /// Serves a volume; nobody asks yet. `dontcache`: what goes through it stays out of the cache.
    ///
    /// # Errors
    /// The volume is gone.
    pub(crate) fn new(
        sb: &Arc<SuperBlock>,
        tenancy: Option<Arc<Tenancy>>,
        dontcache: bool,
    ) -> Result<Arc<Self>, FileError> {
        Ok(Arc::new(Self {
            sb: Arc::clone(sb),
            nodes: Nodes::new(sb.root()?),
            handles: Handles::new(),
            worker: Worker::new(),
            tenancy,
            dontcache: AtomicBool::new(dontcache),
            backlog: Backlog::new(),
            notifier: OnceLock::new(),
            pruner: OnceLock::new(),
            is_refusing: AtomicBool::new(false),
            is_coherent: AtomicBool::new(false),
        }))
    }

    /// Makes a change, after the thaw if the volume is frozen.
    fn unfrozen<T>(&self, change: impl Fn() -> Result<T, FileError>) -> Result<T, FileError> {
        loop {
            match change() {
                Err(FileError::NotMounted) if self.wait_until_thawed() => {}
                other => return other,
            }
        }
    }

    /// Waits for the end of a freeze. False when the volume is gone instead, or being taken away by force.
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

    /// Whether everything is refused.
    fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Acquire)
    }

    /// Refuses everything from now on, or no longer.
    pub(crate) fn set_refusing(&self, refuse: bool) {
        self.is_refusing.store(refuse, Ordering::Release);
    }

    /// What goes through it stays out of the cache from the next request on, or no longer.
    pub(crate) fn set_dontcache(&self, dontcache: bool) {
        self.dontcache.store(dontcache, Ordering::Relaxed);
    }

    /// From now on readers may use the kernel's cache.
    pub(crate) fn trust_kernel_cache(&self) {
        self.is_coherent.store(true, Ordering::Release);
    }

    /// How many files are open.
    pub(crate) fn open_files(&self) -> usize {
        self.handles.open_files()
    }

    /// Calls that wait for the backend, perhaps with nobody to wait for them.
    pub(crate) fn calls(&self) -> usize {
        self.backlog.calls()
    }

    /// Bytes of writes that wait for room.
    pub(crate) fn parked_bytes(&self) -> usize {
        self.worker.parked_bytes()
    }

    /// Writes that wait for room.
    pub(crate) fn parked_writes(&self) -> usize {
        self.worker.parked()
    }

    /// Writes that are done and whose writers pause.
    pub(crate) fn paused_writes(&self) -> usize {
        self.worker.paused.len()
    }

    /// The kernel's numbers of the nodes that somebody may have written to by way of a mapping.
    pub(crate) fn mapped_nodes(&self) -> Vec<u64> {
        self.nodes.mapped().iter().map(|node| node.id()).collect()
    }

    /// The kernel is gone: nothing is known and open any more, and nobody waits.
    pub(crate) fn tear_down(&self) {
        self.worker.stop();
        self.handles.clear();
        self.nodes.clear();
    }
}
