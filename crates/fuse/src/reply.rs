//! The reply to a request.
//!
//! # Invariants
//! R1. A reply is sent once: every method consumes it, and dropping it sends EIO. It may be sent from any thread, and
//!     may outlive its session.

use std::io::IoSlice;
use std::mem;

use rustix::io::Errno;
use slackwater_sync::shim::Arc;

use crate::abi::{
    AttrOut, BmapOut, EntryOut, FileLock, GetxattrOut, IoctlOut, Kstatfs, LkOut, LseekOut, OpenOut, StatxOut, WriteOut,
};
use crate::connection::Connection;
use crate::held_replies::HeldReply;
use crate::ring::RingSlot;

/// The kernel accepts errno values below this.
const ERRNO_END: i32 = 512;

/// Whether the kernel took a reply.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// The kernel has it.
    Taken,
    /// No caller waits any more: the connection is gone, or the request was aborted. A lookup in this reply was not
    /// counted, and a handle will not be released.
    Gone,
}

/// The obligation to answer one request.
#[must_use = "dropping a reply answers EIO"]
pub struct Reply {
    connection: Arc<Connection>,
    /// The entry of the ring that the request came in; without it, the request came over the device.
    slot: Option<RingSlot>,
    unique: u64,
    is_answered: bool,
    /// Whether the file system has marked it.
    is_marked: bool,
}

impl Reply {
    pub(crate) const fn new(connection: Arc<Connection>, unique: u64) -> Self {
        Self { connection, slot: None, unique, is_answered: false, is_marked: false }
    }

    pub(crate) const fn in_ring(connection: Arc<Connection>, unique: u64, slot: RingSlot) -> Self {
        Self { connection, slot: Some(slot), unique, is_answered: false, is_marked: false }
    }

    /// The number of the request.
    #[must_use]
    pub const fn unique(&self) -> u64 {
        self.unique
    }

    /// Marks the reply for the file system's own use. Returns whether that is new.
    pub fn mark(&mut self) -> bool {
        !mem::replace(&mut self.is_marked, true)
    }

    /// Whether the file system has [marked](Self::mark) it.
    #[must_use]
    pub const fn is_marked(&self) -> bool {
        self.is_marked
    }

    pub(crate) const fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Holds the request until it is answered by [`HeldReply::take`]. If the caller is interrupted before that,
    /// `on_interrupt` gets the reply instead. Only one of the two gets it.
    ///
    /// Any signal interrupts, including a timer's, and so does a freezer; the kernel passes on only the first interrupt of
    /// a request. A killed caller exits only after the reply. So `on_interrupt` answers at once, with the number of bytes
    /// taken or EINTR if nothing was done, or keeps the reply while the caller is alive. It runs on a thread that reads
    /// for all sessions and must not wait for anything. If the interrupt came before this call, it runs inside the call.
    pub fn hold(self, on_interrupt: impl FnOnce(Reply) + Send + 'static) -> HeldReply {
        HeldReply::new(self, Box::new(on_interrupt))
    }

    /// Fails the request.
    pub fn error(mut self, errno: Errno) -> Delivery {
        self.send_error(errno)
    }

    /// Success without data.
    pub fn empty(self) -> Delivery {
        self.io_slices(&[])
    }

    /// Success with these bytes: of a file, a link, a directory ([`Dirents`](crate::Dirents)) or an attribute.
    pub fn bytes(self, bytes: &[u8]) -> Delivery {
        self.io_slices(&[IoSlice::new(bytes)])
    }

