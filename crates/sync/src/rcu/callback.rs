//! Callbacks after a grace period: a queue that any thread may push to, and one worker.
//!
//! # Invariants
//! B1. A pushed node belongs to the queue; the thread that takes the list owns all nodes in it. A node is one
//!     allocation of the size that its callback needs; `end` knows that size.
//! B2. The worker consumes the kick before it looks at the queue, and sleeps only if no kick has arrived since. So a
//!     push that it did not see is followed by a kick that it will see.
//! B3. Callbacks run in the order of their pushes, each after a grace period that started after its push.
//!
//! # Memory ordering
//! O1. [`Site::RcuPushRelease`] with [`Site::RcuTakeAcquire`]: the worker sees what a callback captured.
//! O2. [`Site::RcuKickRelease`] with [`Site::RcuKickAcquire`]: the worker that consumes a kick sees the push before it.
//!     Without it, the queue looks empty, the kick is consumed, and the worker sleeps although the queue has callbacks.
//!
//! # Lifetime
//! The worker holds the domain's core. It ends when the [`Domain`](super::Domain) is dropped, after the last callback.
#![allow(unsafe_code, reason = "a linked list of nodes that pass from thread to thread")]

use std::ptr;

use super::Core;
use super::grace::Kind;
use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::shim::cell::UnsafeCell;
use crate::shim::thread::{self, JoinHandle};
use crate::shim::{Arc, Site, futex_wait, futex_wake_one};

/// The header of every callback.
struct Node {
    /// The node pushed before this one; in a [`Batch`], the next node.
    next: UnsafeCell<*mut Node>,
    /// Frees the node, after running its callback or without running it.
    end: unsafe fn(*mut Node, End),
}

/// Whether a callback is run or only dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Run,
    Drop,
}

/// A node with its callback.
#[repr(C)]
struct Callback<F> {
    node: Node,
    run: F,
}

impl<F: FnOnce()> Callback<F> {
    fn boxed(run: F) -> *mut Node {
        let node = Node { next: UnsafeCell::new(ptr::null_mut()), end: Self::end };
        Box::into_raw(Box::new(Self { node, run })).cast()
    }

    /// # Safety
    /// `node` came from [`Callback::boxed`] of the same `F`, and the caller owns it alone.
    unsafe fn end(node: *mut Node, end: End) {
        // SAFETY: the node is the first field of a `Callback<F>`, as the caller guarantees, and was boxed as one.
        let callback = unsafe { Box::from_raw(node.cast::<Self>()) };
        if end == End::Run {
            (callback.run)();
        }
    }
}

/// Nodes that were taken, oldest first. Dropping a batch drops its remaining callbacks without running them.
struct Batch(*mut Node);

impl Batch {
    fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    fn run(mut self) {
        while self.end_first(End::Run) {}
    }

    /// False if no node was left.
    fn end_first(&mut self, end: End) -> bool {
        let first = self.0;
        if first.is_null() {
            return false;
        }
        // SAFETY: B1 - the list is ours.
        let node = unsafe { &*first };
        // SAFETY: likewise.
        self.0 = node.next.with(|next| unsafe { *next });
        let free = node.end;
        // SAFETY: B1, and the function is that of the node.
        unsafe { free(first, end) };
        true
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        while self.end_first(End::Drop) {}
    }
}

/// Callbacks that wait for the worker. Kept off the cache lines that readers use.
#[repr(align(128))]
pub(super) struct Callbacks {
    /// The node pushed last.
    head: AtomicPtr<Node>,
    /// 1 if there may be a push that the worker has not looked for. Also the futex word.
    kicked: AtomicU32,
    is_stopping: AtomicBool,
}

/// Starts the thread that runs a domain's callbacks.
pub(super) fn start_worker(core: Arc<Core>) -> JoinHandle<()> {
    thread::spawn_named("slackwater-rcu", move || {
        while let Some(batch) = core.callbacks.next_batch() {
            core.wait_for_grace(Kind::Normal); // B3
            batch.run();
        }
    })
}

impl Callbacks {
    pub(super) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()), kicked: AtomicU32::new(0), is_stopping: AtomicBool::new(false) }
    }

    /// Adds a callback. The worker finds it after the next [`Callbacks::kick`].
    pub(super) fn push(&self, run: impl FnOnce() + Send + 'static) {
        let node = Callback::boxed(run);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: B1 - the node is not in the queue yet, so it is still ours.
            let next = unsafe { &(*node).next };
            // SAFETY: likewise.
            next.with_mut(|next| unsafe { *next = head });
            // O1.
            let release = Site::RcuPushRelease.order(Ordering::Release);
            match self.head.compare_exchange(head, node, release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Makes the worker look.
    pub(super) fn kick(&self) {
        // O2.
        if self.kicked.swap(1, Site::RcuKickRelease.order(Ordering::Release)) == 0 {
            futex_wake_one(&self.kicked);
        }
    }

    /// Makes the worker end once the queue is empty.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.kick();
    }

    /// The pushed callbacks, oldest first. Sleeps until there is one. None once stopped and empty.
    fn next_batch(&self) -> Option<Batch> {
        loop {
            // O2, B2.
            self.kicked.swap(0, Site::RcuKickAcquire.order(Ordering::Acquire));
            let batch = self.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            if self.is_stopping.load(Ordering::Relaxed) {
                return None;
            }
            futex_wait(&self.kicked, 0, None);
        }
    }

    /// Empties the queue.
    fn take(&self) -> Batch {
        // An empty queue is not written: its cache line stays with the pushers.
        if self.head.load(Ordering::Relaxed).is_null() {
            return Batch(ptr::null_mut());
        }
        // O1.
        let mut newest = self.head.swap(ptr::null_mut(), Site::RcuTakeAcquire.order(Ordering::Acquire));
        let mut oldest = ptr::null_mut();
        while !newest.is_null() {
            // SAFETY: B1 - the list is ours since the swap.
            let next = unsafe { &(*newest).next };
            // SAFETY: likewise.
            let before = next.with_mut(|next| unsafe { std::mem::replace(&mut *next, oldest) });
            (oldest, newest) = (newest, before);
        }
        Batch(oldest)
    }
}

impl Drop for Callbacks {
    /// Normally nothing is left; callbacks remain only if the worker was never able to run.
    fn drop(&mut self) {
        drop(self.take());
    }
}
