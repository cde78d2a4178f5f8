//! The server side of the protocol of `slackwater_control`: answers to the command and the plugins.
//!
//! # Invariants
//! V1. A peer is root or the user of this process. Any other user may at most query, and only if [`Limits`] allow it;
//!     otherwise the connection is dropped unread.
//! V2. Each connection has its own thread, the one that has accepted it: a change of the thread would take time. Before
//!     it serves, it makes sure that another thread accepts. A request has a time limit. [`Limits`] bound the number of
//!     connections, and users who may only query get a quarter of them. Each of these users has at most as many as are
//!     left for the others. So no peer can delay the answer to another for longer than the time limit, and none can
//!     refuse it to another user.
//! V3. Requests are bounded in length. A request that cannot be parsed is answered, and has no other effect.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};
use slackwater_control::exit::Failure;
use slackwater_control::line;
use slackwater_control::protocol::{
    Message, REQUEST_BYTES_MAX, Reply, Request, VERSION, VERSION_OF_CREDENTIALS, VolumeRef,
};

const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// A peer that does not read its reply within this time loses it.
const REPLY_WITHIN: Duration = Duration::from_secs(2);
/// At the end of the process, a client that does not read its answer within this time does not get it.
pub(crate) const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// The most threads that wait for a connection.
const ACCEPTING_MAX: usize = 2;

/// The users who may connect, and how many at the same time.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connections_max: usize,
    /// Users whom the socket's mode admits may query.
    pub(crate) others_may_query: bool,
}

/// For a mount process, whose socket is in a private directory of its user.
pub(crate) const PRIVATE: Limits = Limits { connections_max: 32, others_may_query: false };

/// Answers requests.
pub(crate) trait Respond: Send + Sync + 'static {
    /// Answers `request` about `volume`. `progress` returns whether the peer still listens.
    ///
    /// # Blocking
    /// Until the request is carried out.
    fn respond(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply;

    /// Whether `volume` exists. A peer that may only query learns this before it is refused a change: its request may
    /// be meant for a mount of its own.
    ///
    /// # Errors
    /// `NotMounted`.
    fn check_exists(&self, _volume: &VolumeRef) -> Result<(), Failure> {
        Ok(())
    }
}

/// Requests whose last reply has not been sent.
#[derive(Default)]
pub(crate) struct Unanswered {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unanswered {
    fn count(&self) -> MutexGuard<'_, u32> {
        // No code panics while it holds the lock.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more request until the returned value is dropped, however the answer ends.
    fn add(&self) -> Pending<'_> {
        *self.count() += 1;
        Pending(self)
    }

    /// Waits at most [`LAST_ANSWERS_WITHIN`] until all requests are answered.
    ///
    /// # Blocking
    /// As described.
    pub(crate) fn wait_for_none(&self) {
        drop(self.changed.wait_timeout_while(self.count(), LAST_ANSWERS_WITHIN, |count| *count > 0));
    }
}

/// A request that is being answered.
struct Pending<'u>(&'u Unanswered);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}

/// Answers connections to `listener` until the process ends.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn start(listener: UnixListener, limits: Limits, respond: Arc<dyn Respond>) -> io::Result<Arc<Unanswered>> {
    let unanswered = Arc::new(Unanswered::default());
    let server = Server {
        listener,
        limits,
        all: Slots::new(limits.connections_max),
        queries: Queries { most: limits.connections_max / 4, users: Arc::default() },
        respond,
        unanswered: Arc::clone(&unanswered),
        accepting: AtomicUsize::new(0),
    };
    Arc::new(server).start_thread()?;
    Ok(unanswered)
}

struct Server {
    listener: UnixListener,
    limits: Limits,
    all: Slots,
    queries: Queries,
    respond: Arc<dyn Respond>,
    unanswered: Arc<Unanswered>,
    /// Threads that accept.
    accepting: AtomicUsize,
}

