//! Open descriptions of a file by tenant, and the tenant that holds its node while no name leads to it.
//!
//! # Invariants
//! O1. An open file has a hold if we removed its last name (or created it without one), or if its backend does not
//!     reopen nodes. The exception is a file that no tenant could hold when its last name was removed. Without a hold,
//!     its node is released when nodes are short.
//! O2. The hold belongs to a tenant that has the file open, if one of them may hold more nodes; otherwise to the tenant
//!     that removed the name.

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
    /// Whether the file was created without a name, and its creator has not opened it yet.
    is_expected: bool,
}

impl Openers {
    /// Whether the node of a file without a name must stay open.
    pub(super) fn keep_node(&self) -> bool {
        self.hold.is_some() || self.is_expected
    }

    fn has_hold(&self) -> bool {
        self.hold.is_some()
    }
}

impl Inode {
    /// Counts a description opened for `memcg`, even if it fails.
    ///
    /// # Errors
    /// `TooManyOpen`: the node would have to stay open for a tenant that holds too many (O1).
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

    /// Records that the file was just created without a name and is about to be opened.
    pub(crate) fn expect_opener(&self) {
        self.state.lock().openers.is_expected = true;
    }

    /// Counts off a description of `memcg` that was closed.
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
        let released =
            if left.is_empty() || next.is_some() { std::mem::replace(&mut state.openers.hold, next) } else { None };
        drop(state);
        drop((released, gone));
    }

    /// Whether `remover` may remove one of the file's names. It may not if the name is the last, `remover` has the file
    /// open itself, and no tenant that has it open may hold its node.
    pub(crate) fn may_unlink(&self, remover: &Arc<Memcg>) -> bool {
        let state = self.state.lock();
        let Openers { tenants, hold, is_expected: _ } = &state.openers;
        let is_its_own = tenants.iter().any(|(tenant, _)| Arc::ptr_eq(tenant, remover));
        let is_last = self.kind == NodeKind::File && state.attr.nlink <= 1;
        hold.is_some() || !is_its_own || !is_last || tenants.iter().any(|(tenant, _)| self.sb.may_hold(tenant))
    }

    /// Called when `remover` has removed a name. If it was the last of an open file, a tenant now holds its node (O2).
    pub(crate) fn hold_nameless(&self, remover: &Arc<Memcg>) {
        let mut state = self.state.lock();
        if state.nameless && !state.openers.tenants.is_empty() && !state.openers.has_hold() {
            let openers = state.openers.tenants.iter().map(|(tenant, _)| tenant);
            let hold = openers.chain([remover]).find_map(|tenant| self.sb.try_hold(tenant));
            state.openers.hold = hold;
        }
    }

    /// Returns the hold when the file has been given a name, which leads to its node again.
    pub(super) fn release_hold(&self, state: &mut InodeState) -> Option<Hold> {
        if self.needs_hold(state) { None } else { state.openers.hold.take() }
    }

    fn needs_hold(&self, state: &InodeState) -> bool {
        state.nameless || !self.sb.bdi().limits().reopens
    }
}

pub(crate) fn too_many() -> BackendError {
    BackendError::new(
        ErrorKind::TooManyOpen,
        "the tenant has too many open files without a name, or on a source without file handles",
    )
}
