//! Who has a file open, and which of them its node counts against while nothing else leads to it.
//!
//! # Invariants
//! O1. A file that is open has a hold if it has no name by our doing, or if its backend does not reopen nodes, unless no tenant could
//!     take it when its last name went. Without one its node is let go when nodes are short.
//! O2. The hold is that of a tenant that has the file open, as far as one of them may have more; else of the one that removed
//!     the name.

use slackwater_sync::shim::Arc;

use super::{Inode, InodeState};
use crate::backend::NodeKind;
use crate::cgroup::{Hold, Memcg};
use crate::error::{BackendError, ErrorKind};

/// Part of `InodeState`.
#[derive(Default)]
pub(crate) struct Openers {
    /// The open descriptions of each tenant.
    tenants: Vec<(Arc<Memcg>, u32)>,
    hold: Option<Hold>,
    /// It was made without a name, for somebody who has not opened it yet.
    is_expected: bool,
}

impl Openers {
    /// Whether the node of a file without a name has to stay open.
    pub(super) fn keep_node(&self) -> bool {
        self.hold.is_some() || self.is_expected
    }

    fn has_hold(&self) -> bool {
        self.hold.is_some()
    }
}

impl Inode {
    /// A description is opened for `memcg`. It counts in any case.
    ///
    /// # Errors
    /// `TooManyOpen`: the node would have to stay open for a tenant that has too many (O1).
    pub(crate) fn opened(&self, memcg: &Arc<Memcg>) -> Result<(), BackendError> {
        let mut state = self.state.lock();
        state.openers.is_expected = false;
        match state.openers.tenants.iter_mut().find(|(tenant, _)| Arc::ptr_eq(tenant, memcg)) {
            Some((_, count)) => *count += 1,
            None => state.openers.tenants.push((Arc::clone(memcg), 1)),
        }
        if self.needs_hold(&state) && !state.openers.has_hold() {
            state.openers.hold = self.sb.try_hold(memcg);
            if !state.openers.has_hold() {
                return Err(too_many());
            }
        }
        Ok(())
    }

    /// It has just been made without a name, and is going to be opened.
    pub(crate) fn expect_opener(&self) {
        self.state.lock().openers.is_expected = true;
    }

    /// A description of `memcg` is closed.
    pub(crate) fn closed(&self, memcg: &Arc<Memcg>) {
        let mut state = self.state.lock();
        let tenants = &mut state.openers.tenants;
        let Some(at) = tenants.iter().position(|(tenant, _)| Arc::ptr_eq(tenant, memcg)) else { return };
        tenants[at].1 -= 1;
        if tenants[at].1 != 0 {
            return;
        }
        let gone = tenants.swap_remove(at);
        let (left, had) = (&state.openers.tenants, state.openers.hold.as_ref());
        let moves = had.is_some_and(|hold| hold.is_of(self.sb.held_by(memcg)));
        let next = if moves { left.iter().find_map(|(tenant, _)| self.sb.try_hold(tenant)) } else { None };
        let let_go =
            if left.is_empty() || next.is_some() { std::mem::replace(&mut state.openers.hold, next) } else { None };
        drop(state);
        drop((let_go, gone));
    }

    /// Whether `remover` may take the file's name: not if it has the file open itself, nobody who has may hold it, and the name is
    /// the last.
    pub(crate) fn may_lose_name(&self, remover: &Arc<Memcg>) -> bool {
        let state = self.state.lock();
        let Openers { tenants, hold, is_expected: _ } = &state.openers;
        let is_its_own = tenants.iter().any(|(tenant, _)| Arc::ptr_eq(tenant, remover));
        let is_last = self.kind == NodeKind::File && state.attr.nlink <= 1;
        hold.is_some() || !is_its_own || !is_last || tenants.iter().any(|(tenant, _)| self.sb.may_hold(tenant))
    }

    /// `remover` has taken a name: if that was the last of an open file, somebody holds its node (O2).
    pub(crate) fn hold_nameless(&self, remover: &Arc<Memcg>) {
        let mut state = self.state.lock();
        if state.nameless && !state.openers.tenants.is_empty() && !state.openers.has_hold() {
            let openers = state.openers.tenants.iter().map(|(tenant, _)| tenant);
            let hold = openers.chain([remover]).find_map(|tenant| self.sb.try_hold(tenant));
            state.openers.hold = hold;
        }
    }

    /// A name was given to it: something leads to its node again.
    pub(super) fn give_hold_back(&self, state: &mut InodeState) -> Option<Hold> {
        if self.needs_hold(state) { None } else { state.openers.hold.take() }
    }

    fn needs_hold(&self, state: &InodeState) -> bool {
        state.nameless || !self.sb.bdi().limits().reopens
    }
}

pub(crate) fn too_many() -> BackendError {
    BackendError::new(
        ErrorKind::TooManyOpen,
        "the tenant has too many files open that have no name, or on a source without handles",
    )
}
