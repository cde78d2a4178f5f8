//! Replies that are held until their writer may go on. The bytes are taken: an interrupt, a forced unmount and the end of
//! the volume send the reply at once, with their number.
//!
//! # Invariants
//! U1. A held reply has no payload. So thousands of throttled writers cost their replies, and no thread.
//!
//! # Lock order
//! The heap's lock is a leaf: a reply is taken out of it to be sent.
//!
//! # Kernel counterpart
//! `balance_dirty_pages`, which sleeps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slackwater::{Pause, Tick};
use slackwater_sync::lock::Mutex;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::callers::Waiting;
use crate::volume::lock_order::LEAF;
use crate::volume::writes::Write;

/// Ordered by when it is due, then by arrival.
struct Paused {
    due: Tick,
    number: u64,
    /// It is to be asked again before the reply is sent.
    asks: bool,
    waiting: Waiting,
    write: Write,
}

impl PartialEq for Paused {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Paused {}
impl PartialOrd for Paused {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Paused {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Paused {
    fn key(&self) -> (Tick, u64) {
        (self.due, self.number)
    }
}

#[derive(Default)]
struct Heap {
    paused: BinaryHeap<Reverse<Paused>>,
    held: u64,
}

/// The held replies of a volume.
pub(super) struct PausedReplies(Mutex<Heap>);

impl PausedReplies {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LEAF, Heap::default()))
    }

    /// When the next is due.
    pub(super) fn first(&self) -> Option<Tick> {
        self.0.lock().paused.peek().map(|Reverse(first)| first.due)
    }

    /// Adds one; true if it is the first that is due.
    fn push(&self, due: Tick, asks: bool, waiting: Waiting, write: Write) -> bool {
        let mut heap = self.0.lock();
        heap.held += 1;
        let number = heap.held;
        let is_first = heap.paused.peek().is_none_or(|Reverse(first)| due < first.due);
        heap.paused.push(Reverse(Paused { due, number, asks, waiting, write }));
        is_first
    }

    fn take_due(&self, now: Tick) -> Option<Paused> {
        let mut heap = self.0.lock();
        if heap.paused.peek().is_some_and(|Reverse(first)| first.due <= now) {
            heap.paused.pop().map(|Reverse(paused)| paused)
        } else {
            None
        }
    }
}

impl Volume {
    /// Holds the reply of a write whose bytes are taken.
    pub(super) fn hold(&self, waiting: Waiting, write: Write, pause: Pause) {
        let (time, asks) = match pause {
            Pause::For(time) => (time, false),
            Pause::AskAfter(time) => (time, true),
            Pause::None => return self.finish_taken(waiting, &write),
        };
        let Some(waiting) = self.let_off_from_here(waiting, write.taken) else { return };
        if self.attendant.paused.push(self.sb.now() + time, asks, waiting, write) {
            self.attendant.wake();
        }
    }

    /// The bytes of a write are taken that may have waited for it: its reply, when its writer may go on.
    pub(super) fn finish_write(&self, waiting: Waiting, write: Write) {
        let pause = write.pause();
        self.hold(waiting, write, pause);
    }

    fn finish_taken(&self, waiting: Waiting, write: &Write) {
        self.finish(waiting, Ok(Answer::Written(write.taken as u32)));
    }

    /// Sends what is due; or everything, once the volume refuses or ends.
    pub(super) fn send_paused(&self, all: bool) {
        let now = if all { Tick::MAX } else { self.sb.now() };
        while let Some(Paused { asks, waiting, write, .. }) = self.attendant.paused.take_due(now) {
            if asks && !all && waiting.lock().is_some() {
                self.finish_write(waiting, write);
            } else {
                self.finish_taken(waiting, &write);
            }
        }
    }
}
