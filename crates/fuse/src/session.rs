//! One mounted file system: a connection, what serves it, and its life.
//!
//! # Invariants
//! S1. The word `state` holds the number of threads inside the session, and ENDED. Whoever takes the number to zero under
//!     ENDED finishes the session, once: no call of the file system runs then, and none comes.
//! S2. What was left by [`Session::on_ended`] is called once, with no lock held: by who finishes the session, or where it comes
//!     later by who leaves it.
//! S3. The session leaves the pool's epoll set before its descriptor can be closed: a duplicate in another session keeps
//!     the file, and with it the old entry, alive.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slackwater::LandingFrames;
use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::TRANSPORT;
use crate::connection::Connection;
use crate::file_system::FileSystem;
use crate::landing::{LandedMessage, LandingPad};
use crate::negotiate::{InitOptions, NegotiateError, Negotiated, negotiate};
use crate::notifier::Notifier;
use crate::parse::{Operation, ParseError, parse, parse_write};
use crate::pool::{Context, Pool, PoolError, Registration, is_handling};
use crate::reply::Reply;
use crate::transport::Transport;

/// How long a fresh mount may take to say INIT; the kernel sends it from within mount(2).
const INIT_WAIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const ENDED: u64 = 1 << 63;

/// Who is told of the end.
type Hook = Box<dyn FnOnce(Ended) + Send>;

/// How a session ended.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// Unmounted: the last reference is gone, or it was cut off by `umount -f`.
    Unmounted,
    /// The connection was cut through its control file.
    Aborted,
    /// [`Session::detach`]: the connection lives on.
    Detached,
    /// The device cannot be read.
    Failed(Errno),
}

/// Why a session does not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No INIT in time.
    #[error("the kernel did not start the session within 10 s")]
    NoInit,
    /// The first request was not INIT: the connection is in use.
    #[error("the connection is in use: its first request is not INIT but number {0}")]
    InUse(u32),
    /// The first request was none.
    #[error("invalid first request: {0}")]
    Parse(#[from] ParseError),
    /// Kernel and session do not come together.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// More than the pool's threads can take.
    #[error("max_write is {wanted}, but the pool reads at most {most}")]
    MaxWrite {
        /// Of the session.
        wanted: u32,
        /// Of the pool.
        most: u32,
    },
    /// The device.
    #[error("error of the FUSE device: {0}")]
    Device(#[from] Errno),
    /// The pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A file system that is being served. Dropping it changes nothing: it is served until it is unmounted, or
/// [detached](Self::detach). Cheap to clone.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    notifier: Notifier,
}

impl Session {
    /// Serves a connection that was just mounted. Returns after INIT and [`FileSystem::init`].
    ///
    /// # Errors
    /// When the kernel says no INIT, or is too old. The caller unmounts then: the mount is there, and dead.
    ///
    /// # Blocking
    /// Until INIT, 10 s at most.
    pub fn start(
        pool: &Pool,
        transport: impl Transport,
        options: &InitOptions,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        check_max_write(pool, options.max_write)?;
        let connection = Connection::new(Box::new(transport));
        let negotiated = handshake(&connection, options)?;
        Self::serve(pool, connection, negotiated, fs)
    }

    /// Serves a connection that was mounted and negotiated by another session, which may be of another process and dead.
    /// Requests that it left unanswered come again on [`Notifier::resend`].
    ///
    /// # Errors
    /// When the pool cannot take it.
    pub fn adopt(
        pool: &Pool,
        transport: impl Transport,
        negotiated: Negotiated,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        check_max_write(pool, negotiated.max_write)?;
        Self::serve(pool, Connection::new(Box::new(transport)), negotiated, fs)
    }

    fn serve(
        pool: &Pool,
        connection: Connection,
        negotiated: Negotiated,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        let connection = Arc::new(connection);
        let notifier = Notifier::new(connection.clone());
        fs.init(&negotiated, &notifier);
        let shared = Shared {
            connection,
            negotiated,
            fs,
            state: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
            blocked: AtomicUsize::new(0),
            registration: pool.new_registration(),
            how: Mutex::new(TRANSPORT, None),
            ended: Completion::new(),
            hooks: Mutex::new(TRANSPORT, Some(Vec::new())),
        };
        let shared = Arc::new(shared);
        if let Err(error) = pool.register(&shared.registration, &shared) {
            shared.end_from_outside(Ended::Detached);
            return Err(error.into());
        }
        Ok(Self { shared, notifier })
    }

    /// What was agreed at the start.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.shared.negotiated
    }

    /// To tell the kernel something.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Another descriptor of the connection: whoever keeps it keeps the mount alive beyond this process's session.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone_fd(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.shared.connection.transport.fd(), 3)
    }

    /// Waits for the end.
    ///
    /// # Blocking
    /// Until the file system is unmounted and its handlers have returned; so not in a handler.
    #[must_use]
    pub fn wait_ended(&self) -> Ended {
        debug_assert!(!is_handling(), "a handler cannot wait for its own end");
        self.shared.ended.wait();
        self.shared.how()
    }

    /// How the connection ended, as soon as the kernel has said so: handlers may still run.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        *self.shared.how.lock()
    }

    /// Calls `hook` once, when the session has ended and no handler runs any more; here and now, if that is so already. So who
    /// serves thousands of them needs no thread for each that waits.
    ///
    /// It is called by whichever thread is the last in the session, as a rule one that reads the requests of all others, and
    /// without any lock. It must not block: it hands on the news. A panic in it is reported and goes no further.
    pub fn on_ended(&self, hook: impl FnOnce(Ended) + Send + 'static) {
        let hook: Hook = Box::new(hook);
        let late = {
            let mut hooks = self.shared.hooks.lock();
            match &mut *hooks {
                Some(hooks) => {
                    hooks.push(hook);
                    None
                }
                None => Some(hook),
            }
        };
        if let Some(hook) = late {
            self.shared.call_hook(hook);
        }
    }

    /// Waits for the end, for some time.
    ///
    /// # Blocking
    /// As [`wait_ended`](Self::wait_ended), and no longer than `time`.
    #[must_use]
    pub fn wait_ended_timeout(&self, time: Duration) -> Option<Ended> {
        (!self.shared.ended.wait_timeout(time)).then(|| self.shared.how())
    }

    /// Stops serving without unmounting; requests wait for whoever adopts the connection, if a duplicate of its
    /// descriptor is left. Handlers that run may still answer.
    ///
    /// # Blocking
    /// Until the handlers have returned; so not in a handler.
    pub fn detach(&self) -> Ended {
        self.shared.end_from_outside(Ended::Detached);
        self.wait_ended()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("negotiated", self.negotiated()).finish_non_exhaustive()
    }
}

