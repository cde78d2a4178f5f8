//! How long requests are repeated, and how many at once.
//!
//! The first attempt of a request is never held back, so a stuck object delays its own requests alone. Repeated
//! attempts share a [`Budget`]. Success refills it; when an outage has used it up, one repeated attempt at a time asks
//! the store whether it is back, and its success lets the others go.

use std::time::Duration;

use slackwater_sync::shim::atomic::{AtomicU32, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::failure::Failure;

/// How long to wait for a store.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Patience {
    /// Time limit of one attempt, apart from the time for its bytes. A hung attempt is abandoned and repeated.
    pub attempt: Duration,
    /// The slowest transfer that counts as alive.
    pub min_bytes_per_s: u64,
    /// Time limit of a request with all its attempts; the attempt that runs then may end.
    pub request: Duration,
}

impl Patience {
    /// The patience of work in the background, for which no user waits: a store may be slow and gone for a while.
    pub const LONG: Self =
        Self { attempt: Duration::from_secs(30), min_bytes_per_s: 256 << 10, request: Duration::from_secs(60) };

    /// The patience of commands: a person waits for the answer.
    pub const SHORT: Self =
        Self { attempt: Duration::from_secs(15), min_bytes_per_s: 256 << 10, request: Duration::from_secs(10) };

    /// The time limit of an attempt that moves `bytes`.
    pub(super) fn limit(&self, bytes: u64) -> Duration {
        self.attempt + Duration::from_secs_f64(bytes as f64 / self.min_bytes_per_s.max(1) as f64)
    }
}

/// How often a failure is worth another attempt.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Worth {
    /// The store or the network may recover.
    Repeat,
    /// Once: credentials may have been renewed meanwhile.
    Once,
    /// The answer will be the same.
    Never,
}

pub(super) fn worth(failure: Failure) -> Worth {
    match failure {
        Failure::Throttled | Failure::Server | Failure::Timeout | Failure::Unreachable => Worth::Repeat,
        Failure::Permission | Failure::Credentials => Worth::Once,
        Failure::ClockSkew
        | Failure::NoBucket
        | Failure::NotFound
        | Failure::Exists
        | Failure::Changed
        | Failure::NoSpace
        | Failure::Quota
        | Failure::Unsupported
        | Failure::Configuration
        | Failure::Crashed
        | Failure::Other => Worth::Never,
    }
}

/// The pause before attempt `attempt + 1`: exponential, half of it random, and longer if the store asks for a pause.
pub(super) fn pause(failure: Failure, attempt: u32) -> Duration {
    let (first, longest) = if failure == Failure::Throttled {
        (Duration::from_millis(400), Duration::from_secs(10))
    } else {
        (Duration::from_millis(50), Duration::from_secs(5))
    };
    let longest = first.saturating_mul(1 << attempt.min(16)).min(longest);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// The repeated attempts that all requests of a store share.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: AtomicU32,
    /// The one attempt that may ask whether the store is back.
    probe: Semaphore,
}

/// Repeated attempts that may be on their way before the store counts as gone.
const FULL: u32 = 100;

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: AtomicU32::new(FULL), probe: Semaphore::new(1) }
    }
}

impl Budget {
    /// Waits until a repeated attempt may start. The permit is to be kept until it has ended.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        if self.take() {
            return None;
        }
        let permit = self.probe.acquire().await.ok()?;
        // The probe before this one may have found the store back.
        if self.take() { None } else { Some(permit) }
    }

    fn take(&self) -> bool {
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| tokens.checked_sub(1)).is_ok()
    }

    /// Notes a success. True if the store was gone.
    pub(super) fn refill(&self) -> bool {
        let before = self.tokens.load(Ordering::Relaxed);
        if before < FULL {
            // The tokens of a single failure are paid back one by one, those of an outage at once.
            let more = if before == 0 { FULL / 2 } else { 1 };
            let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
                Some(tokens.saturating_add(more).min(FULL))
            });
        }
        before == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_grows_with_the_bytes() {
        assert_eq!(Patience::LONG.limit(0), Duration::from_secs(30));
        assert_eq!(Patience::LONG.limit(8 << 20), Duration::from_secs(62));
    }

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let pauses: Vec<_> = (0..1000).map(|_| pause(Failure::Server, 3)).collect();
        assert!(pauses.iter().all(|pause| (200..=400).contains(&pause.as_millis())));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        assert!(pause(Failure::Server, 100) <= Duration::from_secs(5));
        assert!(pause(Failure::Throttled, 0) > pause(Failure::Server, 0));
    }

    #[tokio::test]
    async fn one_attempt_at_a_time_asks_a_store_that_is_gone() {
        let budget = Budget::default();
        for _ in 0..FULL {
            assert!(budget.permit().await.is_none());
        }
        let probe = budget.permit().await.expect("the one probe");
        let mut next = std::pin::pin!(budget.permit());
        assert!(futures::poll!(next.as_mut()).is_pending(), "no second one");
        assert!(budget.refill(), "the store was gone");
        drop(probe);
        assert!(next.await.is_none(), "all may go");
        assert!(!budget.refill());
    }
}
