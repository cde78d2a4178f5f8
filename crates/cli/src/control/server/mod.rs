//! Answering the command.
//!
//! # Invariants
//! V1. A peer is root or the user who runs this process; any other is dropped unread.
//! V2. Each connection has a thread of its own, and a time within which its request must be here. There are at most
//!     [`CONNECTIONS_MAX`] at once. So no peer keeps another from being answered for longer than that time.
//! V3. What a peer sends is bounded in length, and what cannot be understood is answered, never acted on.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::control::line;
use crate::control::protocol::{Message, REQUEST_BYTES_MAX, Reply, Request, VERSION};
use crate::exit::Failure;

const CONNECTIONS_MAX: usize = 32;
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// A peer that does not take its reply within this time has lost it.
const REPLY_WITHIN: Duration = Duration::from_secs(2);

/// Who knows the answers.
pub(crate) trait Respond: Send + Sync + 'static {
    /// Answers `request`; what `progress` returns says whether the peer still listens.
    ///
    /// # Blocking
    /// As long as it takes.
    fn respond(&self, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply;

    /// A request is about to be answered.
    fn asked(&self) {}

    /// The last reply has been written, or was lost.
    fn replied(&self) {}
}

/// Says so however the answer ends.
struct Replied<'a>(&'a dyn Respond);

impl Drop for Replied<'_> {
    fn drop(&mut self) {
        self.0.replied();
    }
}

/// Listens at `socket` from now until the process ends.
///
/// # Errors
/// When it cannot listen there.
pub(crate) fn start(socket: &Path, respond: Arc<dyn Respond>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    thread::Builder::new().name("sw-control".into()).spawn(move || accept(&listener, &respond))?;
    Ok(())
}

fn accept(listener: &UnixListener, respond: &Arc<dyn Respond>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely; the peer waits in the queue.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if !is_permitted(&stream) {
            continue;
        }
        if connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::AcqRel);
            let failure =
                Failure::busy("the mount process has too many connections").advise("try again in some seconds");
            reply(&stream, Reply::Failed(failure));
            continue;
        }
        let (respond, place) = (Arc::clone(respond), Place(Arc::clone(&connections)));
        // Without a thread the peer is dropped, and its place with the closure.
        let _ = thread::Builder::new().name("sw-control-one".into()).spawn(move || {
            let _place = place;
            serve(stream, &*respond);
        });
    }
}

/// One of [`CONNECTIONS_MAX`], given back however the thread ends.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// V1.
fn is_permitted(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid())
}

fn serve(mut stream: UnixStream, respond: &dyn Respond) {
    let line = match line::read(&mut stream, &mut Vec::new(), REQUEST_BYTES_MAX, Some(REQUEST_WITHIN)) {
        Ok(Some(line)) => line,
        Ok(None) => return,
        Err(error) => {
            let why = if error.kind() == io::ErrorKind::TimedOut {
                "no whole request came within 5 s".to_owned()
            } else if error.kind() == io::ErrorKind::InvalidData {
                format!("the request is longer than {REQUEST_BYTES_MAX} bytes")
            } else {
                return;
            };
            reply(&stream, Reply::Failed(Failure::usage(why)));
            return;
        }
    };
    match understood(&line) {
        Ok(request) => {
            respond.asked();
            let _replied = Replied(respond);
            let last = respond.respond(request, &|progress| reply(&stream, progress));
            reply(&stream, last);
        }
        Err(failure) => drop(reply(&stream, Reply::Failed(failure))),
    }
}

fn understood(line: &[u8]) -> Result<Request, Failure> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    // The version first: of another one not even the form of a request is known.
    let nonsense = |error| Failure::usage(format!("not a request: {error}"));
    let Version { version } = serde_json::from_slice(line).map_err(nonsense)?;
    if version != VERSION {
        let what = format!("the request is of version {version}, this mount process speaks {VERSION}");
        return Err(Failure::usage(what).advise("use the slackwater that started the mount"));
    }
    Ok(serde_json::from_slice::<Message<Request>>(line).map_err(nonsense)?.body)
}

/// False when the peer is gone or does not read.
fn reply(mut stream: &UnixStream, body: Reply) -> bool {
    let sent = stream.set_write_timeout(Some(REPLY_WITHIN)).and_then(|()| stream.write_all(&Message::line_of(body)));
    sent.is_ok()
}

#[cfg(test)]
mod tests;
