//! Read-copy-update whose readers may sleep. It serves those forms of a mechanism in which Linux used SRCU.
//!
//! Readers are counted under the index of the current round. A grace period waits until no reader is counted under the
//! other index. It then makes that index the current one, and waits for the readers under the previous index. New
//! readers are counted where it no longer waits, so it ends however many readers arrive.
//!
//! # Invariants
//! S1. After its start, a grace period has found each count at zero once. The index under which a reader is counted
//!     affects how soon a grace period ends, not its correctness: a reader may be counted under an index that it found
//!     long ago.
//! S2. One grace period runs at a time, for all callers that arrived before it started.
//!
//! # Memory ordering
//! O1. Those of [`InFlight`]: a reader is counted, then reads pointers; a writer changes pointers, then looks at the count.
//! O2. [`Site::SrcuStragglers`] is the first of the two waits. Without it, the grace period does not wait for a reader
//!     that found the index before the last grace period and was counted after it.
//!
//! # Kernel counterpart
//! `srcu_read_lock`, `synchronize_srcu`. Differs: a count for each index, not for each index and CPU; no callbacks, and no
//! expedited form.

use std::time::Duration;

use crate::lock::might_sleep;
use crate::shim::atomic::{AtomicUsize, Ordering};
use crate::shim::{Site, raw};
use crate::{InFlight, Marked, ThreadMark};

/// A set of readers that may sleep, and the writers that wait for all of them; see the module documentation.
pub struct Srcu {
    /// The index that readers take: its lowest bit.
    index: AtomicUsize,
    readers: [InFlight; 2],
    coalesce: Duration,
    state: raw::Mutex<State>,
    changed: raw::Condvar,
    /// Set inside sections.
    sections: ThreadMark,
}

struct State {
    /// Grace periods that have started.
    started: u64,
    /// Grace periods that have ended.
    ended: u64,
    /// A thread runs one, or is about to (S2).
    is_led: bool,
}

/// An open section, until dropped. It may sleep.
#[must_use = "the section ends when the guard is dropped"]
pub struct SrcuGuard<'s> {
    readers: &'s InFlight,
    _section: Marked,
}

impl Srcu {
    /// No readers. A grace period waits for `coalesce` before it starts, so that others may join.
    pub fn new(coalesce: Duration) -> Self {
        Self {
            index: AtomicUsize::new(0),
            readers: [InFlight::new(), InFlight::new()],
            coalesce,
            state: raw::Mutex::new(State { started: 0, ended: 0, is_led: false }),
            changed: raw::Condvar::new(),
            sections: ThreadMark::new(),
        }
    }

    /// Opens a section.
    ///
    /// # Blocking
    /// Never. Unlike with a [`Domain`](super::Domain) the section may sleep.
    pub fn read_lock(&self) -> SrcuGuard<'_> {
        let readers = &self.readers[self.index.load(Ordering::Relaxed) & 1];
        readers.pin(); // O1
        SrcuGuard { readers, _section: self.sections.enter() }
    }

    /// Waits for a grace period.
    ///
    /// # Blocking
    /// Until every section open now has ended, including the sleeps in them, and for the time that it waits for others
    /// to join.
    ///
    /// # Panics
    /// Inside a section of the same `Srcu`; and where `debug_assertions` are on, if the caller may not sleep.
    #[track_caller]
    pub fn synchronize(&self) {
        assert!(!self.sections.is_set(), "waiting for a grace period inside a read section would never end");
        might_sleep();
        let mut now = self.state.lock();
        let wanted = now.started + 1; // S2
        while now.ended < wanted {
            if now.is_led {
                self.changed.wait(&mut now);
                continue;
            }
            now.is_led = true;
            if !self.coalesce.is_zero() {
                self.changed.wait_timeout(&mut now, self.coalesce);
            }
            now.started += 1;
            drop(now);
            self.run_grace();
            now = self.state.lock();
            now.ended += 1;
            now.is_led = false;
            self.changed.notify_all();
        }
    }

    /// S1.
    fn run_grace(&self) {
        let current = self.index.load(Ordering::Relaxed) & 1;
        // O2.
        Site::SrcuStragglers.step(|| self.readers[1 - current].drain());
        self.index.store(1 - current, Ordering::Relaxed);
        self.readers[current].drain();
    }
}

impl Drop for SrcuGuard<'_> {
    fn drop(&mut self) {
        self.readers.unpin();
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;
    use crate::shim::atomic::{AtomicBool, AtomicU64};
    use crate::shim::{Arc, thread};

    #[test]
    fn a_grace_period_waits_for_a_section_that_sleeps() {
        let srcu = Arc::new(Srcu::new(Duration::ZERO));
        let has_ended = Arc::new(AtomicBool::new(false));
        let section = srcu.read_lock();
        let writer = thread::spawn({
            let (srcu, has_ended) = (Arc::clone(&srcu), Arc::clone(&has_ended));
            move || {
                srcu.synchronize();
                has_ended.store(true, Ordering::Release);
            }
        });
        while srcu.state.lock().started == 0 {
            thread::yield_now();
        }
        assert!(!has_ended.load(Ordering::Acquire));
        drop(section);
        writer.join().unwrap();
        assert!(has_ended.load(Ordering::Acquire));
    }

    #[test]
    fn a_grace_period_ends_although_new_readers_keep_arriving() {
        let srcu = Arc::new(Srcu::new(Duration::ZERO));
        let is_over = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (srcu, is_over) = (Arc::clone(&srcu), Arc::clone(&is_over));
                thread::spawn(move || {
                    let mut section = srcu.read_lock();
                    while !is_over.load(Ordering::Relaxed) {
                        section = srcu.read_lock(); // before the one that it replaces ends
                        thread::yield_now();
                    }
                    drop(section);
                })
            })
            .collect();
        (0..20).for_each(|_| srcu.synchronize());
        is_over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }

    #[test]
    fn writers_share_grace_periods_and_each_gets_one() {
        let srcu = Arc::new(Srcu::new(Duration::from_millis(1)));
        let calls = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let (srcu, calls) = (Arc::clone(&srcu), Arc::clone(&calls));
                thread::spawn(move || {
                    for _ in 0..20 {
                        let before = srcu.state.lock().started;
                        srcu.synchronize();
                        assert!(srcu.state.lock().ended > before);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(srcu.state.lock().ended <= calls.load(Ordering::Relaxed));
    }

    #[test]
    #[should_panic(expected = "would never end")]
    fn waiting_inside_a_section_is_refused() {
        let srcu = Srcu::new(Duration::ZERO);
        let _section = srcu.read_lock();
        srcu.synchronize();
    }
}
