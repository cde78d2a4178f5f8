//! The thread and session of a running handler.

use std::cell::Cell;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use super::{BLOCKED_RESERVE, Core};
use crate::ring::Workers;
use crate::session::Shared;

/// The thread and the session of a call to a [`FileSystem`](crate::FileSystem).
pub struct Context<'a> {
    session: &'a Shared,
    thread: Thread<'a>,
    /// Guards held by this call.
    depth: Cell<usize>,
    has_blocked: Cell<bool>,
}

#[derive(Copy, Clone)]
enum Thread<'a> {
    /// One of the pool, with the token of the session whose edge it has.
    Pool { core: &'a Arc<Core>, token: u64 },
    /// One of a ring.
    Ring(&'a Arc<Workers>),
}

impl<'a> Context<'a> {
    pub(super) const fn in_pool(core: &'a Arc<Core>, session: &'a Shared, token: u64) -> Self {
        Self { session, thread: Thread::Pool { core, token }, depth: Cell::new(0), has_blocked: Cell::new(false) }
    }

    pub(crate) const fn in_ring(session: &'a Shared, workers: &'a Arc<Workers>) -> Self {
        Self { session, thread: Thread::Ring(workers), depth: Cell::new(0), has_blocked: Cell::new(false) }
    }

    /// Where calls go that may block, if this thread never may.
    pub(crate) const fn workers(&self) -> Option<&'a Arc<Workers>> {
        match self.thread {
            Thread::Pool { .. } => None,
            Thread::Ring(workers) => Some(workers),
        }
    }

    /// Whether the session's edge was given back (T2 of the pool).
    pub(super) fn has_blocked(&self) -> bool {
        self.has_blocked.get()
    }

    /// Must be called before a handler waits for anything: makes sure that another thread reads meanwhile. The handler
    /// may block until it drops the guard.
    ///
    /// `None` if this session has blocked as many threads as it may (T3 of the pool), if no thread can replace this one,
    /// or if this is the thread of a ring. Then the handler queues the request and returns.
    #[must_use]
    pub fn try_block(&self) -> Option<Blocking<'_>> {
        let Thread::Pool { core, token } = self.thread else { return None };
        if self.depth.get() == 0 {
            let more = |blocked: usize| core.may_block(blocked).then_some(blocked + 1);
            let others = self.session.blocked.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
            if !core.begin_block(others < BLOCKED_RESERVE) {
                self.session.blocked.fetch_sub(1, Ordering::AcqRel);
                return None;
            }
            core.blocked.fetch_add(1, Ordering::Relaxed);
            self.has_blocked.set(true);
            core.rearm(token, self.session.connection.transport.fd());
        }
        self.depth.set(self.depth.get() + 1);
        Some(Blocking { cx: self, core })
    }
}

impl Context<'_> {
    /// Calls [`PoolOptions::on_memory_freed`](super::PoolOptions::on_memory_freed), which may take a while.
    pub(crate) fn memory_freed(&self) {
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
    core: &'a Core,
}

impl Drop for Blocking<'_> {
    fn drop(&mut self) {
        self.cx.depth.set(self.cx.depth.get() - 1);
        if self.cx.depth.get() == 0 {
            self.core.end_block();
            self.core.blocked.fetch_sub(1, Ordering::Relaxed);
            self.cx.session.blocked.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
