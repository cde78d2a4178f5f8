//! A layer that limits the bytes per second that are sent.

use std::time::Duration;

use async_trait::async_trait;
use object_store::Result;
use parking_lot::Mutex;
use tokio::time::{self, Instant};

use super::request::{Layer, Request};
use super::time::now;

/// A token bucket for sent bytes. Requests that send none pass at once; those that do go in the order in which they
/// came. A pause is credited for up to [`BURST`].
#[derive(Debug)]
pub(super) struct Limit {
    bytes_per_s: u64,
    /// When the tokens for all accepted requests have accumulated.
    paid_until: Mutex<Instant>,
}

/// Shorter pauses between requests do not lower the rate.
const BURST: Duration = Duration::from_millis(250);

impl Limit {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), paid_until: Mutex::new(now()) }
    }

    /// Takes tokens for `bytes`, and returns when they may be sent: when those of earlier requests are all there.
    fn pay(&self, now: Instant, bytes: u64) -> Instant {
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let mut paid_until = self.paid_until.lock();
        let start = now.checked_sub(BURST).map_or(*paid_until, |earliest| (*paid_until).max(earliest));
        *paid_until = start + cost;
        start
    }
}

#[async_trait]
impl Layer for Limit {
    type Note = ();

    async fn before(&self, request: &Request) -> Result<()> {
        if request.sent_bytes > 0 {
            let due = self.pay(now(), request.sent_bytes);
            time::sleep_until(due).await;
        }
        Ok(())
    }
}
