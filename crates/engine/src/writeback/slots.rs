//! Limits the units of one volume in flight: a number of slots for background units, and as many for syncs.
//!
//! # Invariants
//! B2. A slot is held from before its unit is gathered until the unit's pages are completed. Background units and units
//!     of syncs have separate slots, so neither waits for the other.
//! B3. While a wb wants a slot and has been woken for it, no other wb takes more than its fair part. (The wbs of a
//!     volume are its tenants.) A wb is refused only if it has a unit in flight or all slots are taken, so the end of
//!     some unit wakes it.
//!
//! # Lock order
//! The lock is a leaf; wbs are woken outside it.

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::units::Tick;
use crate::writeback::wb::BdiWriteback;

/// Why a unit is written, which decides whose slot it uses.
#[derive(Clone)]
pub(crate) enum UnitClass {
    /// No caller waits for it. The wb is the one that is running, which may no longer be the inode's. It holds the slot
    /// and is woken when one becomes free.
    Background(Arc<BdiWriteback>),
    /// A sync waits for it.
    Sync,
}

/// See the [module documentation](self).
pub(crate) struct Slots {
    /// Number of slots of each kind.
    count: u32,
    taken: Mutex<Taken>,
    sync_slot_freed: Condvar,
}

#[derive(Default)]
struct Taken {
    background: u32,
    sync: u32,
    /// Wbs that were refused a slot and have not run since.
    wanting: Vec<Arc<BdiWriteback>>,
}

impl Taken {
    fn want(&mut self, wb: &Arc<BdiWriteback>) {
        if !self.wanting.iter().any(|wanting| Arc::ptr_eq(wanting, wb)) {
            self.wanting.push(Arc::clone(wb));
        }
    }

    /// The most slots that `wb` may have now (B3).
    fn fair_part(&self, wb: &Arc<BdiWriteback>, count: u32) -> u32 {
        let others = self.wanting.iter().filter(|wanting| !Arc::ptr_eq(wanting, wb)).count() as u32;
        if others == 0 { count } else { (count / (others + 1)).max(1) }
    }
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self { count, taken: Mutex::new(LEAVES, Taken::default()), sync_slot_freed: Condvar::new() }
    }

    /// Background units that one inode may have in flight: all slots but one, so that a stuck file leaves a slot to the
    /// others.
    pub(crate) fn per_inode(&self) -> u32 {
        (self.count - 1).max(1)
    }

    /// `wb` is running and will take the slots it needs itself.
    pub(crate) fn note_running(&self, wb: &Arc<BdiWriteback>) {
        let mut taken = self.taken.lock();
        taken.wanting.retain(|wanting| !Arc::ptr_eq(wanting, wb));
    }

    /// Wakes `wb` when a background slot becomes free. False if all are free already.
    pub(crate) fn wake_on_free(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut taken = self.taken.lock();
        if taken.background == 0 {
            return false;
        }
        taken.want(wb);
        true
    }

    /// Takes a background slot for `wb`. If there is none, `wb` is woken when one becomes free.
    pub(crate) fn try_background(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut taken = self.taken.lock();
        let held = wb.slots_held.load(Ordering::Relaxed);
        if taken.background < self.count && held < taken.fair_part(wb, self.count) {
            taken.background += 1;
            wb.slots_held.store(held + 1, Ordering::Relaxed); // changes only under this lock
            return true;
        }
        taken.want(wb);
        false
    }

    /// Releases the slot of a unit that has ended, or for which no pages were found.
    pub(crate) fn release(&self, class: &UnitClass) {
        let UnitClass::Background(wb) = class else {
            self.taken.lock().sync -= 1;
            self.sync_slot_freed.notify_one();
            return;
        };
        let wanting = {
            let mut taken = self.taken.lock();
            taken.background -= 1;
            wb.slots_held.fetch_sub(1, Ordering::Relaxed);
            taken.wanting.clone()
        };
        wanting.iter().for_each(BdiWriteback::wake);
    }

    /// Takes a sync slot, waiting if necessary. False if `deadline` came first.
    ///
    /// # Blocking
    /// Until the backend completes a unit.
    pub(crate) fn wait_for_sync(&self, clock: &dyn Clock, deadline: Option<Tick>) -> bool {
        let mut taken = self.taken.lock();
        while taken.sync >= self.count {
            match deadline {
                None => self.sync_slot_freed.wait(&mut taken),
                Some(deadline) => {
                    let left = deadline.since(clock.now());
                    if left == Duration::ZERO {
                        return false;
                    }
                    let _ = self.sync_slot_freed.wait_timeout(&mut taken, left);
                }
            }
        }
        taken.sync += 1;
        true
    }
}
