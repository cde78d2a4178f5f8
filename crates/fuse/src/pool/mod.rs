//! The threads that read the requests of all sessions.
//!
//! All threads wait on one epoll set with edge-triggered entries. A request wakes one waiting thread, the one that went
//! to sleep last. It reads until nothing is left. While it is busy, the next request wakes the next thread.
//!
//! # Invariants
//! T1. *Active* threads wait for requests of any session, or handle one without blocking. There is at least one, and
//!     there are `readers` of them unless the system cannot start threads, or some serve a session alone (T5). Before a
//!     thread blocks, it starts a replacement if too few would be left. It is refused if none would be left.
//! T2. The edge of a session belongs to a thread that reads until `AGAIN`. A thread that blocks, or has used its
//!     budget, gives the edge back by modifying the entry, which makes epoll check again for requests. It then stops
//!     reading and waits with the others.
//! T3. A session may always block [`BLOCKED_RESERVE`] threads. It may block more only while enough are left, at most a
//!     fraction of those not blocked. So however many sessions hang, the next session that blocks finds threads.
//! T4. Tokens of the epoll set are never reused: the low half is the slot number, the high half counts the slot's uses.
//! T5. While one client uses a session, one thread serves it alone, and no other thread is woken ([`solo`]). This thread
//!     is not active, since it waits for this session only.
//!
//! # Lock order
//! The table's lock is a leaf. A thread that serves a session from its own cache does not take it.

mod context;
mod reader;
mod solo;
mod sys;
mod table;
mod watcher;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use slackwater_sync::Joined;
use slackwater_sync::shim::atomic::{AtomicU64, AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, Weak, thread};

use crate::landing::LandingPad;
use crate::own_mount;
use crate::session::{Ended, Shared};
use context::Role;
use reader::Reader;
use table::Table;
use watcher::Watcher;

pub use context::{Blocking, Context};
pub(crate) use reader::is_handling;
pub(crate) use solo::Solo;

/// Number of threads, and their memory.
#[derive(Copy, Clone, Debug)]
pub struct PoolOptions {
    /// Threads that read while others are blocked; surplus ones exit after some idle seconds. At least 1.
    pub readers: usize,
    /// Limit of all threads, without those that sessions may always block (T3).
    pub threads_max: usize,
    /// Limit of threads that the handlers of one session block, while enough are left for others.
    pub blocked_max: usize,
    /// Largest payload of a WRITE that any session may use.
    pub max_write: u32,
    /// Bytes of payload per thread after which its memory is reused. With 0 every message lands at the same place, so
    /// that small writes stay in the CPU's cache.
    pub landing_ring: usize,
    /// Whether mounts outlive this process. Then memory for requests is faulted in when a thread starts: if the process
    /// is killed while the kernel needs a page of it, the kernel answers the request with EIO. Kernel:
    /// `fuse_dev_do_read`.
    pub outlives: bool,
    /// Called on a thread of the pool when a session has freed much memory in small pieces. The allocator keeps such
    /// memory; this hook may return it to the system. Does nothing by default.
    pub on_memory_freed: fn(),
}

impl Default for PoolOptions {
    fn default() -> Self {
        let cpus = rustix::thread::sched_getaffinity(None).map_or(2, |set| set.count() as usize);
        Self {
            readers: cpus.clamp(2, 8),
            threads_max: 512,
            blocked_max: 64,
            max_write: 1 << 20,
            landing_ring: 0,
            outlives: false,
            on_memory_freed: || (),
        }
    }
}

/// Why a pool cannot be started or extended.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The epoll set cannot be used.
    #[error("cannot use the epoll set: {0}")]
    Epoll(Errno),
    /// Memory for requests cannot be allocated.
    #[error("cannot allocate memory for requests: {0}")]
    Memory(Errno),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The limit of threads is reached.
    #[error("the pool has reached its maximum number of threads")]
    Full,
}

/// Threads that serve sessions. Dropping it detaches the sessions; the threads exit when their handlers return.
pub struct Pool {
    core: Arc<Core>,
}

