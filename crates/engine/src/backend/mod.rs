//! The storage interface: what the engine needs of the place where data is stored.
//!
//! A backend has one method, [`Backend::submit`]. It takes a [`Call`], never blocks, and completes the call later from
//! any thread. Metadata uses the same method as data, because either may block forever on a dead server. A layer
//! (delay, fault, rate) wraps any backend behind the same method.
//!
//! [`Backend::submit_and_wait`] is a shortcut for a caller that is going to wait. A layer that changes calls does so in
//! both methods.
//!
//! # Contract
//! B1. `submit` returns without waiting for the device, a lock held across I/O, or another call.
//! B2. Every call is completed exactly once. A call that is dropped completes with
//!     [`ErrorKind::Abandoned`](crate::ErrorKind::Abandoned), so no waiter is left behind.
//! B3. Calls may run in any order. The engine never has two writes to one byte in flight, nor a write and a
//!     size change that touch the same byte.
//! B4. A successful `Sync` makes every write to that node durable that completed before it was submitted. A successful
//!     `SyncVolume` does so for every write and name change of the volume. A sync that cannot be sure fails: the engine
//!     keeps all pages written since the last success, and writes them again.
//! B5. A failed call has changed nothing that the engine relies on. A failed write may have written a part.
//! B6. Changes that a call made to names, attributes or ranges are not lost while the engine lives. Only written bytes
//!     are kept and written again (B4).
//!
//! # Kernel counterpart
//! `address_space_operations`, `inode_operations` and `super_operations`, reduced to their asynchronous part.

mod call;
mod done;
mod mem;
mod unit;
mod values;

/// The flags of a node that the engine interprets: two bits of `FS_IOC_GETFLAGS`. All others are passed unchanged.
pub mod file_flags {
    /// [`Protection::Immutable`](super::Protection::Immutable).
    pub const IMMUTABLE: u32 = 0x10;
    /// [`Protection::AppendOnly`](super::Protection::AppendOnly).
    pub const APPEND: u32 = 0x20;
}

pub use call::Call;
pub use done::Done;
pub(crate) use done::call_and_wait;
pub use mem::{MemBackend, MemFile};
pub use unit::{ReadUnit, WriteUnit};
pub use values::{
    AttrChange, Creator, DirEntry, DirEntryPlus, FallocateMode, Found, NewNode, Removal, RenameMode, SeekWhence,
    Statfs, SyncScope, XattrMode,
};

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use slackwater_sync::shim::Arc;

use crate::units::{NodeId, Timestamp};

/// A place where data is stored. See the contract in the [module documentation](self).
pub trait Backend: Send + Sync + 'static {
    /// Starts `call`. It is completed at once or later, from any thread.
    ///
    /// # Blocking
    /// Never (B1).
    fn submit(&self, call: Call);

    /// Submits a call as [`Backend::submit`] does, for a caller that is going to wait for the answer: the call may run
    /// on the caller's thread, which saves two thread switches. It need not be complete on return.
    ///
    /// # Blocking
    /// May block for as long as the call takes.
    fn submit_and_wait(&self, call: Call) {
        self.submit(call);
    }

    /// Waits until the threads that make calls hold nothing of those that are answered, such as descriptors, and dropped nodes
    /// are closed. The volume has ended, and calls that their callers gave up may still run. A layer passes this on.
    ///
    /// # Blocking
    /// For a moment only, whatever the device does.
    fn settle(&self) {}

    /// The limits of the backend. Constant while it lives.
    fn limits(&self) -> Limits;

    /// Whether the backend can hold more nodes open. While there are not [enough](NodeSupply::Enough), the engine
    /// releases unused nodes.
    ///
    /// # Blocking
    /// Never.
    fn node_supply(&self) -> NodeSupply {
        NodeSupply::Enough
    }

    /// Another descriptor of a node. While any process has it, the file can be
    /// [found by its handle](Call::Reopen) even without a name. `None` if that is not how this backend keeps files.
    ///
    /// # Blocking
    /// Never.
    fn descriptor(&self, _node: &Node) -> Option<OwnedFd> {
        None
    }

    /// The last path of a node that has lost its name, for messages. `None` if that is unknown.
    ///
    /// # Blocking
    /// Never.
    fn last_path(&self, _node: &Node) -> Option<PathBuf> {
        None
    }
}

/// How many more nodes a backend can hold open. Each may cost a descriptor of the process.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum NodeSupply {
    /// The engine may have as many as it needs.
    Enough,
    /// Nodes that can be reopened should be released.
    Short,
    /// The rest is needed for calls. A volume opens further nodes for dirty files only while it has few.
    Scarce,
}

