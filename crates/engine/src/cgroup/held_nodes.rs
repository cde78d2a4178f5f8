//! Backend nodes that must stay open because nothing leads to them any more. They are counted against the tenants that
//! have the files open.
//!
//! # Invariants
//! H1. A hold counts in the total and for one tenant, until it is dropped.
//! H2. A tenant may take a hold only while it has fewer than are left. So a single tenant gets half of all and leaves
//!     half to the others. Where no tenants are configured, each volume counts as one.
//!
//! # Kernel counterpart
//! `files_stat.max_files`, which is one limit for the whole system.

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU32, Ordering};

/// The number of nodes that a tenant holds.
#[derive(Clone, Default)]
pub(crate) struct HeldCount(Arc<AtomicU32>);

impl HeldCount {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The total held by all tenants of an engine.
pub(crate) struct HeldNodes {
    all: HeldCount,
    max: u32,
}

/// A node held open (H1).
pub(crate) struct Hold {
    all: HeldCount,
    of_tenant: HeldCount,
}

impl HeldNodes {
    pub(crate) fn new(max: u32) -> Self {
        Self { all: HeldCount::default(), max }
    }

    /// Whether a tenant that holds `of_tenant` may hold one more.
    pub(crate) fn may_hold_more(&self, of_tenant: &HeldCount) -> bool {
        of_tenant.get() < self.max.saturating_sub(self.all.get())
    }

    /// Takes one more for a tenant, if it may (H2).
    pub(crate) fn try_hold(&self, of_tenant: &HeldCount) -> Option<Hold> {
        let hold = Hold { all: self.all.clone(), of_tenant: of_tenant.clone() };
        let all = hold.all.0.fetch_add(1, Ordering::Relaxed);
        let own = hold.of_tenant.0.fetch_add(1, Ordering::Relaxed);
        (own < self.max.saturating_sub(all)).then_some(hold)
    }
}

impl Hold {
    pub(crate) fn is_of(&self, tenant: &HeldCount) -> bool {
        Arc::ptr_eq(&self.of_tenant.0, &tenant.0)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.of_tenant.0.fetch_sub(1, Ordering::Relaxed);
        self.all.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greedy_tenant_leaves_some_to_every_other() {
        let held = HeldNodes::new(64);
        let tenants: Vec<_> = (0..4).map(|_| HeldCount::default()).collect();
        let take_all = |tenant| std::iter::from_fn(|| held.try_hold(tenant)).collect::<Vec<_>>();
        let holds: Vec<_> = tenants.iter().map(take_all).collect();
        assert_eq!(holds.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8, 4]);
        assert!(!held.may_hold_more(&tenants[0]) && held.try_hold(&tenants[0]).is_none());
        assert_eq!(tenants.iter().map(HeldCount::get).collect::<Vec<_>>(), [32, 16, 8, 4], "a refusal is not counted");
        drop(holds);
        assert_eq!((held.all.get(), tenants[0].get()), (0, 0));
    }
}
