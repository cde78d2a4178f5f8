//! Asking a mount process or a daemon.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::control::line;
use crate::control::protocol::{Message, REPLY_BYTES_MAX, Reply, Request, VERSION};

/// A process that lives answers a question about itself within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A question that is answered at once.
///
/// # Errors
/// The process does not listen, or answers nonsense.
///
/// # Blocking
/// For the process, ten seconds at most.
pub(crate) fn ask(socket: &Path, volume: Option<&str>, request: &Request) -> io::Result<Reply> {
    Conversation::open(socket, volume, request)?.next(Some(ANSWER_WITHIN))
}

/// A request whose answer takes its time, with progress before it.
pub(crate) struct Conversation {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Conversation {
    /// Asks; of a daemon, about `volume`.
    pub(crate) fn open(socket: &Path, volume: Option<&str>, request: &Request) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(&Message::new(request).about(volume.map(str::to_owned)).line())?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// The next reply.
    ///
    /// # Blocking
    /// For the process.
    pub(crate) fn next(&mut self, within: Option<Duration>) -> io::Result<Reply> {
        let line = line::read(&mut self.stream, &mut self.buffer, REPLY_BYTES_MAX, within)?;
        let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
        let message: Message<Reply> = serde_json::from_slice(&line)?;
        match message.version {
            VERSION => Ok(message.body),
            other => {
                Err(io::Error::other(format!("it speaks version {other} of the protocol, this command {VERSION}")))
            }
        }
    }
}
