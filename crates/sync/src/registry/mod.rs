//! A list that is walked without a lock. Unregistering an element waits for the users of that element only.
//!
//! ```text
//! walk                                         unregister
//! for each element, inside a read section:     close it, and put the initial reference
//!     take a reference, unless it is closed    wait until no other is left
//!     leave the section, use the element       unlink
//!     enter the section again, put             free, with others, after a grace period
//! ```
//!
//! An element is used outside the section, so its users may sleep and take as long as they need. They do not delay
//! threads that register or that unregister another element.
//!
//! # Invariants
//! G1. The list has a count of its own on each element, which it gives up a grace period after the element was
//!     unlinked. So an element found inside a section, and its link, exist until the end of the section.
//! G2. An unlinked element keeps its link. A walk that has reached it continues to an element that was in the list when
//!     the walk's section began, or later.
//! G3. `references` goes from zero to one when the element is linked. References are taken while it is neither zero nor
//!     CLOSED; once CLOSED, it stays so. The put of the last reference then lets the element's `unregister` continue,
//!     and no thread uses the element after that.
//! G4. A walk is inside a section again before it puts the reference to its current element: then G1 holds for the next
//!     element too. Otherwise the element, and the next, might be freed before the walk has read its link.
//! G5. A thread inside a walk unregisters nothing in that registry. It may hold the very element, or another thread
//!     inside a walk may wait for an element that it holds.
//!
//! G6. Unlinked elements are freed after a grace period that starts afterwards. [`RETIRED`] elements share one, so a
//!     registry with few changes needs no grace period and starts no thread. One callback at a time holds the elements
//!     that had been unlinked when it was queued. After its grace period they are freed by the thread that unregisters
//!     next, which probably allocated them, or by the callback itself if too few elements were unregistered meanwhile
//!     for another callback. The rest are freed with the registry.
//!
//! # Memory ordering
//! O1. [`Site::RegistryLinkRelease`] and [`Site::RegistryUnlinkRelease`] with [`Site::RegistryLinkAcquire`]: a walk
//!     sees the value of a registered element, whether it followed the link that `register` set or one that
//!     `unregister` moved there. The initial reference is set after the link and needs no order: it states that the
//!     element may be used, not what its value is.
//! O2. [`Site::RegistryPutRelease`] with [`Site::RegistryPutAcquire`]: everything done under any reference happens
//!     before `unregister` returns. Without either, the owner may free the value while late writes of a user are still
//!     in flight.
//! O3. [`Site::RegistryReenter`]: G4.
//!
//! # Lock order
//! The lock for changes of links and the lock for unlinked elements are leaves. A walk takes neither.
//!
//! # Kernel counterpart
//! The list of shrinkers since 6.7 with `shrinker_try_get` and `shrinker_free`. Differs: a call that would
//! wait for itself is refused. So is a new user after the owner has closed the element; Linux admits one while another
//! user is left, so two users that take turns could keep the owner waiting.
#![allow(unsafe_code, reason = "a list whose links are followed while they change")]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use crate::lock::might_sleep;
use crate::rcu::Domain;
use crate::shim::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::shim::{Arc, Site, Watched, raw};
use crate::{Completion, ThreadMark};

/// How many unlinked elements share a grace period. One under loom: a scenario has no more.
const RETIRED: usize = if cfg!(slackwater_loom) { 1 } else { 64 };

/// Added to the count of references when the owner has put the initial reference.
const CLOSED: u64 = 1 << 63;

/// A list of elements; see the module documentation. When dropped, it gives up the elements that are still registered.
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
    /// A marker for the auto traits: elements are used and dropped by other threads.
    _owns: PhantomData<Arc<T>>,
}

/// A registered element, for the owner to unregister. If this is dropped, the element stays in the registry.
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
    /// Complete when the last reference was put.
    is_unused: Completion,
    memory: Watched,
    value: T,
}

/// Elements that can no longer be found: the count that the list had on each (G1).
struct Retired<T> {
    /// Unlinked since the callback was queued.
    waiting: Vec<Arc<Element<T>>>,
    /// Unlinked a grace period ago.
    over: Vec<Arc<Element<T>>>,
    is_queued: bool,
}

/// The reference of a walk to its current element.
struct Held<'e, T>(&'e Element<T>);

impl<T: Send + Sync + 'static> Registry<T> {
    /// An empty list that uses the sections and grace periods of `domain`.
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

    /// Adds `value` at the end. Walks use it from here on, including those that have begun.
    ///
    /// # Blocking
    /// Never, however long a walk takes. Allowed inside a walk.
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
        // G3: until here a walk skips it.
        element.references.store(1, Ordering::Relaxed);
        Registration { registry: self.id, element }
    }

    /// Removes an element. When this returns, no thread uses it or will use it. Its value is dropped later: with
    /// others, or with the registry (G6).
    ///
    /// # Errors
    /// The unchanged registration, if the caller is inside a walk of this registry (G5).
    ///
    /// # Blocking
    /// For walks that are using this very element.
    ///
    /// # Panics
    /// If it was registered in another registry; and where `debug_assertions` are on, if the caller may not sleep.
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
    /// threads at once, and may register and walk.
    ///
    /// # Blocking
    /// As `f` does.
    ///
    /// # Panics
    /// As [`Domain::read_lock`] does. If `f` panics, its element can still be unregistered.
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

    /// The link behind `element`, or the one to the first element. The caller holds `changes`.
    fn link_behind(&self, element: *mut Element<T>) -> &AtomicPtr<Element<T>> {
        if element.is_null() {
            return &self.head;
        }
        // SAFETY: G1 - it is linked, and `changes` is held, so it stays linked.
        unsafe { &(*element).next }
    }

    /// Removes `element` from the list. Returns the count that the list had on it (G1).
    fn unlink(&self, element: &Arc<Element<T>>) -> Arc<Element<T>> {
        let _changes = self.changes.lock();
        let (previous, next) = (element.previous.load(Ordering::Relaxed), element.next.load(Ordering::Relaxed));
        // O1, G2.
        self.link_behind(previous).store(next, Site::RegistryUnlinkRelease.order(Ordering::Release));
        if next.is_null() {
            self.tail.store(previous, Ordering::Relaxed);
        } else {
            // SAFETY: G1 - it is linked, and `changes` is held, so it stays linked.
            unsafe { (*next).previous.store(previous, Ordering::Relaxed) };
        }
        // SAFETY: G1 - the list's count was made by `Arc::into_raw` and is given up once, here.
        unsafe { Arc::from_raw(Arc::as_ptr(element)) }
    }
}

/// Queues `batch` to be freed after a grace period, and then the elements unlinked during it (G6).
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
            None => free(next), // the domain is gone, and with it every walk
        }
    });
}

impl<T> Retired<T> {
    /// The elements for the next callback, if there are enough.
    fn next(&mut self) -> Option<Vec<Arc<Element<T>>>> {
        self.is_queued = self.waiting.len() >= RETIRED;
        self.is_queued.then(|| std::mem::take(&mut self.waiting))
    }
}

/// Frees elements that no walk can have reached.
fn free<T>(elements: Vec<Arc<Element<T>>>) {
    elements.iter().for_each(|element| element.memory.free());
}

impl<T> Element<T> {
    /// A reference, unless the initial one has not been set yet or has been put (G3).
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
            // O2. Reads the value just written: G3.
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
            // SAFETY: G1 - no walk is left, and each count is given up once.
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
