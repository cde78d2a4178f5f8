//! The storage port: what the engine asks of the place where bytes end up.
//!
//! A backend is one method, [`Backend::submit`]: it takes a [`Call`], never blocks, and answers later from
//! any thread by completing the call. Metadata takes the same road as data, because either may block for
//! ever on a dead server. A layer (delay, fault, rate) wraps any backend with the same one method.
//!
//! [`Backend::submit_and_wait`] is a shortcut for a caller that waits anyway. A layer that does something to calls
//! does it on both roads.
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
//! B6. What a call on names, attributes or ranges has changed is not forgotten while the engine lives; only
//!     written bytes are kept and written again (B4).
//!
//! # Kernel counterpart
//! `address_space_operations`, `inode_operations` and `super_operations`, reduced to what is asynchronous.

mod call;
mod done;
mod mem;
mod unit;
mod values;

/// Flags of a node that the engine knows: two of the bits of `FS_IOC_GETFLAGS`, all of which pass as they are.
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

use slackwater_sync::shim::Arc;

use crate::units::{NodeId, Timestamp};

/// Where bytes end up. See the contract in the [module documentation](self).
pub trait Backend: Send + Sync + 'static {
    /// Starts `call`; it is completed later, or at once, from any thread.
    ///
    /// # Blocking
    /// Never (B1).
    fn submit(&self, call: Call);

    /// As [`Backend::submit`], for a caller that is going to wait for the answer: the call may be done on
    /// its thread, and is spared the way to another and back. It need not be answered on return.
    ///
    /// # Blocking
    /// Possibly for as long as the call takes.
    fn submit_and_wait(&self, call: Call) {
        self.submit(call);
    }

    /// What the backend can take. Constant while it lives.
    fn limits(&self) -> Limits;

    /// Whether the backend can hold more nodes open. While there are not [enough](NodeSupply::Enough), the engine releases
    /// unused nodes.
    ///
    /// # Blocking
    /// Never.
    fn node_supply(&self) -> NodeSupply {
        NodeSupply::Enough
    }
}

/// How many more nodes a backend can hold open. Each may cost a descriptor of the process.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug)]
pub enum NodeSupply {
    /// As many as the engine needs.
    Enough,
    /// Nodes that can be reopened should be released.
    Short,
    /// The rest is needed for calls. A volume opens further nodes for dirty files only while it has few.
    Scarce,
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
    /// Whether a node with a name is opened again by its handle, always. Otherwise the engine keeps the nodes of open files
    /// open.
    pub reopens: bool,
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

    /// The handle of a node that a number leads to, whichever process asks: its eight bytes. No other handle has eight.
    /// The lower bits of the number are those of the node's number on its device, the upper ones tell generations apart.
    pub fn from_number(number: u64) -> Self {
        Self(number.to_le_bytes().into())
    }

    /// The handle as a number, if it was made of one. A front door that has 64 bits for a node needs no table to find
    /// the node again.
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
    /// Regular file: the only kind that has pages.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Device, FIFO or socket; `Attr::mode` says which, `Attr::rdev` names the device.
    Special,
}

impl NodeKind {
    /// The kind that the type bits of a `st_mode` stand for.
    pub const fn of_mode(mode: u32) -> Self {
        match mode & S_IFMT {
            S_IFREG => Self::File,
            S_IFDIR => Self::Directory,
            S_IFLNK => Self::Symlink,
            _ => Self::Special,
        }
    }

    /// The type bits of `st_mode`; 0 for [`NodeKind::Special`], of which there are several.
    pub const fn type_bits(self) -> u32 {
        match self {
            Self::File => S_IFREG,
            Self::Directory => S_IFDIR,
            Self::Symlink => S_IFLNK,
            Self::Special => 0,
        }
    }
}

/// The bits of `st_mode` that tell the type.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

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
    /// Whether the backend refuses changes, whoever makes them.
    pub protection: Protection,
}

impl Attr {
    /// The attributes of a new, empty node of the owner 0, with one name and all times `now`. `mode` has the type bits.
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

/// What a backend refuses to do with a node, whoever asks: it has a flag that says so ([`file_flags`]).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Protection {
    /// Nothing.
    None,
    /// A file only grows at its end; a directory keeps its names.
    AppendOnly,
    /// It does not change at all.
    Immutable,
}
