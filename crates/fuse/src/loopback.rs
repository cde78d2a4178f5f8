//! A session without a kernel: both ends in one process, for tests.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, readv, writev};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::abi::{InHeader, InitExtIn, InitIn, KERNEL_MINOR_VERSION, KERNEL_VERSION, Opcode, OutHeader, Wire};
use crate::transport::Transport;

/// Length of the longest message, if the system allows it.
const MESSAGE_MAX: usize = (1 << 20) + 4096;

/// How long a test waits for a missing answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The session's end.
#[derive(Debug)]
pub struct Loopback(OwnedFd);

/// The end that plays the kernel. Dropping it is an unmount.
#[derive(Debug)]
pub struct Peer(OwnedFd);

/// Both ends of a new connection.
///
/// # Errors
/// The system cannot provide a socket pair.
pub fn loopback() -> Result<(Loopback, Peer), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&ours, &theirs] {
        // Only root gets a buffer of any size; for other users messages are smaller.
        if sockopt::set_socket_send_buffer_size_force(end, 2 * MESSAGE_MAX).is_err() {
            sockopt::set_socket_send_buffer_size(end, 2 * MESSAGE_MAX)?;
        }
    }
    sockopt::set_socket_timeout(&theirs, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((Loopback(ours), Peer(theirs)))
}

impl Transport for Loopback {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        match readv(&self.0, buffers) {
            Ok(0) | Err(Errno::CONNRESET) => Err(Errno::NODEV),
            other => other,
        }
    }

    fn send(&self, message: &[IoSlice<'_>]) -> Result<(), Errno> {
        writev(&self.0, message).map(drop)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A reply or a notification as the kernel would see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The request that it answers; 0 for a notification.
    pub unique: u64,
    /// 0, a negative errno, or the code of a notification.
    pub error: i32,
    /// The data after the header.
    pub body: Vec<u8>,
}

impl Peer {
    /// Sends a request about `node`, as root and with pid 0; `parts` follow the header.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn request(&self, opcode: Opcode, unique: u64, node: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        self.message(&message(opcode as u32, unique, node, parts))
    }

    /// Sends arbitrary bytes as a message.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn message(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&self.0, message).map(drop)
    }

    /// Sends INIT that offers `flags`.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn init(&self, flags: u64) -> Result<(), Errno> {
        let (major, minor) = (KERNEL_VERSION, KERNEL_MINOR_VERSION);
        let first = InitIn { major, minor, max_readahead: 128 << 10, flags: flags as u32 };
        let more = InitExtIn { flags2: (flags >> 32) as u32, unused: [0; 11] };
        self.request(Opcode::Init, 2, 0, &[&first.to_bytes(), &more.to_bytes()])
    }

    /// Waits for the next reply or notification.
    ///
    /// # Errors
    /// The other end is gone or sent less than a header; `AGAIN` if nothing came for a minute.
    pub fn answer(&self) -> Result<Answer, Errno> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let len = rustix::io::read(&self.0, &mut bytes)?;
        let mut rest = bytes.get(..len).ok_or(Errno::PROTO)?;
        let header = OutHeader::take(&mut rest).ok_or(Errno::PROTO)?;
        Ok(Answer { unique: header.unique, error: header.error, body: rest.to_vec() })
    }
}

/// The bytes of a request.
#[must_use]
pub fn message(opcode: u32, unique: u64, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let len = InHeader::SIZE + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = InHeader { len: len as u32, opcode, unique, nodeid: node, ..InHeader::default() };
    let mut bytes = header.to_bytes().to_vec();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}
