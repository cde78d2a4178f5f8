//! The transport of messages between kernel and session.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, readv, writev};

/// A connection. Each message is sent or received whole, in one call.
pub trait Transport: Send + Sync + 'static {
    /// Reads one request, without waiting unless [`set_waiting`](Self::set_waiting) says so.
    ///
    /// # Errors
    /// `AGAIN`: nothing to read. `INTR` and `NOENT`: try again. `NODEV`: the file system is unmounted and no reference
    /// is left. `CONNABORTED`: the connection was aborted. Any other error is final.
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno>;

    /// Sends one reply or notification.
    ///
    /// # Errors
    /// `NOENT`: no caller waits for it. Otherwise as returned by the kernel.
    fn send(&self, message: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// Whether [`receive`](Self::receive) waits for a request. At first it does not. A signal ends the wait with
    /// `INTR`.
    ///
    /// # Errors
    /// It cannot wait; so by default.
    fn set_waiting(&self, waits: bool) -> Result<(), Errno> {
        if waits { Err(Errno::NOSYS) } else { Ok(()) }
    }

    /// The descriptor that becomes readable when there is a request.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// The kernel, through a descriptor of `/dev/fuse`.
#[derive(Debug)]
pub struct DevFuse(OwnedFd);

impl DevFuse {
    /// Takes a descriptor opened by [`mount`](crate::mount::mount) or by another process. Makes it non-blocking, for
    /// every duplicate too.
    ///
    /// # Errors
    /// The descriptor's flags cannot be set.
    pub fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self(fd))
    }
}

impl Transport for DevFuse {
    #[inline]
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        readv(&self.0, buffers)
    }

    #[inline]
    fn send(&self, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        writev(&self.0, message).map(drop)
    }

    fn set_waiting(&self, waits: bool) -> Result<(), Errno> {
        // No other flag of the device can be set.
        let flags = if waits { OFlags::empty() } else { OFlags::NONBLOCK };
        fcntl_setfl(&self.0, flags)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
