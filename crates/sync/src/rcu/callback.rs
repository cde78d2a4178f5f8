//! Callbacks after a grace period: a queue that anybody may push to, and one worker.
//!
//! # Invariants
//! B1. A pushed node belongs to the queue; whoever takes the list owns all nodes in it.
//! B2. The worker consumes the kick before it looks at the queue, and sleeps only if no kick has come since. So a push
//!     that it did not see is followed by a kick that it will.
//! B3. Callbacks run in the order of their pushes, each after a grace period that started after its push.
//!
//! # Memory ordering
//! O1. [`Site::RcuPushRelease`] with [`Site::RcuTakeAcquire`]: the worker sees what a callback captured.
//! O2. [`Site::RcuKickRelease`] with [`Site::RcuKickAcquire`]: the worker that consumes a kick sees the push before it.
//!     Without it the queue looks empty, the kick is gone, and the worker sleeps on a full queue.
//!
//! # Lifetime
//! The worker holds the domain's core and ends when the [`Domain`](super::Domain) goes, after the last callback.
#![allow(unsafe_code, reason = "a linked list of nodes that pass from thread to thread")]

use std::ptr;

use super::Core;
use super::grace::Kind;
use crate::shim::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::shim::cell::UnsafeCell;
use crate::shim::thread::{self, JoinHandle};
use crate::shim::{Arc, Site, futex_wait, futex_wake_one};

pub(super) type Callback = Box<dyn FnOnce() + Send>;

struct Node {
    callback: Callback,
    /// The node pushed before.
    next: UnsafeCell<*mut Node>,
}

/// Callbacks that wait for the worker. Kept off the cache lines that readers use.
#[repr(align(128))]
pub(super) struct Callbacks {
    /// The node pushed last.
    head: AtomicPtr<Node>,
    /// One if there may be something that the worker has not looked for. Also the futex word.
    kicked: AtomicU32,
    is_stopping: AtomicBool,
}

/// Starts the thread that runs a domain's callbacks.
pub(super) fn start_worker(core: Arc<Core>) -> JoinHandle<()> {
    thread::spawn_named("slackwater-rcu", move || {
        while let Some(batch) = core.callbacks.next_batch() {
            core.wait_for_grace(Kind::Normal); // B3
            batch.into_iter().for_each(|callback| callback());
        }
    })
}

impl Callbacks {
    pub(super) fn new() -> Self {
        Self { head: AtomicPtr::new(ptr::null_mut()), kicked: AtomicU32::new(0), is_stopping: AtomicBool::new(false) }
    }

    /// Adds a callback. The worker finds it after the next [`Callbacks::kick`].
    pub(super) fn push(&self, callback: Callback) {
        let mut head = self.head.load(Ordering::Relaxed);
        let node = Box::into_raw(Box::new(Node { callback, next: UnsafeCell::new(head) }));
        // O1.
        let release = Site::RcuPushRelease.order(Ordering::Release);
        while let Err(newer) = self.head.compare_exchange(head, node, release, Ordering::Relaxed) {
            head = newer;
            // SAFETY: B1 - the node is not in the queue yet, so it is still ours.
            let next = unsafe { &(*node).next };
            // SAFETY: likewise.
            next.with_mut(|next| unsafe { *next = head });
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

    /// What has been pushed, oldest first; sleeps until there is something. None once stopped and empty.
    fn next_batch(&self) -> Option<Vec<Callback>> {
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

    /// Empties the queue, oldest first.
    fn take(&self) -> Vec<Callback> {
        let mut batch = Vec::new();
        // An empty queue is left alone: its line stays with the pushers.
        if self.head.load(Ordering::Relaxed).is_null() {
            return batch;
        }
        // O1.
        let mut next = self.head.swap(ptr::null_mut(), Site::RcuTakeAcquire.order(Ordering::Acquire));
        while !next.is_null() {
            // SAFETY: B1 - the list is ours since the swap, and each node came from `Box::into_raw`.
            let node = unsafe { Box::from_raw(next) };
            // SAFETY: likewise; nobody else reads or writes it.
            next = node.next.with(|next| unsafe { *next });
            batch.push(node.callback);
        }
        batch.reverse();
        batch
    }
}

impl Drop for Callbacks {
    /// Nothing is left, unless the worker was never able to run.
    fn drop(&mut self) {
        self.take();
    }
}
