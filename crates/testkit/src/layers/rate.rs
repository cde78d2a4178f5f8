//! A layer that limits the bytes per second, like a disk or a network link.
//!
//! Reads and writes share one bucket of tokens. A unit is passed on once there are tokens for its bytes: the bucket
//! refills at the rate, and holds a burst that may be spent at once after a pause. A fixed latency is added to every
//! call.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use slackwater::backend::{Backend, Call, Limits, Node, NodeSupply};
use slackwater::{Clock, Tick};
use slackwater_backends::SystemClock;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use super::timer::Timer;
use crate::LAYER;

/// Limited throughput in front of a backend. Dropping it abandons the calls it still holds.
pub struct Rate {
    inner: Arc<dyn Backend>,
    bytes_per_s: u64,
    burst: Duration,
    latency: Duration,
    /// The time at which there will be tokens for the last accepted unit.
    paid_until: Mutex<Tick>,
    timer: Timer,
}

impl Rate {
    /// A layer of `bytes_per_s` without burst or latency.
    ///
    /// # Panics
    /// If `bytes_per_s` is 0: no unit would ever pass.
    pub fn new(inner: Arc<dyn Backend>, bytes_per_s: u64) -> Self {
        assert!(bytes_per_s > 0, "a rate of zero lets nothing through");
        Self {
            inner,
            bytes_per_s,
            burst: Duration::ZERO,
            latency: Duration::ZERO,
            paid_until: Mutex::new(LAYER, Tick(0)),
            timer: Timer::new(),
        }
    }

    /// Lets `burst_bytes` pass at once after a pause in which as many tokens have accumulated.
    #[must_use]
    pub fn burst(self, burst_bytes: u64) -> Self {
        Self { burst: self.cost(burst_bytes), ..self }
    }

    /// Delays every call by a further `latency`.
    #[must_use]
    pub fn latency(self, latency: Duration) -> Self {
        Self { latency, ..self }
    }

    fn cost(&self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Takes tokens for `bytes`, and returns when they may pass.
    fn pay(&self, now: Tick, bytes: usize) -> Tick {
        if bytes == 0 {
            return now;
        }
        let mut paid_until = self.paid_until.lock();
        *paid_until = (*paid_until).max(now) + self.cost(bytes as u64);
        (*paid_until - self.burst).max(now)
    }

    /// Passes `call` on when it is due, or returns it if that is now.
    fn hold_back(&self, call: Call) -> Option<Call> {
        let bytes = call.range_bytes().map_or(0, |(_, len_bytes)| len_bytes);
        let now = SystemClock.now();
        let due = self.pay(now, bytes) + self.latency;
        if due == now {
            return Some(call);
        }
        let inner = self.inner.clone();
        self.timer.at(due, move || inner.submit(call));
        None
    }
}

impl Backend for Rate {
    fn submit(&self, call: Call) {
        if let Some(call) = self.hold_back(call) {
            self.inner.submit(call);
        }
    }

    fn submit_and_wait(&self, call: Call) {
        if let Some(call) = self.hold_back(call) {
            self.inner.submit_and_wait(call);
        }
    }

    fn settle(&self) {
        self.inner.settle();
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn node_supply(&self) -> NodeSupply {
        self.inner.node_supply()
    }

    fn descriptor(&self, node: &Node) -> Option<OwnedFd> {
        self.inner.descriptor(node)
    }

    fn last_path(&self, node: &Node) -> Option<PathBuf> {
        self.inner.last_path(node)
    }
}

#[cfg(test)]
mod tests {
    use slackwater::backend::{Done, MemBackend};

    use super::*;

    const NOW: Tick = Tick(5_000_000_000);

    fn rate(bytes_per_s: u64) -> Rate {
        Rate::new(Arc::new(MemBackend::new()), bytes_per_s)
    }

    #[test]
    fn bytes_pass_at_the_rate_however_many_are_submitted_at_once() {
        let rate = rate(1000);
        let due: Vec<_> = (0..3).map(|_| rate.pay(NOW, 500).since(NOW)).collect();
        assert_eq!(due, [500, 1000, 1500].map(Duration::from_millis));
    }

    #[test]
    fn a_pause_allows_one_burst_only() {
        let rate = rate(1000).burst(1000);
        assert_eq!(rate.pay(NOW, 1000), NOW);
        assert_eq!(rate.pay(NOW, 500).since(NOW), Duration::from_millis(500));
        let later = NOW + Duration::from_secs(3600);
        assert_eq!(rate.pay(later, 1000), later);
        assert_eq!(rate.pay(later, 1000).since(later), Duration::from_secs(1));
    }

    #[test]
    fn a_caller_that_waits_has_the_latency_too() {
        let latency = Duration::from_millis(20);
        let rate = rate(1000).latency(latency);
        let (send, answers) = std::sync::mpsc::channel();
        let start = SystemClock.now();
        let done = Done::new(move |answer| send.send(answer).expect("the test waits"));
        rate.submit_and_wait(Call::SyncVolume { done });
        answers.recv().expect("answered").expect("nothing was lost");
        assert!(SystemClock.now().since(start) >= latency);
    }

    #[test]
    fn calls_without_bytes_take_no_tokens() {
        let rate = rate(1);
        rate.pay(NOW, 1000);
        assert_eq!(rate.pay(NOW, 0), NOW);
    }
}
