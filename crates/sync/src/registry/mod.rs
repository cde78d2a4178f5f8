//! A list that is walked without a lock, and that an element leaves without waiting for anything but its own users.
//!
//! ```text
//! walk                                         unregister
//! for each element, inside a read section:     close it, and put the initial reference
//!     take a reference, unless it is closed    wait until no other is left
//!     leave the section, use the element       unlink
//!     enter the section again, put             free, with others, after a grace period
//! ```
//!
//! An element is used outside the section, so its users may sleep and take as long as they like: neither who registers nor
//! who unregisters another element notices.
//!
//! # Invariants
//! G1. The list has a count of its own on each element, which it gives up a grace period after the element was unlinked.
//!     So an element that was found inside a section is there to the end of the section, and its link too.
//! G2. An element that is unlinked keeps its link. Whoever stands on it goes on to one that was in the list when his
//!     section began, or later.
//! G3. `references` goes from zero to one when the element is linked. References are taken as long as it is neither zero
//!     nor CLOSED, which it stays. Whoever puts the last one then lets the element's `unregister` go on: after it nobody
//!     uses the element.
//! G4. A walk stands inside a section when it puts the reference to the element that it stands on: by then G1 holds for
//!     the next one too. Without it the element, and the next, may be freed before the walk has read its link.
//! G5. Whoever is inside a walk unregisters nothing of that registry: it may hold the very element, or somebody may be
//!     inside a walk who waits for one that it holds.
//!
//! G6. What was unlinked is freed after a grace period that starts afterwards. [`RETIRED`] of them pay for one: where few
//!     come and go there is none, and no thread is started for it. One callback at a time has what had come when it was
//!     queued; what it has waited for is freed by whoever unregisters next, whose memory it was, or by itself if nobody
//!     has come meanwhile. What is left goes with the registry.
//!
//! # Memory ordering
//! O1. [`Site::RegistryLinkRelease`] and [`Site::RegistryUnlinkRelease`] with [`Site::RegistryLinkAcquire`]: a walk sees
//!     what was registered, whether it came by the link that registering set, or by one that unregistering moved there.
//!     The initial reference follows the link and needs no order: it says that the element may be used, not what it is.
//! O2. [`Site::RegistryPutRelease`] with [`Site::RegistryPutAcquire`]: what was done under any reference happens before
//!     `unregister` returns. Without either the owner frees while late writes of a user are still on their way.
//! O3. [`Site::RegistryReenter`]: G4.
//!
//! # Lock order
//! The locks of who changes links, and of what was unlinked, are leaves. A walk takes none.
//!
//! # Kernel counterpart
//! The list of shrinkers since 6.7 with `shrinker_try_get` and `shrinker_free` (sem. 10.5). Differs: what would wait for
//! itself is refused, and so is a user who comes after the owner, whom Linux lets in while another one is there: two that
//! take turns would keep the owner waiting.
#![allow(unsafe_code, reason = "a list whose links are followed while they change")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use crate::lock::might_sleep;
use crate::rcu::Domain;
use crate::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::shim::{Arc, Site, Watched, raw};
use crate::{Completion, ThreadMark};

/// Elements for which there is a grace period. Under loom one: a scenario has no more.
const RETIRED: usize = if cfg!(slackwater_loom) { 1 } else { 64 };

/// What is added to the count of users once the owner has put the initial reference.
const CLOSED: u64 = 1 << 63;

/// A list of elements; see the module's head. Dropped, it gives up what is registered still.
pub struct Registry<T> {
    id: u64,
    domain: Arc<Domain>,
    head: AtomicPtr<Element<T>>,
    /// Changes with `changes` held.
    tail: AtomicPtr<Element<T>>,
    changes: raw::Mutex<()>,
    /// Unlinked (G6).
    retired: Arc<raw::Mutex<Retired<T>>>,
    /// Set inside walks (G5).
    walks: ThreadMark,
    /// As if it held them itself: used by other threads, and dropped by them.
    _owns: PhantomData<Arc<T>>,
}

/// What was registered, for who is to unregister it. Dropped, it leaves it in the registry.
#[must_use = "nothing else can unregister it"]
pub struct Registration<T> {
    registry: u64,
    element: Arc<Element<T>>,
}

struct Element<T> {
    /// G3.
    references: AtomicU64,
    next: AtomicPtr<Element<T>>,
    /// Changes with the registry's `changes` held.
    previous: AtomicPtr<Element<T>>,
    /// Nobody has a reference any more.
    is_unused: Completion,
    memory: Watched,
    value: T,
}

