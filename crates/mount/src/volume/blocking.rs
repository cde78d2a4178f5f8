//! Calls that may wait for the backend, and those that wait for a thread to run on.
//!
//! # Invariants
//! B1. A call is in the backlog only while the volume has as many blocked threads as it may. A thread that unblocks
//!     drains the backlog. A thread that queues a call and a thread that unblocks both check the backlog once more, so
//!     that neither relies on the other in vain.
//!
//! # Lock order
//! The backlog's lock is a leaf; a call is taken out of the queue to be run.

use std::cell::Cell;
use std::collections::VecDeque;

use slackwater_fuse::{Context, Notification, Reply, RequestHeader};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use crate::lock_order::LEAF;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::callers::PendingCall;
use crate::volume::change::Change;
use crate::volume::errno::Failure;
use crate::volume::writes::Write;

/// Counts one until it is dropped.
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
    /// Calls that run or wait, whether their callers were released or not.
    calls: Arc<AtomicUsize>,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::new(LEAF, VecDeque::new()), calls: Arc::default() }
    }

    fn next(&self) -> Option<Work> {
        self.waiting.lock().pop_front()
    }

    /// Number of calls that run or wait.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Acquire)
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

impl Volume {
    /// Runs a call that may wait for the backend, and answers its request. If the caller is released before `change`
    /// begins, the call is not made. If it is released later, the kernel is notified of the change.
    pub(super) fn serve(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        change: Option<Change>,
        reply: Reply,
        call: impl FnOnce(&Arc<Self>) -> Result<Answer, Failure> + Send + 'static,
    ) {
        self.run_blocking(cx, header, reply, move |volume, waiting, unblock| {
            // A caller that was killed while the call waited for a thread needs no call.
            let is_wanted = match &change {
                Some(_) => waiting.begin_change(volume.sb.now()),
                None => !waiting.is_gone(),
            };
            if !is_wanted {
                return;
            }
            let answer = call(volume);
            unblock();
            let is_heard = volume.finish(waiting, answer);
            if let Some(change) = change.filter(|_| !is_heard) {
                volume.invalidate(change);
            }
        });
    }

    /// Invalidates the names and nodes of a change of which the kernel got no reply (C4).
    fn invalidate(&self, change: Change) {
        let Some(notifier) = self.notifier.get() else { return };
        let names = change.names.into_iter().flatten();
        let names = names.map(|(parent, name)| Notification::InvalEntry { parent, name });
        let nodes = change.nodes.into_iter().flatten();
        let nodes = nodes.map(|node| Notification::InvalInode { node, offset: 0, len: 0 });
        names.chain(nodes).for_each(|notification| notifier.queue(notification));
    }

    /// Holds the reply and runs `work`, on this thread or on the next one that may wait for the backend. `work` calls its
    /// last argument when it will not wait any more; then it sends the reply, which may bring the next request.
    fn run_blocking(
        self: &Arc<Self>,
        cx: &Context<'_>,
        header: &RequestHeader,
        reply: Reply,
        work: impl FnOnce(&Arc<Self>, PendingCall, &dyn Fn()) + Send + 'static,
    ) {
        let guard = CountGuard::new(&self.backlog.calls);
        let waiting = self.hold_reply(header.pid, reply);
        let work = move |volume: &Arc<Self>, unblock: &dyn Fn()| {
            work(volume, waiting, unblock);
            drop(guard);
        };
        if let Some(workers) = cx.workers() {
            let volume = Arc::clone(self);
            return workers.run(move || work(&volume, &|| ()));
        }
        match cx.try_block() {
            Some(blocking) => {
                let blocking = Cell::new(Some(blocking));
                work(self, &|| drop(blocking.take()));
            }
            None => self.backlog.waiting.lock().push_back(Box::new(move |volume| work(volume, &|| ()))),
        }
        self.recheck_backlog(cx);
    }

    /// Writes `rest` on a thread that may wait for the backend. If none may, parks the write.
    pub(super) fn serve_write(self: &Arc<Self>, cx: &Context<'_>, waiting: PendingCall, write: Write, rest: &[u8]) {
        if let Some(workers) = cx.workers().filter(|workers| workers.has_room()) {
            let (volume, rest) = (Arc::clone(self), rest.to_vec());
            return workers.run(move || volume.write_blocking(waiting, write, &rest));
        }
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

    /// Drains calls that were queued meanwhile (B1).
    fn recheck_backlog(self: &Arc<Self>, cx: &Context<'_>) {
        while !self.backlog.is_empty() {
            let Some(_blocking) = cx.try_block() else { return };
            self.run_backlog();
        }
    }
}
