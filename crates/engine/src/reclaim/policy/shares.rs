//! Chooses the tenant to evict from: the one furthest above its share.
//!
//! A share is an equal part of the arena for each tenant that has cached pages, or the tenant's limit if that is lower.
//! So a tenant that reads more than fits in the cache evicts its own pages once it has its share, and never those of a
//! tenant below its share. While frames are free, shares limit no tenant.

/// A tenant that may be evicted from.
struct Victim {
    /// The tenant's cached pages, and its share.
    cached: u64,
    share: u64,
}

/// See the [module documentation](self).
pub(in crate::reclaim) struct Victims(Vec<Victim>);

impl Victims {
    /// The tenants, given by their cached pages and limits, in an arena of `frames`.
    pub(in crate::reclaim) fn new(tenants: impl ExactSizeIterator<Item = (u64, u64)>, frames: u64) -> Self {
        let share = frames / tenants.len().max(1) as u64;
        Self(tenants.map(|(cached, limit)| Victim { cached, share: share.min(limit) }).collect())
    }

    /// The tenant to evict from next; `None` if no pages are left.
    pub(in crate::reclaim) fn next(&self) -> Option<usize> {
        let above = |nth: &usize| self.0[*nth].cached as i64 - self.0[*nth].share as i64;
        (0..self.0.len()).filter(|nth| self.0[*nth].cached != 0).max_by_key(above)
    }

    /// Updates the tenant's cached pages.
    pub(in crate::reclaim) fn set(&mut self, nth: usize, cached: u64) {
        self.0[nth].cached = cached;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` pages, one at a time. Returns what each tenant has left.
    fn take(tenants: &[(u64, u64)], frames: u64, count: u64) -> Vec<u64> {
        let mut victims = Victims::new(tenants.iter().copied(), frames);
        for _ in 0..count {
            let Some(nth) = victims.next() else { break };
            victims.set(nth, victims.0[nth].cached - 1);
        }
        victims.0.iter().map(|victim| victim.cached).collect()
    }

    const NO_LIMIT: u64 = u64::MAX;

    #[test]
    fn tenants_above_their_share_give_and_those_below_keep_their_pages() {
        assert_eq!(take(&[(70, NO_LIMIT), (30, NO_LIMIT)], 100, 20), [50, 30]);
        assert_eq!(
            take(&[(30, NO_LIMIT), (70, NO_LIMIT)], 100, 30),
            [30, 40],
            "the tenant with more above its share, or less below it"
        );
    }

    #[test]
    fn a_limit_below_the_share_counts() {
        assert_eq!(take(&[(60, NO_LIMIT), (40, 10)], 100, 25), [58, 17]);
    }

    #[test]
    fn a_single_tenant_has_the_whole_arena() {
        assert_eq!(take(&[(100, NO_LIMIT)], 100, 200), [0]);
        assert_eq!(Victims::new([].into_iter(), 100).next(), None);
    }
}
