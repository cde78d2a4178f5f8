//! The client side: requests to a mount process or a daemon.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::line;
use crate::protocol::{Message, REPLY_BYTES_MAX, Reply, Request, VERSION, VolumeRef};

/// A live process answers a question about itself within this time.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const LISTENS_WITHIN: Duration = Duration::from_millis(100);

/// Sends a request that is answered at once.
///
/// # Errors
/// The process does not listen, does not answer within the time, or sends an invalid answer.
///
/// # Blocking
/// For the process, at most `within`.
pub fn ask(socket: &Path, volume: &VolumeRef, request: &Request, within: Duration) -> io::Result<Reply> {
    let since = Instant::now();
    Conversation::open(socket, volume, request, within)?.next(Some(within.saturating_sub(since.elapsed())))
}

/// Whether the process ended, or was replaced, while it had the request.
pub fn is_cut_off(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// A request that takes a while to answer, with progress reports before the answer.
pub struct Conversation {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Conversation {
    /// Sends the request; to a daemon, about `volume`.
    ///
    /// # Errors
    /// No process listens at `socket`, or it does not take the request within the time.
    ///
    /// # Blocking
    /// At most `within`, for a stopped process whose queue is full.
    pub fn open(socket: &Path, volume: &VolumeRef, request: &Request, within: Duration) -> io::Result<Self> {
        let mut stream = connected(socket, within)?;
        stream.write_all(&Message::request(request).about(volume.clone()).line())?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// The next reply.
    ///
    /// # Errors
    /// The process ends, does not answer within the time, or sends an invalid answer.
    ///
    /// # Blocking
    /// For the process.
    pub fn next(&mut self, within: Option<Duration>) -> io::Result<Reply> {
        let line = line::read(&mut self.stream, &mut self.buffer, REPLY_BYTES_MAX, within)?;
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        let message: Message<Reply> = serde_json::from_slice(&line)?;
        match message.version {
            VERSION => Ok(message.body),
            other => Err(io::Error::other(format!(
                "it uses version {other} of the protocol, this command version {VERSION}"
            ))),
        }
    }
}

/// Whether a process listens at `socket`, even if it is busy.
///
/// # Blocking
/// At most 100 ms, while the queue of the process is full.
pub fn is_anyone_at(socket: &Path) -> bool {
    match connected(socket, LISTENS_WITHIN) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::TimedOut,
    }
}

/// The standard library would wait forever while the queue of the process is full.
fn connected(socket: &Path, within: Duration) -> io::Result<UnixStream> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(within))?;
    match connect(&stream, &SocketAddrUnix::new(socket)?) {
        Ok(()) => Ok(stream.into()),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn connecting_to_a_full_queue_times_out() {
        let socket = std::env::temp_dir().join(format!("slackwater-queue-{}.sock", std::process::id()));
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut queued = Vec::new();
        let error = loop {
            match Conversation::open(&socket, &VolumeRef::default(), &Request::Status, Duration::from_millis(50)) {
                Ok(conversation) => queued.push(conversation),
                Err(error) => break error,
            }
        };
        std::fs::remove_file(&socket).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(!queued.is_empty());
    }
}
