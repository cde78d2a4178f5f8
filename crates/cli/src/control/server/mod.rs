//! Answering the command.
//!
//! # Invariants
//! V1. A peer is root or the user who runs this process; any other may look at most, and only where [`Limits`] say so, else
//!     it is dropped unread.
//! V2. Each connection has a thread of its own, and a time within which its request must be here. There are at most as
//!     many at once as [`Limits`] say, and those who may only look have a quarter of them. So no peer keeps another from
//!     being answered for longer than that time.
//! V3. What a peer sends is bounded in length, and what cannot be understood is answered, never acted on.

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::control::line;
use crate::control::protocol::{Message, REQUEST_BYTES_MAX, Reply, Request, VERSION, VolumeRef};
use crate::exit::Failure;

const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// A peer that does not take its reply within this time has lost it.
const REPLY_WITHIN: Duration = Duration::from_secs(2);
/// A client that does not take its answer within this time, at the end of the process, goes without.
pub(crate) const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// Who may come in, and how many at once.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    /// Whoever the socket's mode lets in may look.
    pub(crate) anybody_may_look: bool,
}

/// Of a mount process, whose socket is in a directory of its user's own.
pub(crate) const PRIVATE: Limits = Limits { connections_max: 32, anybody_may_look: false };

/// Who knows the answers.
pub(crate) trait Respond: Send + Sync + 'static {
    /// Answers `request` about `volume`; what `progress` returns says whether the peer still listens.
    ///
    /// # Blocking
    /// As long as it takes.
    fn respond(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply;
}

/// Requests whose last reply has not been sent.
#[derive(Default)]
pub(crate) struct Unanswered {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unanswered {
    fn count(&self) -> MutexGuard<'_, u32> {
        // Nobody panics who has it.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, until what is returned is dropped: however the answer ends.
    fn add(&self) -> Asked<'_> {
        *self.count() += 1;
        Asked(self)
    }

    /// Waits until those who have asked have heard, for [`LAST_ANSWERS_WITHIN`] at most.
    ///
    /// # Blocking
    /// As it says.
    pub(crate) fn wait_for_none(&self) {
        drop(self.changed.wait_timeout_while(self.count(), LAST_ANSWERS_WITHIN, |count| *count > 0));
    }
}

/// A request that is being answered.
struct Asked<'u>(&'u Unanswered);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}

/// Answers who connects to `listener` from now until the process ends.
///
/// # Errors
/// There is no thread.
pub(crate) fn start(listener: UnixListener, limits: Limits, respond: Arc<dyn Respond>) -> io::Result<Arc<Unanswered>> {
    let unanswered = Arc::new(Unanswered::default());
    let counted = Arc::clone(&unanswered);
    thread::Builder::new().name("sw-control".into()).spawn(move || accept(&listener, limits, &respond, &counted))?;
    Ok(unanswered)
}

fn accept(listener: &UnixListener, limits: Limits, respond: &Arc<dyn Respond>, unanswered: &Arc<Unanswered>) {
    let (all, looking) = (Slots::new(limits.connections_max), Slots::new(limits.connections_max / 4));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely; the peer waits in the queue.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        let slots = match access(&stream, limits) {
            None => continue,
            Some(Access::All) => all.take().map(|slot| (Access::All, vec![slot])),
            Some(Access::Look) => looking.take().zip(all.take()).map(|(one, other)| (Access::Look, vec![one, other])),
        };
        let Some((access, slots)) = slots else {
            let failure = Failure::busy("too many connections").advise("try again in a few seconds");
            reply(&stream, Reply::Failed(failure));
            continue;
        };
        let (respond, unanswered) = (Arc::clone(respond), Arc::clone(unanswered));
        // Without a thread the peer is dropped, and its slots with the closure.
        let _ = thread::Builder::new().name("sw-control-one".into()).spawn(move || {
            let _places = slots;
            serve(stream, access, &*respond, &unanswered);
        });
    }
}

/// So many at once.
struct Slots(Arc<AtomicUsize>);

/// One of them, given back however its thread ends.
struct Slot(Arc<AtomicUsize>);

impl Slots {
    fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    fn take(&self) -> Option<Slot> {
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.is_ok().then(|| Slot(Arc::clone(&self.0)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// What a peer may ask.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Access {
    All,
    Look,
}

/// V1.
fn access(stream: &UnixStream, limits: Limits) -> Option<Access> {
    let peer = socket_peercred(stream).ok()?;
    let is_ours = peer.uid.is_root() || peer.uid == geteuid();
    if is_ours { Some(Access::All) } else { limits.anybody_may_look.then_some(Access::Look) }
}

fn serve(mut stream: UnixStream, access: Access, respond: &dyn Respond, unanswered: &Unanswered) {
    let line = match line::read(&mut stream, &mut Vec::new(), REQUEST_BYTES_MAX, Some(REQUEST_WITHIN)) {
        Ok(Some(line)) => line,
        Ok(None) => return,
        Err(error) => {
            let why = if error.kind() == io::ErrorKind::TimedOut {
                "no complete request arrived within 5 s".to_owned()
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
        Ok(message) if access == Access::Look && !message.body.only_looks() => {
            let failure = Failure::failed("no permission to change anything")
                .advise("run the command as root or as the user of the process");
            reply(&stream, Reply::Failed(failure));
        }
        Ok(message) => {
            let _asked = unanswered.add();
            let last = respond.respond(&message.volume, message.body, &|progress| reply(&stream, progress));
            reply(&stream, last);
        }
        Err(failure) => drop(reply(&stream, Reply::Failed(failure))),
    }
}

fn understood(line: &[u8]) -> Result<Message<Request>, Failure> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    // The version first: of another one not even the form of a request is known.
    let nonsense = |error| Failure::usage(format!("invalid request: {error}"));
    let Version { version } = serde_json::from_slice(line).map_err(nonsense)?;
    if version != VERSION {
        let what = format!("the request has version {version}, this process uses version {VERSION}");
        return Err(Failure::usage(what).advise("use the version of slackwater that started it"));
    }
    serde_json::from_slice(line).map_err(nonsense)
}

/// False when the peer is gone or does not read.
fn reply(mut stream: &UnixStream, body: Reply) -> bool {
    let sent = stream.set_write_timeout(Some(REPLY_WITHIN)).and_then(|()| stream.write_all(&Message::new(body).line()));
    sent.is_ok()
}

#[cfg(test)]
mod tests;
