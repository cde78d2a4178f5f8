//! The storage port: what the engine asks of the place where bytes end up.
//!
//! A backend is one method, [`Backend::submit`]: it takes a [`Call`], never blocks, and answers later from
//! any thread by completing the call. Metadata takes the same road as data, because either may block for
//! ever on a dead server. A layer (delay, fault, rate) wraps any backend with the same one method.
//!
//! # Contract
//! B1. `submit` returns without waiting for the device, a lock held across I/O, or another call.
//! B2. Every call is completed exactly once. A call that is dropped completes with
//!     [`ErrorKind::Abandoned`](crate::ErrorKind::Abandoned), so no waiter is left behind.
//! B3. Calls may run in any order. The engine never has two writes to one byte in flight, nor a write and a
//!     size change that touch the same byte.
//! B4. A successful `Sync` makes durable every write to that node completed before it was submitted, and a
//!     `SyncVolume` every write and name change of the volume. Where that cannot be told, it fails:
//!     the engine keeps all pages written since the last success and writes them again.
//! B5. A failed call has changed nothing the engine relies on; a failed write may have written part.
//! B6. What a call on names or attributes has changed is not forgotten while the engine lives; only written
//!     bytes are kept and written again (B4).
//!
//! # Kernel counterpart
//! `address_space_operations`, `inode_operations` and `super_operations`, reduced to what is asynchronous.

mod call;
mod mem;
mod unit;

pub use call::{AttrChange, Call, DirEntry, Done, Found, NewNode, Removal, RenameMode, Statfs, SyncScope};
pub use mem::{MemBackend, MemFile};
pub use unit::{ReadUnit, WriteUnit};

use std::any::Any;
use std::fmt;

use slackwater_sync::shim::Arc;

use crate::units::{NodeId, Timestamp};

/// Where bytes end up. See the contract in the [module documentation](self).
pub trait Backend: Send + Sync + 'static {
    /// Starts `call`; it is completed later, or at once, from any thread.
    ///
    /// # Blocking
    /// Never (B1).
    fn submit(&self, call: Call);

    /// What the backend can take. Constant while it lives.
    fn limits(&self) -> Limits;
}

/// What a backend can take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest file size; a write or truncate beyond it is refused before it is cached.
    pub max_file_bytes: u64,
    /// Largest unit of one read or write call: a multiple of the page size, at most 1 MiB.
    pub unit_bytes: u32,
    /// Units the backend works on at once; the engine keeps this many in flight.
    pub units_in_flight: u32,
    /// Volumes with an equal number share a device, and a sync on one holds the others' background
    /// writes back. `None`: shares nothing.
    pub device: Option<u64>,
}

/// Most bytes of one unit: 1 MiB, one run of frames.
pub const MAX_UNIT_BYTES: u32 = 1 << 20;

/// An open node of a backend: what its calls name files by. Cloning shares it; the backend's own value is
/// dropped (a descriptor closed) with the last clone.
#[derive(Clone)]
pub struct Node {
    id: NodeId,
    value: Arc<dyn Any + Send + Sync>,
}

impl Node {
    /// Wraps a backend's own value for the file `id`.
    pub fn new<T: Any + Send + Sync>(id: NodeId, value: T) -> Self {
        Self { id, value: Arc::new(value) }
    }

    /// Which file it is: layers and logs tell nodes apart by it.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The backend's own value, if it is of type `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.value.downcast_ref()
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.id)
    }
}

/// Longest file handle in bytes, as in the kernel's `MAX_HANDLE_SZ`.
pub const MAX_HANDLE_BYTES: usize = 128;

/// A name for a file that survives this process and renames: at most [`MAX_HANDLE_BYTES`] bytes, opaque.
#[derive(Clone, Eq, PartialEq, Hash, Debug)]
pub struct FileHandle(Box<[u8]>);

impl FileHandle {
    /// A handle of these bytes; `None` when they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= MAX_HANDLE_BYTES).then(|| Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Kind of a node.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum NodeKind {
    /// Regular file: the only kind that has pages.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Device, FIFO or socket; `Attr::rdev` names the device.
    Special,
}

/// Attributes of a node.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Attr {
    /// Which file.
    pub id: NodeId,
    /// File, directory, link.
    pub kind: NodeKind,
    /// Type and permission bits as in `st_mode`.
    pub mode: u32,
    /// Names of this file.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Size.
    pub size_bytes: u64,
    /// Space taken on the backend.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}
