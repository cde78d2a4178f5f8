//! A limit of the bytes per second that are sent.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{self, Instant};

use super::time::now;

/// A token bucket for sent bytes. A pause is credited for up to [`BURST`].
///
/// The wait comes before a request and its time limits: a request that waits for its turn has not failed. Tokens are
/// taken at the end of the wait, so a request that is given up takes none.
#[derive(Debug)]
pub(super) struct Limit {
    bytes_per_s: u64,
    /// When the tokens for all requests so far have accumulated.
    paid_until: Mutex<Instant>,
    /// Held by the request that waits for tokens: the others wait for it, in the order in which they came.
    turn: tokio::sync::Mutex<()>,
}

/// Shorter pauses between requests do not lower the rate.
const BURST: Duration = Duration::from_millis(250);
/// Requests of at most this size do not wait, so a commit does not wait for the data of other files. Later requests wait
/// for their tokens too.
const SMALL_BYTES: u64 = 64 << 10;

impl Limit {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self { bytes_per_s: bytes_per_s.max(1), paid_until: Mutex::new(now()), turn: tokio::sync::Mutex::default() }
    }

    /// Waits until a request may send `bytes`, and takes tokens for them.
    pub(super) async fn wait(&self, bytes: u64) {
        if bytes <= SMALL_BYTES {
            return self.pay(bytes);
        }
        let _turn = self.turn.lock().await;
        loop {
            let due = *self.paid_until.lock();
            if due <= now() {
                return self.pay(bytes);
            }
            time::sleep_until(due).await;
        }
    }

    fn pay(&self, bytes: u64) {
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let mut paid_until = self.paid_until.lock();
        let start = now().checked_sub(BURST).map_or(*paid_until, |earliest| (*paid_until).max(earliest));
        *paid_until = start + cost;
    }
}
