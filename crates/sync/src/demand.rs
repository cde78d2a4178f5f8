//! Wanting what others give back, without missing it.
//!
//! Who finds nothing left *raises* the demand and looks once more. Who gives something back *looks for* the demand
//! afterwards. Either the one finds what was given, or the other finds the demand, and tells.
//!
//! ```text
//! taker                                  giver
//! if left.load() == 0 {                  left.add(n);
//!     demand.raise();                    if demand.is_raised() {
//!     if left.load() == 0 { wait }           wake who waits
//! }                                      }
//! ```
//!
//! # Memory ordering
//! O1. [`Site::DemandRaiseFence`] with [`Site::DemandLookFence`]: each side writes, then reads what the other wrote. Without
//!     either barrier the taker may find nothing left and the giver no demand: nobody wakes the taker.
//! O2. Lowering orders nothing: who lowers tells all who wait, afterwards.
//!
//! # Kernel counterpart
//! `waitqueue_active` and the barrier that its users owe.

use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::{Site, const_unless_loom};

/// Whether something is wanted; see the module's head.
pub struct Demand {
    is_raised: AtomicBool,
}

impl Demand {
    const_unless_loom! {
        /// Not raised.
        pub const fn new() -> Self {
            Self { is_raised: AtomicBool::new(false) }
        }
    }

    /// Says that something is wanted. The caller looks for it once more before it waits.
    #[inline]
    pub fn raise(&self) {
        self.is_raised.store(true, Ordering::Relaxed);
        // O1: pairs with the barrier in `is_raised`.
        Site::DemandRaiseFence.smp_mb();
    }

    /// Whether something is wanted, for who has just given some of it back.
    #[inline]
    #[must_use]
    pub fn is_raised(&self) -> bool {
        // O1: pairs with the barrier in `raise`.
        Site::DemandLookFence.smp_mb();
        self.is_set()
    }

    /// Whether something is wanted, for anybody else.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }

    /// Nothing is wanted any more. The caller tells all who wait next, since one of them may have raised it just before.
    #[inline]
    pub fn lower(&self) {
        self.is_raised.store(false, Ordering::Relaxed);
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(slackwater_loom, slackwater_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_raised_until_it_is_lowered() {
        let demand = Demand::new();
        assert!(!demand.is_raised());
        demand.raise();
        demand.raise();
        assert!(demand.is_raised() && demand.is_set());
        demand.lower();
        assert!(!demand.is_raised() && !demand.is_set());
    }
}
