//! Durations of unmounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the buckets: from a volume with nothing to flush to one that fills a slow disk.
const SECONDS: [f64; 10] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Durations of unmounts from request to end, and the number of failures. Clones share their figures.
#[derive(Clone, Debug)]
pub(crate) struct Unmounts {
    pub(super) seconds: Histogram,
    failures: Arc<AtomicU64>,
}

impl Default for Unmounts {
    fn default() -> Self {
        Self { seconds: Histogram::new(SECONDS), failures: Arc::default() }
    }
}

impl Unmounts {
    /// Performs an unmount and counts it.
    ///
    /// # Errors
    /// Those of `unmount`.
    pub(crate) fn time<T, E>(&self, unmount: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let begun = Instant::now();
        let outcome = unmount();
        match outcome {
            Ok(_) => self.seconds.observe(begun.elapsed().as_secs_f64()),
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        outcome
    }

    /// Failed unmounts: the volume was in use, or the deadline passed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