    /// Success with these bytes, gathered into one message; up to 1 MiB of pages is not copied.
    pub fn io_slices(mut self, slices: &[IoSlice<'_>]) -> Delivery {
        self.is_answered = true;
        self.send(0, slices)
    }

    /// LOOKUP, SYMLINK, MKNOD, MKDIR, LINK.
    #[must_use = "a lookup that was not taken does not count"]
    pub fn entry(self, entry: &EntryOut) -> Delivery {
        self.bytes(&entry.to_bytes())
    }

    /// GETATTR, SETATTR.
    pub fn attr(self, attr: &AttrOut) -> Delivery {
        self.bytes(&attr.to_bytes())
    }

    /// STATX.
    pub fn statx(self, statx: &StatxOut) -> Delivery {
        self.bytes(&statx.to_bytes())
    }

    /// OPEN, OPENDIR; the flags are those of [`fopen`](crate::abi::fopen).
    #[must_use = "a handle that was not taken is never released"]
    pub fn open(self, fh: u64, open_flags: u32) -> Delivery {
        self.bytes(&OpenOut { fh, open_flags, backing_id: 0 }.to_bytes())
    }

    /// CREATE, TMPFILE.
    #[must_use = "a lookup or handle that was not taken does not count"]
    pub fn create(self, entry: &EntryOut, fh: u64, open_flags: u32) -> Delivery {
        let open = OpenOut { fh, open_flags, backing_id: 0 }.to_bytes();
        self.io_slices(&[IoSlice::new(&entry.to_bytes()), IoSlice::new(&open)])
    }

    /// WRITE, COPY_FILE_RANGE: number of bytes.
    pub fn write(self, size: u32) -> Delivery {
        self.bytes(&WriteOut { size, padding: 0 }.to_bytes())
    }

    /// STATFS.
    pub fn statfs(self, statfs: &Kstatfs) -> Delivery {
        self.bytes(&statfs.to_bytes())
    }

    /// GETXATTR and LISTXATTR that requested the size.
    pub fn xattr_size(self, size: u32) -> Delivery {
        self.bytes(&GetxattrOut { size, padding: 0 }.to_bytes())
    }

    /// IOCTL: success with these bytes of output.
    pub fn ioctl(self, output: &[u8]) -> Delivery {
        let head = IoctlOut::default().to_bytes();
        self.io_slices(&[IoSlice::new(&head), IoSlice::new(output)])
    }

    /// LSEEK.
    pub fn lseek(self, offset: u64) -> Delivery {
        self.bytes(&LseekOut { offset }.to_bytes())
    }

    /// GETLK.
    pub fn lock(self, lock: FileLock) -> Delivery {
        self.bytes(&LkOut { lk: lock }.to_bytes())
    }

    /// BMAP.
    pub fn bmap(self, block: u64) -> Delivery {
        self.bytes(&BmapOut { block }.to_bytes())
    }

    fn send_error(&mut self, errno: Errno) -> Delivery {
        self.is_answered = true;
        let errno = errno.raw_os_error();
        let errno = if (1..ERRNO_END).contains(&errno) { errno } else { Errno::IO.raw_os_error() };
        self.send(-errno, &[])
    }

    fn send(&mut self, error: i32, slices: &[IoSlice<'_>]) -> Delivery {
        match self.transmit(error, slices) {
            Ok(()) => Delivery::Taken,
            // The request was aborted, the file system unmounted, or the other end of a loopback is gone.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::PIPE) => Delivery::Gone,
            Err(errno) => {
                tracing::error!(unique = self.unique, %errno, "the kernel refused a reply");
                // The kernel refuses a reply that is too long for its request. Without any reply the caller would wait
                // forever.
                if error == 0 {
                    let _ = self.transmit(-Errno::IO.raw_os_error(), &[]);
                }
                Delivery::Gone
            }
        }
    }

    /// Sends it where the request came from. In a ring the kernel refuses a reply only once the connection has ended, so
    /// the outcome need not be waited for.
    fn transmit(&mut self, error: i32, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        match &mut self.slot {
            None => self.connection.send(self.unique, error, slices),
            Some(slot) => slot.answer(self.unique, error, slices),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !mem::replace(&mut self.is_answered, true) {
            tracing::error!(unique = self.unique, "a request was dropped without an answer");
            self.send_error(Errno::IO);
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("unique", &self.unique).finish_non_exhaustive()
    }
}
