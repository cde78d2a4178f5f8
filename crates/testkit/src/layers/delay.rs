//! A layer that delays every call before it passes it on.
//!
//! The delay is the same for each call of a kind, whatever else is in flight: it models latency, not bandwidth (see
//! [`Rate`](super::Rate) for that). Calls without a delay pass at once, on the caller's thread.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use slackwater::Clock;
use slackwater::backend::{Backend, Call, Limits, Node, NodeSupply};
use slackwater_backends::SystemClock;
use slackwater_sync::shim::Arc;

use super::timer::Timer;

/// Fixed latency in front of a backend. Dropping it abandons the calls it still holds.
pub struct Delay {
    inner: Arc<dyn Backend>,
    otherwise: Duration,
    by_name: HashMap<&'static str, Duration>,
    timer: Timer,
}

impl Delay {
    /// A layer without delays yet.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, otherwise: Duration::ZERO, by_name: HashMap::new(), timer: Timer::new() }
    }

    /// Delays each call that [`Delay::on`] does not name.
    #[must_use]
    pub fn each(self, delay: Duration) -> Self {
        Self { otherwise: delay, ..self }
    }

    /// Delays calls of one kind, by [`Call::name`].
    #[must_use]
    pub fn on(mut self, name: &'static str, delay: Duration) -> Self {
        self.by_name.insert(name, delay);
        self
    }

    fn delay_of(&self, call: &Call) -> Duration {
        *self.by_name.get(call.name()).unwrap_or(&self.otherwise)
    }
}

impl Backend for Delay {
    fn submit(&self, call: Call) {
        let delay = self.delay_of(&call);
        if delay.is_zero() {
            return self.inner.submit(call);
        }
        let inner = self.inner.clone();
        self.timer.at(SystemClock.now() + delay, move || inner.submit(call));
    }

    fn submit_and_wait(&self, call: Call) {
        match self.delay_of(&call).is_zero() {
            true => self.inner.submit_and_wait(call),
            false => self.submit(call),
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
    use std::sync::mpsc;

    use slackwater::backend::{Done, MemBackend};
    use slackwater::{BackendError, ErrorKind};

    use super::*;

    fn sync_volume(backend: &Delay) -> mpsc::Receiver<Result<(), BackendError>> {
        let (send, answers) = mpsc::channel();
        let done = Done::new(move |answer| send.send(answer).expect("the test waits"));
        backend.submit(Call::SyncVolume { done });
        answers
    }

    #[test]
    fn a_call_takes_at_least_its_delay_and_others_none() {
        let delay = Duration::from_millis(20);
        let backend = Delay::new(Arc::new(MemBackend::new())).on("sync_volume", delay);
        let start = SystemClock.now();
        let slow = sync_volume(&backend);
        let (send, answers) = mpsc::channel();
        backend.submit(Call::Root { done: Done::new(move |root| send.send(root).expect("the test waits")) });
        answers.try_recv().expect("answered inside submit").expect("a volume has a root");
        slow.recv().expect("answered").expect("nothing was lost");
        assert!(SystemClock.now().since(start) >= delay);
    }

    #[test]
    fn a_caller_that_waits_is_delayed_too() {
        let delay = Duration::from_millis(20);
        let backend = Delay::new(Arc::new(MemBackend::new())).on("sync_volume", delay);
        let (send, answers) = mpsc::channel();
        let start = SystemClock.now();
        let done = Done::new(move |answer| send.send(answer).expect("the test waits"));
        backend.submit_and_wait(Call::SyncVolume { done });
        answers.recv().expect("answered").expect("nothing was lost");
        assert!(SystemClock.now().since(start) >= delay);
    }

    #[test]
    fn calls_in_flight_are_abandoned_with_the_layer() {
        let backend = Delay::new(Arc::new(MemBackend::new())).each(Duration::from_secs(3600));
        let answer = sync_volume(&backend);
        drop(backend);
        let error = answer.recv().expect("answered").expect_err("abandoned");
        assert_eq!(error.kind(), ErrorKind::Abandoned);
    }
}
