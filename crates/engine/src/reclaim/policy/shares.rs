//! Which tenant gives: who has most above its share.
//!
//! A share is an equal part of the arena for each tenant that has something cached, or a tenant's limit if that is lower. So a
//! tenant that reads through more than the cache holds takes it from itself, once it has its share, and never from one
//! that is below its own. While frames are free a share bounds nobody.

/// A tenant that may give.
struct Giver {
    /// Pages that it has cached, and that it may have before others do.
    cached: u64,
    share: u64,
}

/// See the [module documentation](self).
pub(in crate::reclaim) struct Givers(Vec<Giver>);

impl Givers {
    /// For tenants with so many pages cached, and with such a limit, in an arena of `frames`.
    pub(in crate::reclaim) fn new(tenants: impl ExactSizeIterator<Item = (u64, u64)>, frames: u64) -> Self {
        let share = frames / tenants.len().max(1) as u64;
        Self(tenants.map(|(cached, limit)| Giver { cached, share: share.min(limit) }).collect())
    }

    /// Who gives next; `None`: nobody has anything left.
    pub(in crate::reclaim) fn next(&self) -> Option<usize> {
        let above = |nth: &usize| self.0[*nth].cached as i64 - self.0[*nth].share as i64;
        (0..self.0.len()).filter(|nth| self.0[*nth].cached != 0).max_by_key(above)
    }

    /// The tenant has so many left.
    pub(in crate::reclaim) fn set(&mut self, nth: usize, cached: u64) {
        self.0[nth].cached = cached;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `count` pages, one at a time; returns what each tenant has left.
    fn take(tenants: &[(u64, u64)], frames: u64, count: u64) -> Vec<u64> {
        let mut givers = Givers::new(tenants.iter().copied(), frames);
        for _ in 0..count {
            let Some(nth) = givers.next() else { break };
            givers.set(nth, givers.0[nth].cached - 1);
        }
        givers.0.iter().map(|giver| giver.cached).collect()
    }

    const NO_LIMIT: u64 = u64::MAX;

    #[test]
    fn who_is_above_its_share_gives_and_who_is_below_keeps_what_it_has() {
        assert_eq!(take(&[(70, NO_LIMIT), (30, NO_LIMIT)], 100, 20), [50, 30]);
        assert_eq!(
            take(&[(30, NO_LIMIT), (70, NO_LIMIT)], 100, 30),
            [30, 40],
            "whoever has more above it, or less below"
        );
    }

    #[test]
    fn a_limit_below_the_share_counts() {
        assert_eq!(take(&[(60, NO_LIMIT), (40, 10)], 100, 25), [58, 17]);
    }

    #[test]
    fn one_tenant_has_all() {
        assert_eq!(take(&[(100, NO_LIMIT)], 100, 200), [0]);
        assert_eq!(Givers::new([].into_iter(), 100).next(), None);
    }
}
