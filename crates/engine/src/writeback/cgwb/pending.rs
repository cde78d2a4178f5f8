//! The switches that no thread is at: where they wait for their grace period and for a flusher, and how an unmount takes
//! them back.
//!
//! # Invariants
//! Q1. Contexts of a wb go from `pending` to `waiting` to `ready`. To a batch in `waiting` nothing is added, and its own
//!     callback takes it off: callbacks run in their order, and one thread at a time runs a wb.
//! Q2. A form may refuse to queue a context once ACTIVE is clear ([`Drain::may_queue`](super::drain::Drain::may_queue)),
//!     and asks with `switches` locked. Then those that [`SuperBlock::cancel_switches`] finds under that lock, after
//!     ACTIVE was cleared, are the last. What else is in flight a thread is at, to queue it or to do it: none of
//!     that waits for anything.
//!
//! # Lock order
//! `BdiWriteback::switches` is a leaf. It is dropped before a context is cancelled.
//!
//! # Kernel counterpart
//! `switch_wbs_ctxs` of a wb. There is none of the cancelling: Linux lets an unmount wait for the job.

use std::collections::VecDeque;

use crate::super_block::SuperBlock;
use crate::writeback::cgwb::switch::Context;

/// Contexts of a wb that are not being done.
#[derive(Default)]
pub(crate) struct Switches {
    /// Their grace period has not begun.
    pending: Vec<Context>,
    /// Batches that wait for the end of theirs, the oldest first. One that was cancelled is empty.
    waiting: VecDeque<Vec<Context>>,
    /// To be done.
    ready: Vec<Context>,
}

impl Switches {
    pub(super) fn add(&mut self, context: Context) {
        self.pending.push(context);
    }

    /// Makes what is pending a batch, whose grace period begins next, and says how much it is. None is begun for nothing.
    pub(super) fn begin_grace(&mut self) -> usize {
        let batch = std::mem::take(&mut self.pending);
        let contexts = batch.len();
        if contexts != 0 {
            self.waiting.push_back(batch);
        }
        contexts
    }

    /// The grace period of the oldest batch has ended. Returns how much of it is ready.
    pub(super) fn end_grace(&mut self) -> usize {
        let batch = self.waiting.pop_front().unwrap_or_default();
        let contexts = batch.len();
        self.ready.extend(batch);
        contexts
    }

    /// To be done now.
    pub(super) fn take_ready(&mut self) -> Vec<Context> {
        std::mem::take(&mut self.ready)
    }

    /// Wherever they wait.
    pub(super) fn take_all(&mut self) -> Vec<Context> {
        let mut contexts = self.take_ready();
        contexts.extend(self.waiting.iter_mut().flat_map(std::mem::take));
        contexts.append(&mut self.pending);
        contexts
    }
}

impl SuperBlock {
    /// Takes back every switch of this volume that no thread is at. The volume is not active any more (Q2).
    ///
    /// # Blocking
    /// Never: no grace period is waited for, and no flusher.
    pub(super) fn cancel_switches(&self) {
        for wb in self.wbs() {
            let cancelled = wb.switches.lock().take_all();
            cancelled.into_iter().for_each(|context| context.cancel(self.engine()));
        }
    }
}
