//! A queue of a ring as other threads see it, and the right to answer one of its requests.

use std::cell::Cell;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, thread_local};

use super::gather;
use super::sys::OwnedEntry;
use crate::TRANSPORT;

/// Most bytes in the reply to a WRITE: its count.
const COUNT_BYTES: usize = 8;

thread_local! {
    /// The queue that the calling thread serves.
    static OWN: Cell<*const Queue> = const { Cell::new(ptr::null()) };
}

/// An answer for the kernel.
pub(super) struct Answer {
    pub(super) unique: u64,
    pub(super) reply: SlotReply,
}

/// Where the reply to a request is written.
pub(super) enum SlotReply {
    /// The reply is written to the request's entry.
    InEntry(OwnedEntry),
    /// The reply to a WRITE is written beside the entry, which the thread of the queue has.
    OfWrite { index: u32, error: i32, count: Count },
}

impl SlotReply {
    fn put(&mut self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        match self {
            Self::InEntry(entry) => entry.put(unique, error, parts),
            Self::OfWrite { error: to_error, count, .. } => {
                *to_error = error;
                count.len = gather(parts, &mut count.bytes)?;
                Ok(())
            }
        }
    }
}

/// The data of a reply to a WRITE.
#[derive(Default)]
pub(super) struct Count {
    bytes: [u8; COUNT_BYTES],
    len: usize,
}

impl Count {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The part of a queue that other threads use.
pub(super) struct Queue {
    /// The CPU whose requests it gets.
    pub(super) number: u16,
    answers: Mutex<Vec<Answer>>,
    /// Ends the thread's wait.
    wake: OwnedFd,
    has_ended: AtomicBool,
    is_refused: AtomicBool,
}

impl Queue {
    pub(super) fn new(number: u16) -> Result<Self, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let answers = Mutex::new(TRANSPORT, Vec::new());
        Ok(Self { number, answers, wake, has_ended: AtomicBool::new(false), is_refused: AtomicBool::new(false) })
    }

    /// The calling thread serves this queue from now on, until it ends.
    pub(super) fn make_own(&self) {
        OWN.set(ptr::from_ref(self));
    }

    fn is_own(&self) -> bool {
        ptr::eq(OWN.get(), self)
    }

    /// Wakes the thread of the queue.
    pub(super) fn wake(&self) {
        // An eventfd accepts any value below its maximum.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The descriptor that becomes readable by [`wake`](Self::wake).
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Moves the answers to `taken`, which is empty.
    pub(super) fn take_answers(&self, taken: &mut Vec<Answer>) {
        std::mem::swap(&mut *self.answers.lock(), taken);
    }

    /// No answer reaches the kernel any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// The kernel has refused an entry.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    fn add(&self, answer: Answer) -> Result<(), Errno> {
        if self.has_ended.load(Ordering::Acquire) {
            return Err(Errno::NODEV);
        }
        let is_first = {
            let mut answers = self.answers.lock();
            answers.push(answer);
            answers.len() == 1
        };
        // The thread of the queue takes the answers before it waits. The thread that adds the first one after that wakes it.
        if is_first && !self.is_own() {
            self.wake();
        }
        Ok(())
    }
}

/// The right to answer the request in an entry.
pub(crate) struct RingSlot {
    queue: Arc<Queue>,
    /// `None` once it is answered.
    reply: Option<SlotReply>,
}

impl RingSlot {
    /// The slot of a request that has been copied from its entry.
    pub(super) fn with_entry(queue: Arc<Queue>, entry: OwnedEntry) -> Self {
        Self { queue, reply: Some(SlotReply::InEntry(entry)) }
    }

    /// The slot of a WRITE, whose payload is read from the entry with this number.
    pub(super) fn of_write(queue: Arc<Queue>, index: u32) -> Self {
        Self { queue, reply: Some(SlotReply::OfWrite { index, error: 0, count: Count::default() }) }
    }

    /// Sends the reply, once.
    ///
    /// # Errors
    /// `INVAL` if the reply is too long, and a shorter one can be sent; `NODEV` if the connection has ended.
    pub(crate) fn answer(&mut self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.reply.as_mut().ok_or(Errno::INVAL)?.put(unique, error, parts)?;
        let reply = self.reply.take().ok_or(Errno::INVAL)?;
        self.queue.add(Answer { unique, reply })
    }
}
