//! The thread and session of a running handler.

use std::cell::Cell;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use super::{BLOCKED_RESERVE, Core};
use crate::session::Shared;

/// The thread and the session of a call to a [`FileSystem`](crate::FileSystem).
pub struct Context<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) session: &'a Shared,
    pub(super) token: u64,
    /// Guards held by this call.
    depth: Cell<usize>,
    has_blocked: Cell<bool>,
}

impl<'a> Context<'a> {
    pub(super) const fn new(core: &'a Arc<Core>, session: &'a Shared, token: u64) -> Self {
        Self { core, session, token, depth: Cell::new(0), has_blocked: Cell::new(false) }
    }

    /// Whether the session's edge was given back (T2 of the pool).
    pub(super) fn has_blocked(&self) -> bool {
        self.has_blocked.get()
    }

    /// Must be called before a handler waits for anything: makes sure that another thread reads meanwhile. The handler
    /// may block until it drops the guard.
    ///
    /// `None` if this session has blocked as many threads as it may (T3 of the pool), or if no thread can replace this
    /// one. Then the handler queues the request and returns.
    #[must_use]
    pub fn try_block(&self) -> Option<Blocking<'_>> {
        if self.depth.get() == 0 {
            let more = |blocked: usize| self.core.may_block(blocked).then_some(blocked + 1);
            let others = self.session.blocked.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
            if !self.core.begin_block(others < BLOCKED_RESERVE) {
                self.session.blocked.fetch_sub(1, Ordering::AcqRel);
                return None;
            }
            self.core.blocked.fetch_add(1, Ordering::Relaxed);
            self.has_blocked.set(true);
            self.core.rearm(self.token, self.session.connection.transport.fd());
        }
        self.depth.set(self.depth.get() + 1);
        Some(Blocking { cx: self })
    }
}

impl Context<'_> {
    /// Calls [`PoolOptions::on_memory_freed`](super::PoolOptions::on_memory_freed), which may take a while.
    pub(crate) fn memory_freed(&self) {
        let _blocking = self.try_block();
        (self.core.options.on_memory_freed)();
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("token", &self.token).finish_non_exhaustive()
    }
}

/// Permission to block; see [`Context::try_block`].
#[must_use = "the thread may block until this is dropped"]
pub struct Blocking<'a> {
    cx: &'a Context<'a>,
}

impl Drop for Blocking<'_> {
    fn drop(&mut self) {
        self.cx.depth.set(self.cx.depth.get() - 1);
        if self.cx.depth.get() == 0 {
            self.cx.core.end_block();
            self.cx.core.blocked.fetch_sub(1, Ordering::Relaxed);
            self.cx.session.blocked.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