fn check_max_write(pool: &Pool, wanted: u32) -> Result<(), SessionError> {
    let most = pool.max_write();
    if wanted > most { Err(SessionError::MaxWrite { wanted, most }) } else { Ok(()) }
}

/// Reads INIT and answers it.
fn handshake(connection: &Connection, options: &InitOptions) -> Result<Negotiated, SessionError> {
    // The kernel insists on a buffer for the largest request even for this one.
    let mut pad = LandingPad::new(options.max_write as usize, 0)?;
    let transport = &connection.transport;
    let len = loop {
        match transport.receive(&mut pad.buffers()) {
            Ok(len) => break len,
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) => {
                let fd = transport.fd();
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&INIT_WAIT)) {
                    Ok(0) => return Err(SessionError::NoInit),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    };
    let request = parse(pad.message(len))?;
    let Operation::Init(init) = request.operation else { return Err(SessionError::InUse(request.header.opcode)) };
    let unique = request.header.unique;
    match negotiate(&init, options) {
        Ok((negotiated, reply)) => {
            connection.send(unique, 0, &[std::io::IoSlice::new(&reply.to_bytes())])?;
            Ok(negotiated)
        }
        Err(error) => {
            let _ = connection.send(unique, -Errno::PROTO.raw_os_error(), &[]);
            Err(error.into())
        }
    }
}

/// The session as the pool's threads see it.
pub(crate) struct Shared {
    pub(crate) connection: Arc<Connection>,
    negotiated: Negotiated,
    fs: Arc<dyn FileSystem>,
    /// S1.
    state: AtomicU64,
    is_finished: AtomicBool,
    /// Threads that a handler of this session keeps blocked.
    pub(crate) blocked: AtomicUsize,
    registration: Registration,
    how: Mutex<Option<Ended>>,
    ended: Completion,
    /// S2. `None` once they are called.
    hooks: Mutex<Option<Vec<Hook>>>,
}