impl Server {
    /// Starts a thread that accepts.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        self.accepting.fetch_add(1, Ordering::AcqRel);
        let server = Arc::clone(self);
        thread::Builder::new().name("sw-control".into()).spawn(move || server.run()).map(drop).inspect_err(|_| {
            self.accepting.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// Accepts and serves connections, until enough other threads accept.
    fn run(self: Arc<Self>) {
        loop {
            let (stream, access, _slot, _query) = self.accept();
            let is_last = self.accepting.fetch_sub(1, Ordering::AcqRel) == 1;
            if is_last && self.start_thread().is_err() {
                // The peer is dropped: another one must not wait for it.
                self.accepting.fetch_add(1, Ordering::AcqRel);
                continue;
            }
            serve(stream, access, &*self.respond, &self.unanswered);
            let join = |accepting| (accepting < ACCEPTING_MAX).then_some(accepting + 1);
            if self.accepting.fetch_update(Ordering::AcqRel, Ordering::Relaxed, join).is_err() {
                return;
            }
        }
    }

    /// The next connection that is to be served.
    fn accept(&self) -> (UnixStream, Access, Slot, Option<Query>) {
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                // Most likely out of descriptors; the peer waits in the queue.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let Some((access, user)) = access(&stream, self.limits) else { continue };
            let query = match access {
                Access::All => Some(None),
                Access::Query => self.queries.take(user).map(Some),
            };
            match query.zip(self.all.take()) {
                Some((query, slot)) => return (stream, access, slot, query),
                None => {
                    let failure = Failure::busy("too many connections").advise("try again in a few seconds");
                    reply(&stream, Reply::Failed(failure));
                }
            }
        }
    }
}

/// A number of concurrent connections.
struct Slots(Arc<AtomicUsize>);

/// A taken slot, released however its thread ends.
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

/// Connections of users who may only query.
struct Queries {
    most: usize,
    /// By user, without those who have none.
    users: Arc<Mutex<HashMap<Uid, usize>>>,
}

/// A taken connection for queries, released however its thread ends.
struct Query {
    user: Uid,
    users: Arc<Mutex<HashMap<Uid, usize>>>,
}

impl Queries {
    /// `None` if `user` has as many as are left for the others.
    fn take(&self, user: Uid) -> Option<Query> {
        // No code panics while it holds the lock.
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.most - users.values().sum::<usize>();
        let own = users.entry(user).or_default();
        if *own < left {
            *own += 1;
            return Some(Query { user, users: Arc::clone(&self.users) });
        }
        users.retain(|_, count| *count > 0);
        None
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.entry(self.user).and_modify(|count| *count -= 1);
        users.retain(|_, count| *count > 0);
    }
}

/// The requests that a peer may send.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Access {
    All,
    Query,
}

/// V1, and the peer's user.
fn access(stream: &UnixStream, limits: Limits) -> Option<(Access, Uid)> {
    let peer = socket_peercred(stream).ok()?;
    let is_ours = peer.uid.is_root() || peer.uid == geteuid();
    let access = if is_ours { Some(Access::All) } else { limits.others_may_query.then_some(Access::Query) };
    access.map(|access| (access, peer.uid))
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
    match parse(&line) {
        Ok(message) if access == Access::Query && !message.body.is_query() => {
            let refused = || {
                Failure::failed("no permission to change anything")
                    .advise("run the command as root or as the user of the process")
            };
            let failure = respond.check_exists(&message.volume).err().unwrap_or_else(refused);
            reply(&stream, Reply::Failed(failure));
        }
        Ok(mut message) => {
            // Known to the kernel even if the peer is in another pid namespace.
            message.volume.peer =
                socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
            let _pending = unanswered.add();
            let last = respond.respond(&message.volume, message.body, &|progress| reply(&stream, progress));
            reply(&stream, last);
        }
        Err(failure) => drop(reply(&stream, Reply::Failed(failure))),
    }
}

fn parse(line: &[u8]) -> Result<Message<Request>, Failure> {
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    // The version comes first: the rest of a request with another version may have any form.
    let nonsense = |error| Failure::usage(format!("invalid request: {error}"));
    let Version { version } = serde_json::from_slice(line).map_err(nonsense)?;
    if !(VERSION..=VERSION_OF_CREDENTIALS).contains(&version) {
        let what = format!("the request has version {version}, this process uses version {VERSION_OF_CREDENTIALS}");
        return Err(Failure::usage(what).advise("use the version of slackwater that started it"));
    }
    serde_json::from_slice(line).map_err(nonsense)
}

/// Returns false if the peer is gone or does not read.
fn reply(mut stream: &UnixStream, body: Reply) -> bool {
    let sent = stream.set_write_timeout(Some(REPLY_WITHIN)).and_then(|()| stream.write_all(&Message::new(body).line()));
    sent.is_ok()
}

#[cfg(test)]
mod tests;
