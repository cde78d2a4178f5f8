//! A thread of the pool.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::{Arc, Weak, thread_local};

use super::context::{Context, Role};
use super::table::slot_of;
use super::{CLOSING, Core};
use crate::connection::is_closed_within;
use crate::landing::{LandingMemory, LandingPad};
use crate::session::{Ended, Shared};

/// How long a surplus thread waits for a request before it exits.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Requests of one session in a row before the thread serves others.
const BUDGET: usize = 64;

/// Consecutive messages after a large write during which another one is expected.
const LARGE_WINDOW: u8 = 4;

thread_local! {
    static HANDLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in a handler.
pub(crate) fn is_handling() -> bool {
    HANDLING.get()
}

pub(super) struct Reader {
    core: Arc<Core>,
    pad: LandingPad,
    /// Remaining messages during which a large write is expected. The kernel splits a write from memory that is not
    /// page-aligned, so that small ones come in between.
    expects_large: u8,
    /// Sessions that this thread has served, by slot.
    cached: Vec<Option<CachedSession>>,
}

struct CachedSession {
    token: u64,
    session: Weak<Shared>,
}

impl Reader {
    pub(super) const fn new(core: Arc<Core>, pad: LandingPad) -> Self {
        Self { core, pad, expects_large: 0, cached: Vec::new() }
    }

    /// Serves until the pool closes or the thread is surplus. A panic outside a handler does not end the thread.
    pub(super) fn run(mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            tracing::error!("a reader thread panicked outside any handler; it continues");
        }
        self.core.threads.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&mut self) {
        loop {
            match self.next() {
                Some(CLOSING) => {
                    self.core.active.fetch_sub(1, Ordering::AcqRel);
                    return;
                }
                Some(token) => self.drain(token),
                None if self.core.leave_if_surplus() => return,
                None => {}
            }
        }
    }

    /// Waits for a session with requests; `None` after the timeout or a signal.
    fn next(&self) -> Option<u64> {
        let timeout = self.core.has_surplus().then_some(&IDLE);
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit()];
        match epoll::wait(&self.core.epoll, &mut buffer, timeout) {
            Ok((events, _)) => events.first().map(|event| event.data.u64()),
            Err(Errno::INTR) => None,
            Err(errno) => panic!("epoll_wait: {errno}"),
        }
    }

    fn drain(&mut self, token: u64) {
        let Some(session) = self.session(token) else { return };
        // Without a place, the holder of the lease reads, and gives the edge back with the lease.
        if session.enter() && session.solo.lease.join() {
            match self.read(token, &session) {
                Role::Reader => session.solo.lease.leave(),
                Role::Solo(served) => self.core.end_solo(token, &session, served),
                Role::Former => {}
            }
        }
        session.leave();
    }

    /// Reads and handles requests until nothing is left or the budget is used up. Returns what the thread is for the
    /// session then.
    fn read(&mut self, token: u64, session: &Arc<Shared>) -> Role {
        let transport = &session.connection.transport;
        let mut lent = None;
        let mut is_closed = false;
        let mut role = Role::Reader;
        let mut turns = 0;
        loop {
            let how = match self.receive(session, &mut lent) {
                Ok(len) => {
                    role = self.note_client(token, session, role, len);
                    role = self.handle(token, session, role, lent.as_deref_mut(), len);
                    turns += 1;
                    if session.has_ended() || role == Role::Former {
                        return role;
                    }
                    if role == Role::Reader && turns >= BUDGET {
                        self.core.rearm(token, transport.fd());
                        return role;
                    }
                    continue;
                }
                Err(Errno::AGAIN) => return role,
                // A signal, perhaps of the watcher or of the end of the session, or the request was aborted while it was
                // read.
                Err(Errno::INTR | Errno::NOENT) => {
                    if let Role::Solo(served) = role {
                        role = self.leave_solo(token, session, served);
                    }
                    if session.has_ended() || role == Role::Former {
                        return role;
                    }
                    continue;
                }
                Err(Errno::NODEV) => Ended::Unmounted,
                Err(Errno::CONNABORTED) if !is_closed => {
                    wait_closed(transport.fd());
                    is_closed = true;
                    continue;
                }
                Err(Errno::CONNABORTED) => Ended::Aborted,
                Err(errno) => {
                    tracing::error!(%errno, "cannot read the FUSE device");
                    Ended::Failed(errno)
                }
            };
            session.end(how);
            return role;
        }
    }

    /// Takes the lease of a session while one client uses it, and gives it back when another one comes. `len` is that of
    /// the message that was just read.
    fn note_client(&self, token: u64, session: &Arc<Shared>, role: Role, len: usize) -> Role {
        let is_other = session.solo.note(self.pad.client(len));
        match role {
            Role::Solo(served) if is_other => self.leave_solo(token, session, served),
            Role::Solo(served) => Role::Solo(served.saturating_add(1)),
            Role::Reader => self.core.try_solo(token, session, Role::Reader),
            Role::Former => role,
        }
    }

    fn leave_solo(&self, token: u64, session: &Shared, served: u32) -> Role {
        self.core.end_solo(token, session, served);
        if session.solo.lease.join() { Role::Reader } else { Role::Former }
    }

    /// Reads a message: to the landing pad, or with its payload in lent memory if recent payloads were large.
    fn receive(&mut self, session: &Shared, lent: &mut Option<Box<dyn LandingMemory>>) -> Result<usize, Errno> {
        let transport = &session.connection.transport;
        if self.expects_large == 0 {
            *lent = None;
        } else if lent.is_none() {
            *lent = session.lend_memory(self.pad.max_write());
        }
        match lent {
            Some(lent) => self.pad.receive_to(&mut **lent, |buffers| transport.receive(buffers)),
            None => transport.receive(&mut self.pad.buffers()),
        }
    }

    /// Handles a message of `len` bytes. Returns what this thread is for the session afterwards.
    fn handle(
        &mut self,
        token: u64,
        session: &Arc<Shared>,
        role: Role,
        lent: Option<&mut (dyn LandingMemory + 'static)>,
        len: usize,
    ) -> Role {
        let cx = Context::in_pool(&self.core, session, token, role);
        HANDLING.set(true);
        match lent.and_then(|lent| self.pad.landed(lent, len)) {
            Some(message) => session.dispatch_landed(&cx, message),
            None => session.dispatch(&cx, self.pad.message(len)),
        }
        let role = cx.role();
        HANDLING.set(false);
        self.expects_large =
            if self.pad.is_large_write(len) { LARGE_WINDOW } else { self.expects_large.saturating_sub(1) };
        self.pad.advance(len);
        role
    }

    /// The session of a token, without a lock if this thread has served it before.
    fn session(&mut self, token: u64) -> Option<Arc<Shared>> {
        let slot = slot_of(token);
        if let Some(Some(cached)) = self.cached.get(slot)
            && cached.token == token
        {
            return cached.session.upgrade();
        }
        let session = self.core.table.get(token)?;
        if self.cached.len() <= slot {
            self.cached.resize_with(slot + 1, || None);
        }
        self.cached[slot] = Some(CachedSession { token, session: Arc::downgrade(&session) });
        Some(session)
    }
}

/// Waits until the kernel has closed the connection, which takes microseconds. A read in the meantime fails with
/// `ECONNABORTED` even for an unmount; the next read tells the two apart.
fn wait_closed(fd: BorrowedFd<'_>) {
    const LONG_ENOUGH: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    // The result does not matter, since the next read says more.
    let _ = is_closed_within(fd, &LONG_ENOUGH);
}
