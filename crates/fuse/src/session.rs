//! A served FUSE connection: its start, its requests and its end.
//!
//! # Invariants
//! S1. The word `state` holds the number of threads inside the session, and ENDED. The thread that takes the number to
//!     zero under ENDED finishes the session, once: then no call of the file system runs, and none will.
//! S2. Each hook of [`Session::on_ended`] is called once, with no lock of the session held: by the thread that finishes
//!     it, or at once if the session has already ended.
//! S3. The session leaves the pool's epoll set before its descriptor can be closed. A duplicate of the descriptor in
//!     another session keeps the open file alive, and with it the old epoll entry.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::TRANSPORT;
use crate::abi::init;
use crate::connection::{Connection, is_closed};
use crate::file_system::FileSystem;
use crate::landing::{LandedMessage, LandingMemory, LandingPad};
use crate::negotiate::{InitOptions, NegotiateError, Negotiated, negotiate};
use crate::notifier::Notifier;
use crate::parse::{Operation, ParseError, Request, parse, parse_write};
use crate::pool::{Context, Pool, PoolError, Registration, Solo, is_handling};
use crate::reply::Reply;
use crate::ring::{RingError, RingSlot, Rings};
use crate::transport::{DevFuse, Transport};

/// How long INIT may take after a mount; the kernel sends it from within mount(2).
const INIT_WAIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const ENDED: u64 = 1 << 63;

/// A hook called at the end of the session.
type Hook = Box<dyn FnOnce(Ended) + Send>;

/// How a session ended.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// The last reference to the mount is gone, or the connection was aborted by `umount -f`.
    Unmounted,
    /// The connection was aborted through its control file.
    Aborted,
    /// [`Session::detach`] was called: the connection lives on.
    Detached,
    /// The device cannot be read.
    Failed(Errno),
}