/// Elements that nobody can find any more: the count that the list had on each (G1).
struct Retired<T> {
    /// Unlinked since the callback was queued.
    waiting: Vec<Arc<Element<T>>>,
    /// Unlinked a grace period ago.
    over: Vec<Arc<Element<T>>>,
    is_queued: bool,
}

/// A reference of a walk to the element that it stands on.
struct Held<'e, T>(&'e Element<T>);

impl<T: Send + Sync + 'static> Registry<T> {
    /// An empty list, whose sections and grace periods are those of `domain`.
    pub fn new(domain: Arc<Domain>) -> Self {
        Self {
            id: crate::shim::unique_id(),
            domain,
            head: AtomicPtr::new(ptr::null_mut()),
            tail: AtomicPtr::new(ptr::null_mut()),
            changes: raw::Mutex::new(()),
            retired: Arc::new(raw::Mutex::new(Retired { waiting: Vec::new(), over: Vec::new(), is_queued: false })),
            walks: ThreadMark::new(),
            _owns: PhantomData,
        }
    }

    /// Adds `value` at the end. Walks use it from here on, those too that have begun.
    ///
    /// # Blocking
    /// Never, however long a walk takes. Allowed inside one.
    pub fn register(&self, value: T) -> Registration<T> {
        let element = Arc::new(Element {
            references: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            previous: AtomicPtr::new(ptr::null_mut()),
            is_unused: Completion::new(),
            memory: Watched::new(),
            value,
        });
        let listed = Arc::into_raw(Arc::clone(&element)).cast_mut(); // G1
        {
            let _changes = self.changes.lock();
            let last = self.tail.load(Ordering::Relaxed);
            element.previous.store(last, Ordering::Relaxed);
            // O1.
            self.link_behind(last).store(listed, Site::RegistryLinkRelease.order(Ordering::Release));
            self.tail.store(listed, Ordering::Relaxed);
        }
        // G3: until here a walk passes it by.
        element.references.store(1, Ordering::Relaxed);
        Registration { registry: self.id, element }
    }

    /// Takes an element away. When this returns nobody uses it, and nobody will. Its value is dropped later: with others, or
    /// with the registry (G6).
    ///
    /// # Errors
    /// The registration itself, which stays what it is, if the caller is inside a walk of this registry (G5).
    ///
    /// # Blocking
    /// For walks that are at this very element.
    ///
    /// # Panics
    /// If it was registered elsewhere; and where `debug_assertions` are on, if the caller may not sleep.
    #[track_caller]
    pub fn unregister(&self, registration: Registration<T>) -> Result<(), Registration<T>> {
        assert_eq!(registration.registry, self.id, "unregistered where it was not registered");
        if self.walks.is_set() {
            return Err(registration);
        }
        might_sleep();
        let Registration { element, .. } = registration;
        if !element.close() {
            element.is_unused.wait();
        }
        let listed = self.unlink(&element);
        drop(element);
        self.retire(listed);
        Ok(())
    }

    /// G6.
    fn retire(&self, listed: Arc<Element<T>>) {
        let (batch, over) = {
            let mut retired = self.retired.lock();
            retired.waiting.push(listed);
            let batch = if retired.is_queued { None } else { retired.next() };
            (batch, std::mem::take(&mut retired.over))
        };
        if let Some(batch) = batch {
            queue(&self.domain, &self.retired, batch);
        }
        free(over);
    }

    /// Calls `f` with each element, in the order in which they were registered. `f` may sleep, may be called by several
    /// threads at once, and may register; it may walk too.
    ///
    /// # Blocking
    /// As `f` does.
    ///
    /// # Panics
    /// As [`Domain::read_lock`] does. If `f` panics the element that it was at can be unregistered all the same.
    pub fn for_each(&self, mut f: impl FnMut(&T)) {
        let _walk = self.walks.enter();
        let mut section = self.domain.read_lock();
        let mut link = &self.head;
        loop {
            // O1.
            let element = link.load(Site::RegistryLinkAcquire.order(Ordering::Acquire));
            if element.is_null() {
                break;
            }
            // SAFETY: G1, G4 - it was found inside the section, and the section is left only with a reference to it.
            let element = unsafe { &*element };
            if let Some(held) = element.try_get() {
                drop(section);
                f(&element.value);
                // O3.
                section = Site::RegistryReenter.in_order(|| self.domain.read_lock(), || drop(held));
            }
            element.memory.access();
            link = &element.next;
        }
        drop(section);
    }

    /// Whether the calling thread is inside a walk of this registry.
    pub fn is_walking(&self) -> bool {
        self.walks.is_set()
    }

    /// The link that leads to what follows `element`, or to the first one. The caller holds `changes`.
    fn link_behind(&self, element: *mut Element<T>) -> &AtomicPtr<Element<T>> {
        if element.is_null() {
            return &self.head;
        }
        // SAFETY: G1 - it is linked, and nobody else changes that meanwhile.
        unsafe { &(*element).next }
    }

    /// Takes `element` out of the list. Returns the count that the list had on it (G1).
    fn unlink(&self, element: &Arc<Element<T>>) -> Arc<Element<T>> {
        let _changes = self.changes.lock();
        let (previous, next) = (element.previous.load(Ordering::Relaxed), element.next.load(Ordering::Relaxed));
        // O1, G2.
        self.link_behind(previous).store(next, Site::RegistryUnlinkRelease.order(Ordering::Release));
        if next.is_null() {
            self.tail.store(previous, Ordering::Relaxed);
        } else {
            // SAFETY: G1 - it is linked, and nobody else changes that meanwhile.
            unsafe { (*next).previous.store(previous, Ordering::Relaxed) };
        }
        // SAFETY: G1 - the list's count was made by `Arc::into_raw` and is given up once, here.
        unsafe { Arc::from_raw(Arc::as_ptr(element)) }
    }
}