impl Shared {
    /// A thread comes in; false when the session has ended. [`leave`](Self::leave) in both cases.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.state.fetch_add(1, Ordering::AcqRel) & ENDED == 0
    }

    /// A thread goes, perhaps the last one.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, Ordering::AcqRel) == ENDED | 1 && !self.is_finished.swap(true, Ordering::AcqRel) {
            let _ = catch_unwind(AssertUnwindSafe(|| self.fs.destroy()));
            self.ended.complete_all();
            let hooks = self.hooks.lock().take();
            hooks.into_iter().flatten().for_each(|hook| self.call_hook(hook));
        }
    }

    /// S2.
    fn call_hook(&self, hook: Hook) {
        let how = self.how();
        if catch_unwind(AssertUnwindSafe(|| hook(how))).is_err() {
            tracing::error!("the callback for the end of a session panicked");
        }
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Ends the session. The caller is [inside](Self::enter).
    pub(crate) fn end(&self, how: Ended) {
        if self.state.fetch_or(ENDED, Ordering::AcqRel) & ENDED == 0 {
            *self.how.lock() = Some(how);
            self.registration.unregister(self.connection.transport.fd());
        }
    }

    pub(crate) fn end_from_outside(&self, how: Ended) {
        self.enter();
        self.end(how);
        self.leave();
    }

    fn how(&self) -> Ended {
        self.how.lock().unwrap_or(Ended::Detached)
    }

    /// Handles one message.
    #[inline]
    pub(crate) fn dispatch(&self, cx: &Context<'_>, message: &[u8]) {
        // The reply is dropped, and so answered, where a handler panics; the hook has reported it.
        if catch_unwind(AssertUnwindSafe(|| self.handle(cx, message))).is_err() {
            tracing::error!("a handler panicked; its request was answered with EIO");
        }
    }

    /// Handles a WRITE whose payload has landed in frames.
    pub(crate) fn dispatch_landed(&self, cx: &Context<'_>, message: LandedMessage<'_>) {
        let LandedMessage { head, landed } = message;
        let handle = || match parse_write(head, landed.len()) {
            Ok((header, args)) => {
                let landed = landed.cut(args.size as usize);
                self.fs.write_landed(cx, &header, &args, landed, self.reply(header.unique));
            }
            Err(error) => self.refuse(&error),
        };
        if catch_unwind(AssertUnwindSafe(handle)).is_err() {
            tracing::error!("a handler panicked; its request was answered with EIO");
        }
    }

    /// See [`FileSystem::lend_frames`].
    pub(crate) fn lend_frames(&self, len_bytes: usize) -> Option<LandingFrames> {
        self.fs.lend_frames(len_bytes)
    }

    fn refuse(&self, error: &ParseError) {
        tracing::error!(%error, "a malformed request");
        if error.unique() != 0 {
            self.reply(error.unique()).error(Errno::IO);
        }
    }

    #[inline]
    #[allow(clippy::wildcard_enum_match_arm, reason = "all other operations are the file system's")]
    fn handle(&self, cx: &Context<'_>, message: &[u8]) {
        let request = match parse(message) {
            Ok(request) => request,
            Err(error) => return self.refuse(&error),
        };
        let unique = request.header.unique;
        match request.operation {
            Operation::Forget(forgets) => self.fs.forget(cx, forgets),
            Operation::Interrupt { unique } => self.connection.held.interrupt(unique),
            Operation::Unknown(opcode) => {
                // A kernel newer than this crate asks once, and then does without.
                tracing::debug!(opcode, "an unknown request");
                let _ = self.reply(unique).error(Errno::NOSYS);
            }
            Operation::Init(_) => drop(self.reply(unique).error(Errno::IO)),
            Operation::Destroy => drop(self.reply(unique).empty()),
            op => self.fs.handle(cx, &request.header, op, request.payload, self.reply(unique)),
        }
    }

    #[inline]
    fn reply(&self, unique: u64) -> Reply {
        Reply::new(self.connection.clone(), unique)
    }
}
