//! The transport of a session and its held replies.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::abi::OutHeader;
use crate::held_replies::HeldReplies;
use crate::transport::Transport;

/// Slices of a reply that are sent without copying: 1 MiB of page frames, the header and a few more.
const SLICES_MAX: usize = 260;

/// Whether the kernel has closed the connection with this descriptor, which it does with the last mount or by force.
#[must_use]
pub fn is_closed(fd: BorrowedFd<'_>) -> bool {
    is_closed_within(fd, &Timespec::default())
}

/// Waits until the kernel has closed the connection, at most for `time`. Returns whether it has.
pub(crate) fn is_closed_within(fd: BorrowedFd<'_>, time: &Timespec) -> bool {
    // Errors are always reported by poll.
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    poll(&mut fds, Some(time)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

pub(crate) struct Connection {
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) held: HeldReplies,
}

impl Connection {
    pub(crate) fn new(transport: Box<dyn Transport>) -> Self {
        Self { transport, held: HeldReplies::new() }
    }

    /// Sends `parts` after a header. `error` is 0, a negative errno, or the code of a notification.
    #[inline]
    pub(crate) fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        // Zeroing space for 260 slices costs more than the rest of a small reply.
        if parts.len() < 4 {
            self.gather::<4>(unique, error, parts)
        } else if parts.len() < SLICES_MAX {
            self.gather::<SLICES_MAX>(unique, error, parts)
        } else {
            let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            self.gather::<4>(unique, error, &[IoSlice::new(&whole)])
        }
    }

    #[inline]
    fn gather<const N: usize>(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let len = 16 + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique }.to_bytes();
        let mut message = [IoSlice::new(&[]); N];
        message[0] = IoSlice::new(&header);
        message[1..=parts.len()].copy_from_slice(parts);
        self.transport.send(&message[..=parts.len()])
    }
}
