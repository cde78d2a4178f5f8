//! Replies held back until their throttled writers may continue. The bytes are already taken: the death of the writer, a
//! forced unmount and the end of the volume send the reply at once, with the full count.
//!
//! # Invariants
//! U1. A held reply has no payload. So thousands of throttled writers cost one reply each, and no thread.
//!
//! # Lock order
//! The lock is a leaf: a reply is removed from the table before it is sent.
//!
//! # Kernel counterpart
//! `balance_dirty_pages`, which sleeps.

use std::collections::BTreeMap;

use slackwater::{Pause, Tick};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::lock_order::LEAF;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::callers::PendingCall;
use crate::volume::writes::Write;

struct Paused {
    /// The pause is computed again before the reply is sent.
    rechecks: bool,
    waiting: PendingCall,
    write: Write,
}

#[derive(Default)]
struct Replies {
    /// Ordered by due time, then by arrival.
    paused: BTreeMap<(Tick, u64), Paused>,
    /// Number of replies held so far.
    count: u64,
}

impl Replies {
    fn first(&self) -> Option<Tick> {
        self.paused.first_key_value().map(|((due, _), _)| *due)
    }
}

/// The held replies of a volume.
pub(super) struct PausedReplies(Mutex<Replies>);

impl PausedReplies {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LEAF, Replies::default()))
    }

    /// Number of held replies.
    pub(super) fn len(&self) -> usize {
        self.0.lock().paused.len()
    }

    /// When the next one is due.
    pub(super) fn first(&self) -> Option<Tick> {
        self.0.lock().first()
    }

    /// Adds one. Returns true if it is now the first one due.
    fn push(&self, due: Tick, paused: Paused) -> bool {
        let mut replies = self.0.lock();
        let is_first = replies.first().is_none_or(|first| due < first);
        replies.count += 1;
        let number = replies.count;
        replies.paused.insert((due, number), paused);
        is_first
    }

    fn take_due(&self, now: Tick) -> Option<Paused> {
        let mut replies = self.0.lock();
        let first = replies.paused.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

impl Volume {
    /// Holds the reply of a write whose bytes are taken.
    pub(super) fn pause_write(self: &Arc<Self>, waiting: PendingCall, write: Write, pause: Pause) {
        let (time, rechecks) = match pause {
            Pause::For(time) => (time, false),
            Pause::RetryAfter(time) => (time, true),
            Pause::None => return self.finish_taken(waiting, &write),
        };
        if !waiting.allow_early_answer(&write) {
            return;
        }
        if self.worker.paused.push(self.sb.now() + time, Paused { rechecks, waiting, write }) {
            self.wake_worker();
        }
    }

    /// Completes a write whose bytes are taken: replies when its writer may continue.
    pub(super) fn finish_write(self: &Arc<Self>, waiting: PendingCall, write: Write) {
        let pause = write.pause();
        self.pause_write(waiting, write, pause);
    }

    fn finish_taken(&self, waiting: PendingCall, write: &Write) {
        self.finish(waiting, Ok(Answer::Written(write.taken as u32)));
    }

    /// Sends the replies that are due; with `all`, every one, since the volume refuses requests or ends.
    pub(super) fn send_paused(self: &Arc<Self>, all: bool) {
        let now = if all { Tick::MAX } else { self.sb.now() };
        while let Some(Paused { rechecks, waiting, write }) = self.worker.paused.take_due(now) {
            if rechecks && !all && waiting.lock().is_some() {
                self.finish_write(waiting, write);
            } else {
                self.finish_taken(waiting, &write);
            }
        }
    }
}