/// The limits of a backend.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest file size. A write or truncate beyond it is refused before it is cached.
    pub max_file_bytes: u64,
    /// Largest unit of one read or write call: a multiple of the page size, at most 1 MiB.
    pub unit_bytes: u32,
    /// Units the backend works on at once; the engine keeps this many in flight.
    pub units_in_flight: u32,
    /// Volumes with the same number share a device: a sync on one holds background writes of the others back. `None`:
    /// the volume shares its device with no other.
    pub device: Option<u64>,
    /// Whether the backend empties the cache of the device after a unit that [asks for it](WriteUnit::flushes).
    pub flushes: bool,
    /// How much to read ahead of a sequential reader, so that the latency of the backend does not slow it down. 0 leaves
    /// it to [`Tunables::readahead_pages`](crate::Tunables::readahead_pages), which otherwise only switches readahead
    /// off.
    pub readahead_bytes: u64,
    /// Whether a node with a name can always be reopened by its handle. If not, the engine keeps the nodes of open
    /// files open.
    pub reopens: bool,
}

/// The most bytes in one unit: 1 MiB, one run of frames.
pub const MAX_UNIT_BYTES: u32 = 1 << 20;

/// An open node of a backend, by which calls refer to a file. Clones share it. The backend's own value is dropped with
/// the last clone, which may close a descriptor.
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

    /// The identity of its file.
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

/// The longest file handle in bytes, as in the kernel's `MAX_HANDLE_SZ`.
pub const MAX_HANDLE_BYTES: usize = 128;

/// A reference to a file that survives this process and renames: at most [`MAX_HANDLE_BYTES`] bytes, opaque.
#[derive(Clone, Eq, PartialEq, Hash, Debug)]
pub struct FileHandle(Box<[u8]>);

impl FileHandle {
    /// A handle of these bytes; `None` if they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= MAX_HANDLE_BYTES).then(|| Self(bytes.into()))
    }

    /// The handle of a node that is identified by a number: its eight bytes. No other handle has eight bytes. The lower
    /// bits are those of the node's number on its device, and the upper ones distinguish generations.
    pub fn from_number(number: u64) -> Self {
        Self(number.to_le_bytes().into())
    }

    /// The handle as a number, if it was made from one. With it, a front end whose node ids have 64 bits finds the node
    /// again without a table.
    pub fn number(&self) -> Option<u64> {
        self.0.as_ref().try_into().ok().map(u64::from_le_bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Kind of a node.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum NodeKind {
    /// Regular file, the only kind with pages.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Device, FIFO or socket; `Attr::mode` says which, `Attr::rdev` names the device.
    Special,
}

impl NodeKind {
    /// The kind given by the type bits of a `st_mode`.
    pub const fn of_mode(mode: u32) -> Self {
        match mode & S_IFMT {
            S_IFREG => Self::File,
            S_IFDIR => Self::Directory,
            S_IFLNK => Self::Symlink,
            _ => Self::Special,
        }
    }

    /// The type bits of `st_mode`; 0 for [`NodeKind::Special`], which has several.
    pub const fn type_bits(self) -> u32 {
        match self {
            Self::File => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::Symlink => S_IFLNK,
            Self::Special => 0,
        }
    }
}

/// The type bits of `st_mode`.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

/// Attributes of a node.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Attr {
    /// Identity of the file.
    pub id: NodeId,
    /// Kind of the node.
    pub kind: NodeKind,
    /// Type and permission bits as in `st_mode`.
    pub mode: u32,
    /// Number of names (hard links).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// Size.
    pub size_bytes: u64,
    /// Space allocated in the backend.
    pub allocated_bytes: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// Whether the backend refuses changes by any caller.
    pub protection: Protection,
}

impl Attr {
    /// The attributes of a new, empty node of owner 0 with one name, whose times are all `now`. `mode` has the type
    /// bits.
    pub const fn new(id: NodeId, mode: u32, now: Timestamp) -> Self {
        Self {
            id,
            kind: NodeKind::of_mode(mode),
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes: 0,
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            protection: Protection::None,
        }
    }
}

/// Changes of a node that the backend refuses to any caller, because of a flag ([`file_flags`]).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Protection {
    /// Nothing.
    None,
    /// A file grows only at its end; a directory keeps its names.
    AppendOnly,
    /// The node cannot be changed at all.
    Immutable,
}
