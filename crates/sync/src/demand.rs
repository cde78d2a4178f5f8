//! Waiting for a resource that other threads release, without a lost wake.
//!
//! A taker that finds nothing left *raises* the demand and looks once more. A giver that releases something *checks*
//! the demand afterwards. Either the taker finds what was released, or the giver finds the demand and wakes the taker.
//!
//! ```text
//! taker                                  giver
//! if left.load() == 0 {                  left.add(n);
//!     demand.raise();                    if demand.is_raised() {
//!     if left.load() == 0 { wait }           wake the takers
//! }                                      }
//! ```
//!
//! # Memory ordering
//! O1. [`Site::DemandRaiseFence`] with [`Site::DemandLookFence`]: each side writes, then reads what the other wrote.
//!     Without either barrier, the taker may find nothing left while the giver finds no demand, and no thread wakes the
//!     taker.
//! O2. Lowering orders nothing: the thread that lowers the demand wakes all waiters afterwards.
//!
//! # Kernel counterpart
//! `waitqueue_active`, with the barrier that its users must add.

use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::{Site, const_unless_loom};

/// Whether a taker wants something; see the module documentation.
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

    /// Raises the demand. The caller looks once more before it waits.
    #[inline]
    pub fn raise(&self) {
        self.is_raised.store(true, Ordering::Relaxed);
        // O1: pairs with the barrier in `is_raised`.
        Site::DemandRaiseFence.smp_mb();
    }

    /// Whether the demand is raised, for a giver that has just released something.
    #[inline]
    #[must_use]
    pub fn is_raised(&self) -> bool {
        // O1: pairs with the barrier in `raise`.
        Site::DemandLookFence.smp_mb();
        self.is_set()
    }

    /// Whether the demand is raised, for any other thread: without the barrier of a giver.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }

    /// Lowers the demand. The caller wakes all waiters next, since one of them may have raised it just before.
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
