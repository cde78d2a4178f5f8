//! Taking over the mount of a process that died, or that hands over on purpose.
//!
//! A keeper, another process, holds the connection's descriptor, so the mount lives on without a server and requests
//! wait. The next process serves the same connection. A [record](MountRecord) in shared memory tells it more than the
//! arena: the agreed protocol, the open handles, and the changes in progress.
//!
//! # Nodes
//! Where the backend's handles are numbers, no table of nodes is kept. A node that the new process does not know is
//! found by its number, as an NFS server finds a file by its handle (`volume::inherited`). A file without a name can be
//! found only while some descriptor of it is open, so the keeper gets one before the name is removed (`volume::removed`).
//!
//! For any other backend, the keeper gets a descriptor of each node that the kernel learns of, and the new process gets
//! them all (`volume::kept_nodes`).
//!
//! # Requests
//! The kernel sends every request again that was read and not answered ([`Notifier::resend`](slackwater_fuse::Notifier::resend)).
//! Such a request may have been carried out; `volume::repeated` decides that by the record.
//!
//! # Errors
//! An error of write-back that an open file has not reported yet is reported by the new process (`volume::reported`).
//!
//! # State in memory
//! This is every state that is only in the memory of a process, and what a takeover does about it. A new field of `Node`,
//! `OpenFile`, `Inode` or `SuperBlock` needs a line here.
//!
//! | State | The next process |
//! |---|---|
//! | nodes, lookups, numbers | finds a node by its number or descriptor; it counts as looked up once (`volume::inherited`) |
//! | a removed file or directory | has its descriptor from the keeper (`volume::removed`) |
//! | the parent of a directory, for `..` in listings | asks the source |
//! | open files, their flags, writers and possible mappings | opens them again from the record |
//! | errors, and which of them an open file has reported | has them in the record |
//! | a file was emptied, so that its close writes it back | has that in the record, with the errors |
//! | the file's own DONTCACHE | reads it again |
//! | ranges that the kernel has for mappings | takes the whole file for such a range, and drops the kernel's pages, which fetches the stores |
//! | that a page of a mapping has arrived | does not know: until one arrives again, a store may wait for the kernel (P5) |
//! | the agreement with the kernel; whether the kernel's cache follows writes | has them in the record |
//! | locks, offsets, file modes of descriptors | the kernel has them |
//! | requests: parked, paused, in the backlog, interrupted | they come again |
//! | entries of a directory read ahead; readahead; the attributes of the source | asks the source again |
//! | dirty pages, size, mtime, mode, tenant, whether a file has a name | has them in the arena |
//! | since when an inode is dirty | has it in the arena, so that the data becomes no younger |
//! | pages written and not committed | are dirty, are written again and committed soon |
//! | failed attempts, and when the next is due | tries at once |
//! | since when the attempts of a volume fail, which decides when pages of mappings are refused | has it in the arena |
//! | since when the data around a waiting page of a mapping cannot be read | begins anew |
//! | space held back for dirty pages | counts it again |
//! | pages that leave when they are durable (DROPBEHIND) | stay (docs/SEMANTICS.md, P10) |
//! | the tenant that has a file open | is the root until the file is opened again; data keeps its tenant |
//! | the ctime that is shown | may change (docs/SEMANTICS.md, P9) |
//! | tenants that write to another's inode; recency of pages; measured speeds | begin anew |

mod death;
mod entries;
mod errors;
mod record;
mod word;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use slackwater::backend::Found;
use slackwater_fuse::abi::UNIQUE_RESEND;
use slackwater_sync::shim::atomic::AtomicBool;
use slackwater_sync::shim::{Arc, OnceLock};

pub(crate) use death::{Point, pass};
pub(crate) use entries::{HandleRecord, Outcome};
pub(crate) use errors::Remembered;
pub use record::{MountRecord, RecordError};
pub(crate) use word::Word;

/// Keeps descriptors of files for the next process.
pub trait Keeper: Send + Sync {
    /// Keeps a descriptor of a file that was removed while it was open, under a number that identifies it. Returns once
    /// the keeper has it.
    ///
    /// # Errors
    /// The keeper does not have it.
    fn keep(&self, number: u64, file: OwnedFd) -> io::Result<()>;

    /// The file is closed: the descriptor is needed no longer.
    fn release(&self, number: u64);

    /// Keeps a descriptor of a node that the kernel learns of, under its number. Nothing is answered: the keeper will
    /// have it when this process has died.
    fn keep_node(&self, number: u64, node: OwnedFd);

    /// The kernel has forgotten these nodes: their descriptors are needed no longer.
    fn release_nodes(&self, numbers: &[u64]);
}

/// How a mount outlives its process.
pub struct Kept {
    /// Notes for the next process.
    pub record: MountRecord,
    /// The keeper of descriptors for the next process.
    pub keeper: Arc<dyn Keeper>,
    /// The connection of an earlier process, to be taken over. Without it, a new mount is made.
    pub device: Option<OwnedFd>,
    /// Numbers under which the keeper has descriptors of removed files.
    pub files: Vec<u64>,
    /// How many descriptors of nodes the keeper takes. With 0, the handles of the backend must be numbers.
    pub nodes_max: usize,
    /// Nodes of which the keeper has descriptors, by their numbers. The backend finds them by their handles.
    pub nodes: Vec<(u64, Found)>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A kept mount, as its volume sees it.
pub(crate) struct Keeping {
    pub(crate) record: Arc<MountRecord>,
    pub(crate) keeper: Arc<dyn Keeper>,
    /// How many descriptors of nodes the keeper takes; 0 if nodes are found by their numbers.
    pub(crate) nodes_max: usize,
    /// The handles of an earlier process, once known: each with the flags of its reply, by the number of the request
    /// that opened it.
    pub(crate) inherited: OnceLock<HashMap<u64, (u64, u32)>>,
    /// Whether another process goes on with what is open and what waits, so that nothing is closed or answered here.
    pub(crate) is_handed_over: AtomicBool,
}

impl Keeping {
    pub(crate) fn new(record: MountRecord, keeper: Arc<dyn Keeper>, nodes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            record: Arc::new(record),
            keeper,
            nodes_max,
            inherited: OnceLock::new(),
            is_handed_over: AtomicBool::new(false),
        })
    }

    /// Whether the keeper gets a descriptor of each node that the kernel learns of.
    pub(crate) fn keeps_nodes(&self) -> bool {
        self.nodes_max > 0
    }

    /// Whether an earlier process served the mount, so that the kernel knows nodes that this one does not.
    pub(crate) fn is_inherited(&self) -> bool {
        self.inherited.get().is_some()
    }

    /// The handle that an earlier process opened for a request.
    pub(crate) fn opened_by(&self, unique: u64) -> Option<(u64, u32)> {
        self.inherited.get()?.get(&(unique & !UNIQUE_RESEND)).copied()
    }
}
