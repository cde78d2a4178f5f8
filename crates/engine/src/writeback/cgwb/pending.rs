//! Switches that no thread is working on: where they wait for a grace period and a flusher, and how an unmount takes
//! them back.
//!
//! # Invariants
//! Q1. Contexts of a wb move from `pending` to `waiting` to `ready`. Nothing is added to a batch in `waiting`, and the
//!     batch's own callback takes it off. Callbacks run in order, and one thread at a time runs a wb.
//! Q2. A form may refuse to queue a context once ACTIVE is clear
//!     ([`Drain::may_queue`](super::drain::Drain::may_queue)); it is asked with `switches` locked. So after ACTIVE is
//!     cleared, the contexts that [`SuperBlock::cancel_switches`] finds under that lock are the last. Any other switch
//!     in flight is being queued or executed by a thread, which waits for nothing.
//!
//! # Lock order
//! `BdiWriteback::switches` is a leaf. It is released before a context is cancelled.
//!
//! # Kernel counterpart
//! `switch_wbs_ctxs` of a wb. Cancelling has no counterpart: Linux lets an unmount wait for the work item.

use std::collections::VecDeque;

use crate::super_block::SuperBlock;
use crate::writeback::cgwb::switch::Context;

/// Contexts of a wb that no thread is executing.
#[derive(Default)]
pub(crate) struct Switches {
    /// Their grace period has not begun.
    pending: Vec<Context>,
    /// Batches in their grace period, oldest first. A cancelled batch is empty.
    waiting: VecDeque<Vec<Context>>,
    /// Ready to be executed.
    ready: Vec<Context>,
}

impl Switches {
    pub(super) fn add(&mut self, context: Context) {
        self.pending.push(context);
    }

    /// Turns the pending contexts into a batch, whose grace period the caller starts next, and returns its size. An
    /// empty batch is not added.
    pub(super) fn begin_grace(&mut self) -> usize {
        let batch = std::mem::take(&mut self.pending);
        let contexts = batch.len();
        if contexts != 0 {
            self.waiting.push_back(batch);
        }
        contexts
    }

    /// Ends the grace period of the oldest batch and returns how many of its contexts are ready.
    pub(super) fn end_grace(&mut self) -> usize {
        let batch = self.waiting.pop_front().unwrap_or_default();
        let contexts = batch.len();
        self.ready.extend(batch);
        contexts
    }

    /// Takes the contexts that are ready.
    pub(super) fn take_ready(&mut self) -> Vec<Context> {
        std::mem::take(&mut self.ready)
    }

    /// Takes all contexts, in whatever state.
    pub(super) fn take_all(&mut self) -> Vec<Context> {
        let mut contexts = self.take_ready();
        contexts.extend(self.waiting.iter_mut().flat_map(std::mem::take));
        contexts.append(&mut self.pending);
        contexts
    }
}

impl SuperBlock {
    /// Takes back every switch of this volume that no thread is working on. The volume must no longer be active (Q2).
    ///
    /// # Blocking
    /// Never: it waits for no grace period and no flusher.
    pub(super) fn cancel_switches(&self) {
        for wb in self.wbs() {
            let cancelled = wb.switches.lock().take_all();
            cancelled.into_iter().for_each(|context| context.cancel(self.engine()));
        }
    }
}
