//! The thread and session of a running handler.

use std::cell::Cell;

use slackwater_sync::Call;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use super::{BLOCKED_RESERVE, Core};
use crate::ring::Workers;
use crate::session::Shared;

/// The thread and the session of a call to a [`FileSystem`](crate::FileSystem).
pub struct Context<'a> {
    thread: Thread<'a>,
    /// Guards held by this call.
    depth: Cell<usize>,
    role: Cell<Role>,
    is_brief: Cell<bool>,
}

/// The part of a thread of the pool in serving a session.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Role {
    /// The thread has joined those that read the session, and has the session's edge (T2 of the pool).
    Reader,
    /// The thread has the session's lease (T5 of the pool), and has served this many requests with it.
    Solo(u32),
    /// The thread has given the edge back, has left those that read the session, and must not read on.
    Former,
}

#[derive(Copy, Clone)]
enum Thread<'a> {
    /// A thread of the pool, and the session that it reads, with the session's token.
    Pool { core: &'a Arc<Core>, session: &'a Arc<Shared>, token: u64 },
    /// A thread of a ring.
    Ring(&'a Arc<Workers>),
}

impl<'a> Context<'a> {
    pub(super) fn in_pool(core: &'a Arc<Core>, session: &'a Arc<Shared>, token: u64, role: Role) -> Self {
        Self::new(Thread::Pool { core, session, token }, role)
    }

    pub(crate) fn in_ring(workers: &'a Arc<Workers>) -> Self {
        Self::new(Thread::Ring(workers), Role::Former)
    }

    fn new(thread: Thread<'a>, role: Role) -> Self {
        Self { thread, depth: Cell::new(0), role: Cell::new(role), is_brief: Cell::new(false) }
    }

    /// Where calls go that may block, if this thread never may.
    #[must_use]
    pub const fn workers(&self) -> Option<&'a Arc<Workers>> {
        match self.thread {
            Thread::Pool { .. } => None,
            Thread::Ring(workers) => Some(workers),
        }
    }

    /// The part of this thread after the handler.
    pub(super) fn role(&self) -> Role {
        self.role.get()
    }

    /// Announces that this call usually blocks for microseconds only, such as a few system calls on a local directory.
    /// While one client uses the session, this thread then remains the only one that reads it.
    pub fn expect_brief(&self) {
        self.is_brief.set(true);
    }

    /// Must be called before a handler waits for anything: makes sure that another thread reads meanwhile, or soon if
    /// the call was [announced as brief](Self::expect_brief) and is not. The handler may block until it drops the
    /// guard.
    ///
    /// `None` if this session has blocked as many threads as it may (T3 of the pool), if no thread can replace this one,
    /// or if this is the thread of a ring. Then the handler queues the request and returns.
    #[must_use]
    pub fn try_block(&self) -> Option<Blocking<'_>> {
        let Thread::Pool { core, session, token } = self.thread else { return None };
        let mut call = None;
        if self.depth.get() == 0 {
            let more = |blocked: usize| core.may_block(blocked).then_some(blocked + 1);
            let others = session.blocked.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
            match self.role.get() {
                Role::Solo(_) if self.is_brief.get() => call = Some(session.solo.lease.begin_call()),
                role @ (Role::Reader | Role::Solo(_) | Role::Former) => {
                    if let Role::Solo(served) = role {
                        core.end_solo(token, session, served);
                        self.role.set(Role::Former);
                    }
                    if !core.begin_block(others < BLOCKED_RESERVE) {
                        session.blocked.fetch_sub(1, Ordering::AcqRel);
                        return None;
                    }
                    if role == Role::Reader {
                        session.solo.lease.leave();
                        core.rearm(token, session.connection.transport.fd());
                        self.role.set(Role::Former);
                    }
                }
            }
            core.blocked.fetch_add(1, Ordering::Relaxed);
        }
        self.depth.set(self.depth.get() + 1);
        Some(Blocking { cx: self, core, session, token, call })
    }
}

impl Context<'_> {
    /// Calls [`PoolOptions::on_memory_freed`](super::PoolOptions::on_memory_freed), which may take a while.
    pub fn memory_freed(&self) {
        let _blocking = self.try_block();
        // The kernel sends forgets to the pool only.
        if let Thread::Pool { core, .. } = self.thread {
            (core.options.on_memory_freed)();
        }
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_in_ring = self.workers().is_some();
        f.debug_struct("Context").field("is_in_ring", &is_in_ring).finish_non_exhaustive()
    }
}

/// Permission to block; see [`Context::try_block`].
#[must_use = "the thread may block until this is dropped"]
pub struct Blocking<'a> {
    cx: &'a Context<'a>,
    core: &'a Arc<Core>,
    session: &'a Arc<Shared>,
    token: u64,
    /// The call that this thread makes with the session's lease.
    call: Option<Call>,
}

impl Drop for Blocking<'_> {
    fn drop(&mut self) {
        let cx = self.cx;
        cx.depth.set(cx.depth.get() - 1);
        if cx.depth.get() != 0 {
            return;
        }
        self.core.blocked.fetch_sub(1, Ordering::Relaxed);
        self.session.blocked.fetch_sub(1, Ordering::AcqRel);
        if let Some(call) = self.call
            && self.session.solo.lease.end_call(call)
        {
            return;
        }
        // Also if the lease was revoked: then the edge was given back with it.
        self.core.end_block();
        cx.role.set(Role::Former);
        if cx.is_brief.get() {
            cx.role.set(self.core.try_solo(self.token, self.session, Role::Former));
        }
    }
}
