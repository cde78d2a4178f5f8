//! Serialises changes of an inode's attributes: one in flight at a time.
//!
//! The backend may run two calls in either order, so the last one to run would decide the times. A truncate, a change
//! of attributes and a flush of metadata therefore each take the turn, and read the values they send while they hold
//! it.
//!
//! # Invariants
//! T1. `InodeState::meta_in_flight` is set exactly while the turn is held: by a call of `submit_meta` from its
//!     submission to its answer, by all other callers through a [`SetattrTurn`].
//! T2. A change stores its promised attributes in the inode before its turn ends, so the next one sends these or newer.
//!
//! # Lock order
//! `rwsem` may be held while waiting for the turn and while holding it. No lock of rank 45 or above may.
//!
//! # Kernel counterpart
//! `i_rwsem` around `notify_change`, which also protects against an older answer of `write_inode`.

use slackwater_sync::shim::Arc;

use crate::backend::{Attr, AttrChange, Call, Node};
use crate::error::BackendError;
use crate::inode::Inode;
use crate::writeback::write_inode::settle_now;

/// The right to send a change of an inode's attributes. Dropping it ends the turn.
pub(crate) struct SetattrTurn<'a> {
    inode: &'a Arc<Inode>,
}

impl<'a> SetattrTurn<'a> {
    /// Waits for the turn.
    ///
    /// # Blocking
    /// Waits for the backend's answer to the change in flight.
    pub(crate) fn wait(inode: &'a Arc<Inode>) -> Self {
        let engine = inode.super_block().engine();
        let take = || {
            let mut state = inode.state.lock();
            (!std::mem::replace(&mut state.meta_in_flight, true)).then_some(())
        };
        let _ = engine.waits.wait(inode.id(), None, take);
        Self { inode }
    }

    /// Sends `change`, waits for the answer and applies it. No other caller changes the mode meanwhile.
    ///
    /// # Errors
    /// The backend's error.
    ///
    /// # Blocking
    /// Waits for the backend.
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
        settle_now(self.inode, false);
    }
}