impl Pool {
    /// Starts the first threads.
    ///
    /// # Errors
    /// The system provides no descriptors, memory or threads.
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        own_mount::prepare();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PoolError::Epoll)?;
        let closing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(PoolError::Epoll)?;
        // Level-triggered, so that it wakes every thread.
        epoll::add(&epoll, &closing, epoll::EventData::new_u64(CLOSING), epoll::EventFlags::IN)
            .map_err(PoolError::Epoll)?;
        let options = PoolOptions { readers: options.readers.max(1), ..options };
        let core = Core {
            options,
            epoll,
            closing,
            table: Table::new(),
            watcher: Watcher::new(),
            active: AtomicUsize::new(0),
            threads: AtomicUsize::new(0),
            blocked: AtomicUsize::new(0),
        };
        let pool = Self { core: Arc::new(core) };
        for _ in 0..options.readers {
            pool.core.start_thread(false)?;
        }
        Ok(pool)
    }

    /// Number of threads at the moment, including blocked ones.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.core.threads.load(Ordering::Relaxed)
    }

    pub(crate) fn max_write(&self) -> u32 {
        self.core.options.max_write
    }

    pub(crate) fn blocked_max(&self) -> usize {
        self.core.options.blocked_max
    }

    /// An unused registration.
    pub(crate) fn new_registration(&self) -> Registration {
        Registration { core: Arc::downgrade(&self.core), token: AtomicU64::new(CLOSING) }
    }

    /// Starts to serve a session.
    pub(crate) fn register(&self, registration: &Registration, session: &Arc<Shared>) -> Result<(), PoolError> {
        let token = self.core.table.insert(session);
        registration.token.store(token, Ordering::Release);
        let fd = session.connection.transport.fd();
        epoll::add(&self.core.epoll, fd, epoll::EventData::new_u64(token), EDGE).map_err(PoolError::Epoll)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for session in self.core.table.all() {
            session.end_from_outside(Ended::Detached);
        }
        self.core.watcher.close();
        // An eventfd accepts any value below its maximum.
        let _ = rustix::io::write(&self.core.closing, &1_u64.to_ne_bytes());
    }
}

/// Threads that the handlers of a session may block regardless of the other sessions (T3).
const BLOCKED_RESERVE: usize = 2;
/// Beyond the reserve a session may block this fraction of the threads that are left. With `n` hung sessions each has
/// `1 / (n + SHARE_DIVISOR)` of all threads, and the same share is left for one more.
const SHARE_DIVISOR: usize = 4;

/// Token of the event that ends all threads.
const CLOSING: u64 = u64::MAX;

/// State shared by the threads.
struct Core {
    options: PoolOptions,
    epoll: OwnedFd,
    closing: OwnedFd,
    table: Table,
    watcher: Watcher,
    /// T1.
    active: AtomicUsize,
    threads: AtomicUsize,
    /// Threads blocked by handlers of any session.
    blocked: AtomicUsize,
}

impl Core {
    /// Whether a session that has blocked `blocked` threads may block one more (T3). Concurrent decisions may exceed
    /// the limit by a few threads.
    fn may_block(&self, blocked: usize) -> bool {
        let left = self.options.threads_max.saturating_sub(self.blocked.load(Ordering::Relaxed));
        let beyond = blocked.saturating_sub(BLOCKED_RESERVE);
        blocked < BLOCKED_RESERVE || blocked < self.options.blocked_max && beyond < left / SHARE_DIVISOR
    }

