//! How many units of one volume are in flight: a number of slots for background units, and as many for syncs.
//!
//! # Invariants
//! B2. A slot is held from before a unit is gathered until its completion has run. Background units and
//!     those of syncs have slots of their own, so neither waits for the other.
//! B3. While a wb wants a slot and has been woken for it, no other wb takes more than its fair part of them: the wbs of a
//!     volume are its tenants. A wb that is refused has a unit in flight, or all slots are taken; so the end of some unit
//!     wakes it.
//!
//! # Lock order
//! A leaf; wbs are woken outside it.

use std::time::Duration;

use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::clock::Clock;
use crate::lock_order::LEAVES;
use crate::units::Tick;
use crate::writeback::wb::BdiWriteback;

/// Who a unit is written for.
#[derive(Clone)]
pub(crate) enum UnitClass {
    /// Nobody waits for it. The wb that runs, which need not be the inode's any more: its slot it is, and it is woken when
    /// one comes free.
    Background(Arc<BdiWriteback>),
    /// A sync waits for it.
    Sync,
}

/// See the [module documentation](self).
pub(crate) struct Slots {
    /// Of each kind.
    count: u32,
    taken: Mutex<Taken>,
    sync_slot_freed: Condvar,
}

#[derive(Default)]
struct Taken {
    background: u32,
    sync: u32,
    /// They were refused a slot, and have not run since.
    wanting: Vec<Arc<BdiWriteback>>,
}

impl Taken {
    fn want(&mut self, wb: &Arc<BdiWriteback>) {
        if !self.wanting.iter().any(|wanting| Arc::ptr_eq(wanting, wb)) {
            self.wanting.push(Arc::clone(wb));
        }
    }

    /// Most slots that `wb` may have now (B3).
    fn fair_part(&self, wb: &Arc<BdiWriteback>, count: u32) -> u32 {
        let others = self.wanting.iter().filter(|wanting| !Arc::ptr_eq(wanting, wb)).count() as u32;
        if others == 0 { count } else { (count / (others + 1)).max(1) }
    }
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self { count, taken: Mutex::new(LEAVES, Taken::default()), sync_slot_freed: Condvar::new() }
    }

    /// Background units one inode may have in flight: all but one, so that a stuck file leaves a slot.
    pub(crate) fn per_inode(&self) -> u32 {
        (self.count - 1).max(1)
    }

    /// `wb` runs: it takes what it wants itself.
    pub(crate) fn runs(&self, wb: &Arc<BdiWriteback>) {
        let mut taken = self.taken.lock();
        taken.wanting.retain(|wanting| !Arc::ptr_eq(wanting, wb));
    }

    /// Has `wb` woken when a background slot comes free. False if all are free already.
    pub(crate) fn wake_on_free(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut taken = self.taken.lock();
        if taken.background == 0 {
            return false;
        }
        taken.want(wb);
        true
    }

    /// Takes a background slot for `wb`; without one, it is woken when one comes free.
    pub(crate) fn try_background(&self, wb: &Arc<BdiWriteback>) -> bool {
        let mut taken = self.taken.lock();
        let held = wb.slots_held.load(Ordering::Relaxed);
        if taken.background < self.count && held < taken.fair_part(wb, self.count) {
            taken.background += 1;
            wb.slots_held.store(held + 1, Ordering::Relaxed); // it changes under this lock only
            return true;
        }
        taken.want(wb);
        false
    }

    /// A unit has ended, or nothing was found for its slot.
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

    /// Waits for a slot of a sync; false when `deadline` came first.
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
