//! Calls that may wait for the backend, and those that have to wait for a thread to do it on.
//!
//! # Invariants
//! B1. A call is in the backlog only while as many threads of the volume wait as may. Whoever of them comes
//!     back works it off; and who has put a call there, and who has left, looks once more whether the other
//!     is gone.
//!
//! # Lock order
//! The backlog's lock is a leaf; a call is taken out of it to be made.

use std::collections::VecDeque;

use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use crate::notifier::Notification;
use crate::parse::Change;
use crate::pool::Context;
use crate::reply::Reply;
use crate::request::RequestHeader;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::callers::PendingCall;
use crate::volume::errno::Failure;
use crate::volume::lock_order::LEAF;
use crate::volume::writes::Write;

/// One more, until it is dropped.
pub(super) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    pub(super) fn new(counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counter))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type Work = Box<dyn FnOnce(&Arc<Volume>) + Send>;

/// Calls that wait for a thread.
pub(super) struct Backlog {
    waiting: Mutex<VecDeque<Work>>,
    /// Calls that run or wait, their callers let go or not.
    calls: Arc<AtomicUsize>,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(LEAF, VecDeque::new()), calls: Arc::default() }
    }

    fn next(&self) -> Option<Work> {
        self.waiting.lock().pop_front()
    }

    /// Calls that run or wait.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Acquire)
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

impl Volume {
    /// Makes a call that may wait for the backend, and answers its request. A caller that was let go before its
    /// `change` could begin wants none; one that was let go after that leaves it to us to tell the kernel.
    pub(super) fn serve(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        change: Option<Change>,
        reply: Reply,
        call: impl FnOnce(&Arc<Self>) -> Result<Answer, Failure> + Send + 'static,
    ) {
        self.run_blocking(cx, header, reply, move |volume, waiting| {
            // Who was killed while the call waited for a thread takes none.
            let is_wanted = match &change {
                Some(_) => waiting.begin_change(volume.sb.now()),
                None => !waiting.is_gone(),
            };
            if !is_wanted {
                return;
            }
            let is_heard = volume.finish(waiting, call(volume));
            if let Some(change) = change.filter(|_| !is_heard) {
                volume.invalidate(change);
            }
        });
    }

    /// Has the kernel ask again for what is not as it was told (C4).
    fn invalidate(&self, change: Change) {
        let Some(notifier) = self.notifier.get() else { return };
        let names = change.names.into_iter().flatten();
        let names = names.map(|(parent, name)| Notification::InvalEntry { parent, name });
        let nodes = change.nodes.into_iter().flatten();
        let nodes = nodes.map(|node| Notification::InvalInode { node, offset: 0, len: 0 });
        names.chain(nodes).for_each(|notification| notifier.queue(notification));
    }

    /// Lets a caller wait for `work`, on this thread or the next that may wait for the backend.
    fn run_blocking(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        reply: Reply,
        work: impl FnOnce(&Arc<Self>, PendingCall) + Send + 'static,
    ) {
        let guard = CountGuard::new(&self.backlog.calls);
        let waiting = self.hold_reply(header.pid, reply);
        let work = move |volume: &Arc<Self>| {
            work(volume, waiting);
            drop(guard);
        };
        match cx.try_block() {
            Some(_blocking) => {
                work(self);
                self.run_backlog();
            }
            None => self.backlog.waiting.lock().push_back(Box::new(work)),
        }
        self.recheck_backlog(cx);
    }

    /// Writes `rest` where that may wait for the backend. Without a thread to wait on it queues with the parked.
    pub(super) fn serve_write(self: &Arc<Self>, cx: &Context<'_>, waiting: PendingCall, write: Write, rest: &[u8]) {
        match cx.try_block() {
            Some(_blocking) => {
                self.write_blocking(waiting, write, rest);
                self.run_backlog();
            }
            None => self.park(waiting, write, rest),
        }
        self.recheck_backlog(cx);
    }

    fn run_backlog(self: &Arc<Self>) {
        while let Some(work) = self.backlog.next() {
            work(self);
        }
    }

    /// B1.
    fn recheck_backlog(self: &Arc<Self>, cx: &Context<'_>) {
        while !self.backlog.is_empty() {
            let Some(_blocking) = cx.try_block() else { return };
            self.run_backlog();
        }
    }
}
