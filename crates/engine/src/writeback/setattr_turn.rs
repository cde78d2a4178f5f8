//! One change of an inode's attributes in flight at a time.
//!
//! The backend may run two calls in either order, so the times that it ends up with would be those of
//! whichever came last. A truncate, a change of attributes and a flush of metadata therefore each have their
//! turn, and what they send is read when they have it.
//!
//! # Invariants
//! T1. `InodeState::meta_in_flight` is set exactly while somebody has the turn: a call of `submit_meta` from
//!     its submission to its answer, everybody else by a [`SetattrTurn`].
//! T2. What a change promises is in the inode before its turn ends: the next one sends that, or newer.
//!
//! # Lock order
//! `rwsem` may be held while the turn is waited for, and by who has it. Nothing from rank 45 up may.
//!
//! # Kernel counterpart
//! `i_rwsem` around `notify_change`, which also keeps `write_inode` from an older answer.

use slackwater_sync::shim::Arc;

use crate::backend::{Attr, AttrChange, Call, Node};
use crate::error::BackendError;
use crate::inode::Inode;
use crate::writeback::writepages::settle_now;

/// The right to send a change of an inode's attributes; ends when dropped.
pub(crate) struct SetattrTurn<'a> {
    inode: &'a Arc<Inode>,
}

impl<'a> SetattrTurn<'a> {
    /// Waits for the turn.
    ///
    /// # Blocking
    /// For the backend's answer to the change in flight.
    pub(crate) fn wait(inode: &'a Arc<Inode>) -> Self {
        let engine = inode.super_block().engine();
        let take = || {
            let mut state = inode.state.lock();
            (!std::mem::replace(&mut state.meta_in_flight, true)).then_some(())
        };
        let _ = engine.waits.wait(inode.id(), &*engine.clock, None, take);
        Self { inode }
    }

    /// Sends `change`, waits for the answer, and takes it over: nobody else changes the mode meanwhile.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// For the backend.
    pub(crate) fn send(&self, node: Node, change: AttrChange) -> Result<Attr, BackendError> {
        let inode = self.inode;
        let attr = inode.change_with(|| inode.super_block().call(None, |done| Call::Setattr { node, change, done }))?;
        inode.state.lock().attr.mode = attr.mode;
        Ok(attr)
    }
}

impl Drop for SetattrTurn<'_> {
    fn drop(&mut self) {
        self.inode.state.lock().meta_in_flight = false;
        settle_now(self.inode);
    }
}