    /// Starts one more active thread; with `is_reserved`, regardless of `threads_max`.
    fn start_thread(self: &Arc<Self>, is_reserved: bool) -> Result<(), PoolError> {
        if self.threads.fetch_add(1, Ordering::Relaxed) >= self.options.threads_max && !is_reserved {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return Err(PoolError::Full);
        }
        self.active.fetch_add(1, Ordering::AcqRel);
        let started = self.spawn();
        if started.is_err() {
            self.active.fetch_sub(1, Ordering::AcqRel);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    fn spawn(self: &Arc<Self>) -> Result<(), PoolError> {
        let pad = LandingPad::new(self.options.max_write as usize, self.options.landing_ring, self.options.outlives);
        let pad = pad.map_err(PoolError::Memory)?;
        let core = self.clone();
        let work = move || Reader::new(core, pad).run();
        thread::Builder::new().name("sw-fuse".to_owned()).spawn(work).map_err(PoolError::Thread)?;
        Ok(())
    }

    /// Makes the calling thread inactive, if others are left (T1).
    fn begin_block(self: &Arc<Self>, is_reserved: bool) -> bool {
        let others = self.active.fetch_sub(1, Ordering::AcqRel) - 1;
        if others >= self.options.readers {
            return true;
        }
        match self.start_thread(is_reserved) {
            Ok(()) => true,
            Err(error) if others > 0 => {
                tracing::warn!(%error, others, "cannot start a thread to replace a blocked one");
                true
            }
            Err(_) => {
                self.active.fetch_add(1, Ordering::AcqRel);
                false
            }
        }
    }

    fn end_block(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
    }

    fn has_surplus(&self) -> bool {
        self.active.load(Ordering::Relaxed) > self.options.readers
    }

    /// Ends the calling thread's activity for good, if enough others are left.
    fn leave_if_surplus(&self) -> bool {
        let less = |active: usize| (active > self.options.readers).then(|| active - 1);
        self.active.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_ok()
    }

    /// Gives the edge of a session back (T2).
    fn rearm(&self, token: u64, fd: BorrowedFd<'_>) {
        // Fails if the session has just ended, or while it has a lease; then others read what there is.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), EDGE);
    }

    /// Takes the lease of a session for the calling thread, if only one client uses it (T5). The thread is not active
    /// then. Takes and returns the part of the thread in serving the session, `Reader` or `Former` if it has no lease.
    fn try_solo(self: &Arc<Self>, token: u64, session: &Arc<Shared>, role: Role) -> Role {
        let joined = if role == Role::Reader { Joined::Yes } else { Joined::No };
        if !session.is_read_by_pool() || !session.solo.try_take(joined) {
            return role;
        }
        if self.begin_solo(token, session) {
            return Role::Solo(0);
        }
        let _ = session.connection.transport.set_waiting(false);
        session.solo.give_back(0);
        // Before the edge is given back: this thread reads on.
        let role = if role == Role::Reader && session.solo.lease.join() { Role::Reader } else { Role::Former };
        self.deliver_events(token, session);
        role
    }

    /// Lets the calling thread, which has just taken the lease of a session, serve it alone.
    fn begin_solo(self: &Arc<Self>, token: u64, session: &Arc<Shared>) -> bool {
        let transport = &session.connection.transport;
        if sys::accept_wake_up().is_err() || transport.set_waiting(true).is_err() {
            session.solo.never_again();
            return false;
        }
        // U4 of `solo`: if the session was marked as ended before this entry, this thread sees it; if after it, the
        // other thread sees the lease.
        let is_alive = session.enter();
        session.leave();
        if !is_alive || !self.retire() {
            return false;
        }
        if !self.watcher.watch(self, token, session) {
            self.end_block();
            return false;
        }
        let _ = epoll::delete(&self.epoll, transport.fd());
        true
    }

    /// Gives the lease of a session back after `served` requests, and its edge with it.
    fn end_solo(&self, token: u64, session: &Shared, served: u32) {
        let _ = session.connection.transport.set_waiting(false);
        session.solo.give_back(served);
        self.deliver_events(token, session);
        self.end_block();
    }

    /// Puts a session into the epoll set again (U1 of `solo`).
    fn deliver_events(&self, token: u64, session: &Shared) {
        let fd = session.connection.transport.fd();
        let added = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), EDGE);
        if added == Err(Errno::EXIST) {
            self.rearm(token, fd);
        }
        if session.has_ended() {
            let _ = epoll::delete(&self.epoll, fd); // S3 of `session`
        }
    }

    /// Makes the calling thread inactive, if another one is or becomes active (T1).
    fn retire(self: &Arc<Self>) -> bool {
        if self.active.fetch_sub(1, Ordering::AcqRel) > 1 || self.start_thread(false).is_ok() {
            return true;
        }
        self.active.fetch_add(1, Ordering::AcqRel);
        false
    }
}

const EDGE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// A session's place in the pool.
pub(crate) struct Registration {
    core: Weak<Core>,
    token: AtomicU64,
}

impl Registration {
    /// Stops serving the session. Threads that are inside read on until they notice.
    pub(crate) fn unregister(&self, fd: BorrowedFd<'_>) {
        let Some(core) = self.core.upgrade() else { return };
        let _ = epoll::delete(&core.epoll, fd);
        core.table.remove(self.token.load(Ordering::Acquire));
    }
}
