//! Sends the metadata of an inode to the backend once its pages are there, and ends each completion.
//!
//! # Invariants
//! M1. Metadata stays dirty until it has been sent while no page is dirty or under write-back. So the times that the
//!     backend ends up with are those the cache promised.
//!
//! # Kernel counterpart
//! `__writeback_single_inode`, `write_inode`.

use slackwater_sync::shim::Arc;

use crate::backend::{AttrChange, Call, Done};
use crate::error::BackendError;
use crate::inode::{Inode, meta};
use crate::page_cache::Mark;
use crate::writeback::writepages::note_failure;
use crate::writeback::{Attempt, Settled};

/// The last part of every completion: lists, metadata, waiters.
pub(crate) fn finish(inode: &Arc<Inode>, waits: bool) {
    let sb = inode.super_block();
    let doomed = inode.state.lock().doomed;
    if doomed {
        sb.drop_pages(inode);
    }
    settle_now(inode, waits);
    sb.note_progress();
}

/// Settles an inode, does what is due, and wakes its waiters. `waits`: the caller waits for the inode's metadata.
pub(crate) fn settle_now(inode: &Arc<Inode>, waits: bool) {
    let now = inode.super_block().engine().clock.now();
    match inode.settle(now, false) {
        Settled::WriteMeta => {
            if waits {
                // Others wait for the pages only, or for their frames.
                inode.super_block().engine().waits.wake(inode.id());
                inode.super_block().note_progress();
            }
            let _ = submit_meta(inode, waits);
        }
        Settled::Clean => {
            inode.release_if_clean();
            inode.super_block().forget_if_unused(inode);
        }
        // The flusher may look at this inode only after the volume has ended and its records have been released.
        Settled::Waiting if inode.is_clean(&inode.state.lock()) => inode.release_if_clean(),
        Settled::Waiting => {}
    }
    inode.super_block().engine().waits.wake(inode.id());
}

/// Sends the inode's times, and its mode if a write by the backend could change it. Returns the number of the call for
/// `InodeState::meta_answered`, or `None` if one is in flight or nothing is dirty.
///
/// A sync may send the times while pages are still dirty or under write-back. Writing those changes the times again, so
/// the metadata then stays dirty and is sent once more after the data (M1).
///
/// # Blocking
/// Never, unless the caller `waits` for the answer.
pub(crate) fn submit_meta(inode: &Arc<Inode>, waits: bool) -> Option<u64> {
    let sb = inode.super_block();
    let (node, change, sent, call) = {
        let mut state = inode.state.lock();
        let node = state.node.clone().filter(|_| !state.meta_in_flight && state.meta != 0)?;
        state.meta_in_flight = true;
        // A write by the backend may clear setuid, although no program's write has cleared it here.
        let tell_mode = state.attr.mode & 0o6000 != 0;
        let mode = tell_mode.then_some(state.attr.mode & 0o7777);
        let change = AttrChange { mtime: Some(inode.mtime()), mode, ..AttrChange::default() };
        let sent = std::mem::take(&mut state.meta);
        if inode.mapping.count(Mark::Writeback) + inode.mapping.count(Mark::Dirty) != 0 {
            state.meta = meta::DIRTY_SYNC;
        }
        (node, change, sent, state.meta_answered + 1)
    };
    tracing::trace!(target: "slackwater::writeback", volume = sb.name(), ino = inode.id().ino, flags = sent,
        "writeback_write_inode_start");
    sb.pin();
    let flush = inode.begin_change();
    let owner = Arc::clone(inode);
    let done = Done::new(move |answer: Result<crate::backend::Attr, BackendError>| {
        let sb = Arc::clone(owner.super_block());
        if answer.as_ref().is_ok_and(|attr| attr.nlink == 0) {
            sb.note_nameless(&owner);
        }
        owner.end_flush(flush, answer.as_ref().ok());
        sb.commits().note_change();
        tracing::trace!(target: "slackwater::writeback", volume = sb.name(), ino = owner.id().ino, ok = answer.is_ok(),
            "writeback_write_inode");
        let mut state = owner.state.lock();
        state.meta_in_flight = false;
        state.meta_answered += 1;
        sb.note_attempt(Attempt::Meta, answer.as_ref().err().map(BackendError::kind));
        match answer {
            Ok(_) => drop(state),
            Err(error) => {
                state.meta |= if state.doomed { 0 } else { sent };
                drop(state);
                note_failure(&owner, error.kind());
            }
        }
        finish(&owner, false);
        drop(owner);
        sb.unpin();
    });
    sb.bdi().submit(Call::Setattr { node, change, done }, waits);
    Some(call)
}
