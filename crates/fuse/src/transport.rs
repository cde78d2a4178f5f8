//! How messages travel between kernel and session.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, readv, writev};

/// One connection. Each message is one call, whole or not at all.
pub trait Transport: Send + Sync + 'static {
    /// Reads one request, without waiting.
    ///
    /// # Errors
    /// `AGAIN`: nothing to read. `INTR` and `NOENT`: ask again. `NODEV`: the file system is unmounted and no reference is
    /// left. `CONNABORTED`: the connection was cut. Anything else is final.
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno>;

    /// Sends one reply or notification.
    ///
    /// # Errors
    /// `NOENT`: nobody waits for it. Otherwise as the kernel has it.
    fn send(&self, message: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// What becomes readable when there is a request.
    fn fd(&self) -> BorrowedFd<'_>;
}

/// The kernel, through a descriptor of `/dev/fuse`.
#[derive(Debug)]
pub struct DevFuse(OwnedFd);

impl DevFuse {
    /// Takes over a descriptor that [`mount`](crate::mount::mount) or another process opened. Makes it non-blocking,
    /// for every duplicate too.
    ///
    /// # Errors
    /// When the descriptor does not take flags.
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

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
