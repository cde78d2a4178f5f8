//! The socket between the keeper and the server: JSON messages, each with a few descriptors.
//!
//! The socket keeps the boundaries of messages (`SOCK_SEQPACKET`), so a message is there completely or not at all, and
//! neither side ever waits for the rest of one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A registry entry with the longest paths fits.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of descriptors of a message. Kernel: `SCM_MAX_FD` is 253.
pub(super) const DESCRIPTORS_MAX: usize = 200;
/// A peer that neither reads nor answers within this time is stopped, or hangs.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// An end of the socket.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// A new socket: one end, and the descriptor of the other one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::with_limits(own)?, other))
    }

    /// The end with this descriptor.
    ///
    /// # Errors
    /// The descriptor is not such a socket.
    pub(super) fn of(fd: OwnedFd) -> io::Result<Self> {
        match socket_type(&fd)? {
            SocketType::SEQPACKET => Self::with_limits(fd),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn with_limits(fd: OwnedFd) -> io::Result<Self> {
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&fd, direction, Some(ANSWERS_WITHIN))?;
        }
        Ok(Self(fd))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The peer is gone, or has not read anything for [`ANSWERS_WITHIN`].
    ///
    /// # Blocking
    /// While the peer has many unread messages.
    pub(super) fn send(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(message, with, SendFlags::NOSIGNAL)
    }

    /// Sends a message as [`send`](Self::send) does, without waiting.
    ///
    /// # Errors
    /// `WouldBlock`, if the peer has many unread messages.
    pub(super) fn send_now(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(message, with, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, message: &impl Serialize, with: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("the message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() && !control.push(SendAncillaryMessage::ScmRights(with)) {
            return Err(io::Error::other("the message has too many descriptors"));
        }
        sendmsg(&self.0, &[IoSlice::new(&text)], &mut control, flags)?;
        Ok(())
    }

    /// The next message. `None` if the peer is gone. If this process has too many open files, the last descriptors of the
    /// message are missing.
    ///
    /// # Errors
    /// No message arrives within [`ANSWERS_WITHIN`], or what arrives is none.
    ///
    /// # Blocking
    /// Until a message arrives.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut text = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(found) = message {
                descriptors.extend(found);
            }
        }
        match received.bytes {
            0 => Ok(None),
            bytes => Ok(Some((serde_json::from_slice(&text[..bytes])?, descriptors))),
        }
    }
}

/// A time for poll(2).
pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (one, other) = Link::pair().unwrap();
        let other = Link::of(other).unwrap();
        let path = std::env::temp_dir().join(format!("slackwater-link-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        one.send(&"first", &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&"second", &[]).unwrap();
        let (text, descriptors) = other.receive::<String>().unwrap().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("first", 2));
        File::from(descriptors.into_iter().next().unwrap()).write_all(b"x").unwrap();
        let mut content = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "x", "the same open file");
        assert_eq!(other.receive::<String>().unwrap().unwrap().0, "second");
        drop(one);
        assert!(other.receive::<String>().unwrap().is_none());
        assert!(other.send(&"lost", &[]).is_err());
    }

    #[test]
    fn other_files_and_long_messages_are_refused() {
        assert!(Link::of(File::open("/dev/null").unwrap().into()).is_err());
        let (one, _other) = Link::pair().unwrap();
        assert!(one.send(&"x".repeat(MESSAGE_BYTES_MAX), &[]).is_err());
    }
}