/// Why a session does not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// INIT did not arrive in time.
    #[error("the kernel did not send INIT within 10 s")]
    NoInit,
    /// The first request was not INIT: the connection is already in use.
    #[error("the connection is already in use: its first request has opcode {0} instead of INIT")]
    InUse(u32),
    /// The first request is malformed.
    #[error("invalid first request: {0}")]
    Parse(#[from] ParseError),
    /// Kernel and session cannot agree on the protocol.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// `max_write` is larger than the pool supports.
    #[error("max_write is {wanted}, but the pool reads at most {most}")]
    MaxWrite {
        /// Requested for the session.
        wanted: u32,
        /// Limit of the pool.
        most: u32,
    },
    /// The FUSE device cannot be used.
    #[error("error of the FUSE device: {0}")]
    Device(#[from] Errno),
    /// The pool cannot serve the session.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The adopted connection uses io_uring, and this process cannot.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A file system being served. Dropping it changes nothing: it is served until it is unmounted or
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
    /// The kernel sends no INIT, or is too old. The caller must unmount then, since the mount is there but dead.
    ///
    /// # Blocking
    /// Until INIT, at most 10 s.
    pub fn start(
        pool: &Pool,
        transport: impl Transport,
        options: &InitOptions,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        check_max_write(pool, options.max_write)?;
        let connection = Connection::new(Box::new(transport));
        let (negotiated, rings) = handshake(&connection, options, pool)?;
        Self::serve(pool, connection, negotiated, rings, fs)
    }

    /// Serves a connection that another session has mounted and negotiated, perhaps in another process that has died.
    /// Requests left unanswered are sent again after [`Notifier::resend`], except those that had come over io_uring.
    ///
    /// # Errors
    /// The pool cannot serve it.
    pub fn adopt(
        pool: &Pool,
        transport: impl Transport,
        negotiated: Negotiated,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        check_max_write(pool, negotiated.max_write)?;
        let rings = negotiated
            .has(init::OVER_IO_URING)
            .then(|| Rings::prepare(transport.fd(), negotiated.max_write, pool.blocked_max()))
            .transpose()?;
        Self::serve(pool, Connection::new(Box::new(transport)), negotiated, rings.ok_or(RingError::NotOffered), fs)
    }

    /// Adopts a connection as [`adopt`](Self::adopt) does, and asks the kernel for the requests left unanswered. It
    /// asks before this session reads anything, since a request already read would come a second time too.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub fn take_over(
        pool: &Pool,
        transport: impl Transport,
        negotiated: Negotiated,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        let device = rustix::io::fcntl_dupfd_cloexec(transport.fd(), 3)?;
        Notifier::new(Arc::new(Connection::new(Box::new(DevFuse::new(device)?)))).resend()?;
        Self::adopt(pool, transport, negotiated, fs)
    }

    fn serve(
        pool: &Pool,
        connection: Connection,
        negotiated: Negotiated,
        rings: Result<Rings, RingError>,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Self, SessionError> {
        let connection = Arc::new(connection);
        let notifier = Notifier::new(connection.clone());
        fs.init(&negotiated, &notifier);
        let shared = Shared {
            connection,
            negotiated,
            rings,
            fs,
            state: AtomicU64::new(0),
            is_finished: AtomicBool::new(false),
            blocked: AtomicUsize::new(0),
            registration: pool.new_registration(),
            solo: Solo::new(),
            how: Mutex::new(TRANSPORT, None),
            ended: Completion::new(),
            hooks: Mutex::new(TRANSPORT, Some(Vec::new())),
        };
        let shared = Arc::new(shared);
        if let Err(error) = pool.register(&shared.registration, &shared) {
            shared.end_from_outside(Ended::Detached);
            return Err(error.into());
        }
        if let Ok(rings) = &shared.rings {
            rings.start(&shared);
        }
        Ok(Self { shared, notifier })
    }

    /// The parameters agreed at the start.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.shared.negotiated
    }

    /// The number of CPUs whose requests come over io_uring: all or none.
    ///
    /// # Errors
    /// Why requests come over the device.
    pub fn rings(&self) -> Result<usize, RingError> {
        self.shared.rings.as_ref().map_err(|error| *error)?.queues()
    }

    /// Whether one thread serves the session alone at this moment, since only one client uses it.
    #[must_use]
    pub fn is_served_alone(&self) -> bool {
        self.shared.solo.lease.is_held()
    }

    /// Sends notifications to the kernel.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// A duplicate of the connection's descriptor. It keeps the mount alive beyond this session.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn try_clone_fd(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.shared.connection.transport.fd(), 3)
    }

    /// Waits for the end of the session.
    ///
    /// # Blocking
    /// Until the file system is unmounted and its handlers have returned; so not in a handler.
    #[must_use]
    pub fn wait_ended(&self) -> Ended {
        debug_assert!(!is_handling(), "a handler cannot wait for its own end");
        self.shared.ended.wait();
        self.shared.how()
    }

    /// How the connection ended, as soon as the kernel has reported it; handlers may still run.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        *self.shared.how.lock()
    }

    /// Calls `hook` once the session has ended and no handler runs any more; at once if that has already happened. So a
    /// process that serves thousands of sessions needs no waiting thread for each.
    ///
    /// The last thread in the session calls it: the one that unmounts, or one that reads the requests of all sessions. The
    /// hook must not block, but hand the event on. A panic in it is logged and contained.
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

    /// Waits for the end of the session, at most for `time`.
    ///
    /// # Blocking
    /// As [`wait_ended`](Self::wait_ended), and no longer than `time`.
    #[must_use]
    pub fn wait_ended_timeout(&self, time: Duration) -> Option<Ended> {
        (!self.shared.ended.wait_timeout(time)).then(|| self.shared.how())
    }

    /// Ends the session if the kernel has closed its connection, without waiting for a thread of the pool to notice.
    pub fn end_if_closed(&self) {
        if is_closed(self.shared.connection.transport.fd()) {
            self.shared.end_from_outside(Ended::Unmounted);
        }
    }

    /// Stops serving without unmounting. If a duplicate of the connection's descriptor exists, requests wait for the
    /// session that adopts it. Running handlers may still answer.
    ///
    /// # Blocking
    /// Until the handlers have returned; so not in a handler.
    pub fn detach(&self) -> Ended {
        self.shared.end_from_outside(Ended::Detached);
        self.wait_ended()
    }

    /// Stops serving as [`detach`](Self::detach) does, but does not wait for the handlers. The kernel aborts the
    /// connection when its last descriptor is closed, which needs no permission.
    pub fn cut(&self) {
        self.shared.end_from_outside(Ended::Detached);
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

/// Reads INIT and answers it, with rings if they are wanted and possible.
fn handshake(
    connection: &Connection,
    options: &InitOptions,
    pool: &Pool,
) -> Result<(Negotiated, Result<Rings, RingError>), SessionError> {
    // The kernel requires a buffer for the largest request even for INIT.
    let mut pad = LandingPad::new(options.max_write as usize, 0, false)?;
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
    let Operation::Init(offered) = request.operation else { return Err(SessionError::InUse(request.header.opcode)) };
    let unique = request.header.unique;
    let rings = match (options.wanted & init::OVER_IO_URING, offered.flags & init::OVER_IO_URING) {
        (0, _) => Err(RingError::Unwanted),
        (_, 0) => Err(RingError::NotOffered),
        _ => Rings::prepare(transport.fd(), options.max_write, pool.blocked_max()),
    };
    let wanted = if rings.is_ok() { options.wanted } else { options.wanted & !init::OVER_IO_URING };
    match negotiate(&offered, &InitOptions { wanted, ..*options }) {
        Ok((negotiated, reply)) => {
            connection.send(unique, 0, &[std::io::IoSlice::new(&reply.to_bytes())])?;
            Ok((negotiated, rings))
        }
        Err(error) => {
            let _ = connection.send(unique, -Errno::PROTO.raw_os_error(), &[]);
            Err(error.into())
        }
    }
}

/// The session as seen by the pool's threads.
pub(crate) struct Shared {
    pub(crate) connection: Arc<Connection>,
    negotiated: Negotiated,
    rings: Result<Rings, RingError>,
    fs: Arc<dyn FileSystem>,
    /// S1.
    state: AtomicU64,
    is_finished: AtomicBool,
    /// Threads blocked by handlers of this session.
    pub(crate) blocked: AtomicUsize,
    registration: Registration,
    /// The lease of the session, used by the threads of the pool.
    pub(crate) solo: Solo,
    how: Mutex<Option<Ended>>,
    ended: Completion,
    /// The hooks of S2; `None` after they are called.
    hooks: Mutex<Option<Vec<Hook>>>,
}

impl Shared {
    /// A thread enters; returns false if the session has ended. [`leave`](Self::leave) must follow in both cases.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.state.fetch_add(1, Ordering::AcqRel) & ENDED == 0
    }

    /// A thread leaves; the last one finishes the session.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.state.fetch_sub(1, Ordering::AcqRel) == ENDED | 1 && !self.is_finished.swap(true, Ordering::AcqRel) {
            let _ = catch_unwind(AssertUnwindSafe(|| self.fs.destroy()));
            self.ended.complete_all();
            let hooks = self.hooks.lock().take();
            hooks.into_iter().flatten().for_each(|hook| self.call_hook(hook));
        }
    }

    /// Calls a hook (S2).
    fn call_hook(&self, hook: Hook) {
        let how = self.how();
        if catch_unwind(AssertUnwindSafe(|| hook(how))).is_err() {
            tracing::error!("the callback for the end of a session panicked");
        }
    }

    /// Whether its requests come over the device rather than over io_uring.
    pub(crate) fn is_read_by_pool(&self) -> bool {
        self.rings.is_err()
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Ends the session. The caller has [entered](Self::enter) it.
    pub(crate) fn end(&self, how: Ended) {
        if self.state.fetch_or(ENDED, Ordering::AcqRel) & ENDED == 0 {
            *self.how.lock() = Some(how);
            self.registration.unregister(self.connection.transport.fd());
            self.solo.wake(); // after ENDED is set, which the woken thread finds
            if let Ok(rings) = &self.rings {
                rings.end();
            }
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
        self.contained(|| self.handle(cx, parse(message), None));
    }

    /// Handles the request in an entry of the ring.
    #[inline]
    pub(crate) fn dispatch_entry(&self, cx: &Context<'_>, request: Result<Request<'_>, ParseError>, slot: RingSlot) {
        self.contained(|| self.handle(cx, request, Some(slot)));
    }

    /// Runs a handler. If it panics, its reply is dropped and thereby answered; the panic hook has reported it.
    #[inline]
    fn contained(&self, handle: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(handle)).is_err() {
            tracing::error!("a handler panicked; its request was answered with EIO");
        }
    }

    /// Handles a WRITE whose payload is in lent memory.
    pub(crate) fn dispatch_landed(&self, cx: &Context<'_>, message: LandedMessage<'_>) {
        let LandedMessage { head, landed } = message;
        let handle = || match parse_write(head, landed.len()) {
            Ok((header, args)) => {
                let landed = landed.cut(args.size as usize);
                self.fs.write_landed(cx, &header, &args, landed, self.reply(header.unique, None));
            }
            Err(error) => self.refuse(&error, None),
        };
        self.contained(handle);
    }

    /// See [`FileSystem::lend_memory`].
    pub(crate) fn lend_memory(&self, len_bytes: usize) -> Option<Box<dyn LandingMemory>> {
        self.fs.lend_memory(len_bytes)
    }

    fn refuse(&self, error: &ParseError, slot: Option<RingSlot>) {
        tracing::error!(%error, "a malformed request");
        if error.unique() != 0 {
            self.reply(error.unique(), slot).error(Errno::IO);
        }
    }

    #[inline]
    #[allow(clippy::wildcard_enum_match_arm, reason = "all other operations are the file system's")]
    fn handle(&self, cx: &Context<'_>, request: Result<Request<'_>, ParseError>, slot: Option<RingSlot>) {
        let request = match request {
            Ok(request) => request,
            Err(error) => return self.refuse(&error, slot),
        };
        let reply = || self.reply(request.header.unique, slot);
        match request.operation {
            Operation::Forget(forgets) => self.fs.forget(cx, forgets),
            Operation::Interrupt { unique } => self.connection.held.interrupt(unique),
            Operation::Unknown(opcode) => {
                // A kernel newer than this crate asks once and then does without.
                tracing::debug!(opcode, "an unknown request");
                let _ = reply().error(Errno::NOSYS);
            }
            Operation::Init(_) => drop(reply().error(Errno::IO)),
            Operation::Destroy => drop(reply().empty()),
            op => self.fs.handle(cx, &request.header, op, request.payload, reply()),
        }
    }

    #[inline]
    fn reply(&self, unique: u64, slot: Option<RingSlot>) -> Reply {
        let connection = self.connection.clone();
        match slot {
            None => Reply::new(connection, unique),
            Some(slot) => Reply::in_ring(connection, unique, slot),
        }
    }
}