/// Has `batch` freed after a grace period, and then what has come meanwhile (G6).
fn queue<T: Send + Sync + 'static>(
    domain: &Arc<Domain>,
    retired: &Arc<raw::Mutex<Retired<T>>>,
    batch: Vec<Arc<Element<T>>>,
) {
    let (owner, list) = (Arc::downgrade(domain), Arc::clone(retired));
    domain.call(move || {
        let next = {
            let mut retired = list.lock();
            match retired.next() {
                Some(next) => {
                    retired.over.extend(batch);
                    next
                }
                None => {
                    let over = std::mem::take(&mut retired.over);
                    drop(retired);
                    free(over);
                    return free(batch);
                }
            }
        };
        match owner.upgrade() {
            Some(domain) => queue(&domain, &list, next),
            None => free(next), // the registry is gone, and with it who walked
        }
    });
}

impl<T> Retired<T> {
    /// What the next callback is to have, if that pays.
    fn next(&mut self) -> Option<Vec<Arc<Element<T>>>> {
        self.is_queued = self.waiting.len() >= RETIRED;
        self.is_queued.then(|| std::mem::take(&mut self.waiting))
    }
}

/// Nobody stands on them any more.
fn free<T>(elements: Vec<Arc<Element<T>>>) {
    elements.iter().for_each(|element| element.memory.free());
}

impl<T> Element<T> {
    /// A reference, unless the first has not been made yet, or has been put (G3).
    fn try_get(&self) -> Option<Held<'_, T>> {
        let one_more = |references: u64| (references != 0 && references < CLOSED).then(|| references + 1);
        let taken = self.references.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.is_ok().then(|| Held(self))
    }

    /// Puts the initial reference. True if it was the last.
    fn close(&self) -> bool {
        // O2.
        let old = self.references.fetch_add(CLOSED - 1, Site::RegistryPutRelease.order(Ordering::Release));
        self.was_last(old == 1)
    }

    /// Puts another reference. True if it was the last.
    fn put(&self) -> bool {
        // O2.
        let old = self.references.fetch_sub(1, Site::RegistryPutRelease.order(Ordering::Release));
        self.was_last(old == CLOSED + 1)
    }

    fn was_last(&self, is_last: bool) -> bool {
        if is_last {
            // O2. Reads what was just written: G3.
            self.references.load(Site::RegistryPutAcquire.order(Ordering::Acquire));
        }
        is_last
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if self.0.put() {
            self.0.is_unused.complete();
        }
    }
}

impl<T> Drop for Registry<T> {
    fn drop(&mut self) {
        let mut next = self.head.load(Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: G1 - nobody walks the list any more, and each count is given up once.
            let element = unsafe { Arc::from_raw(next) };
            next = element.next.load(Ordering::Relaxed);
        }
    }
}

impl<T> Deref for Registration<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.element.value
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests;
