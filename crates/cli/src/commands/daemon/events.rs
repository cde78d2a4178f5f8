//! The events of a daemon, for its listeners.
//!
//! # Invariants
//! E1. The sender of an event never waits. A listener that is too slow misses events and learns how many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slackwater_control::exit::Failure;
use slackwater_control::protocol::{Event, EventKind, Reply};

/// Events that are queued for a listener.
const QUEUE: usize = 256;
/// How often an idle listener gets a sign of life, which also shows whether it is still there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Events {
    listeners: Mutex<Vec<Listener>>,
}

struct Listener {
    queue: SyncSender<Event>,
    missed: Arc<AtomicU64>,
}

impl Events {
    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        // A thread that panicked here has sent the event to some listeners only.
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an event to all listeners. `name` is the name of a volume.
    pub(crate) fn send(&self, what: EventKind, name: Option<&str>, text: impl Into<String>) {
        let event = event(what, name, text.into());
        self.listeners().retain(|listener| match listener.queue.try_send(event.clone()) {
            Ok(()) => true,
            Err(std::sync::mpsc::TrySendError::Full(_)) => {
                listener.missed.fetch_add(1, Ordering::Relaxed); // E1
                true
            }
            Err(std::sync::mpsc::TrySendError::Disconnected(_)) => false,
        });
    }

    /// Reports an unmount of `name`, performs it, and reports a failure.
    pub(crate) fn report_umount<T>(
        &self,
        name: &str,
        umount: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.send(EventKind::Unmounting, Some(name), "");
        umount().inspect_err(|failure| self.send(EventKind::StillMounted, Some(name), failure.to_string()))
    }

    /// No more events: ends all listeners.
    pub(crate) fn end(&self) {
        self.listeners().clear();
    }

    /// Passes events on until `pass` returns false, because the peer is gone, or the daemon ends.
    ///
    /// # Blocking
    /// Until then.
    pub(crate) fn follow(&self, pass: &dyn Fn(Reply) -> bool) {
        let (queue, events) = sync_channel(QUEUE);
        let missed = Arc::new(AtomicU64::new(0));
        let listener = Listener { queue, missed: Arc::clone(&missed) };
        self.listeners().push(listener);
        // From here on the peer receives every event.
        if pass(Reply::Event(event(EventKind::Idle, None, String::new()))) {
            listen(&events, &missed, pass);
        }
    }
}

fn listen(events: &Receiver<Event>, missed: &AtomicU64, pass: &dyn Fn(Reply) -> bool) {
    loop {
        let next = match events.recv_timeout(SIGN_OF_LIFE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => event(EventKind::Idle, None, String::new()),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let count = missed.swap(0, Ordering::Relaxed);
        let gap = (count > 0).then(|| event(EventKind::Missed, None, format!("{count} events")));
        if !gap.into_iter().chain([next]).all(|event| pass(Reply::Event(event))) {
            return;
        }
    }
}

fn event(what: EventKind, name: Option<&str>, text: String) -> Event {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Event { time_ms, what, name: name.map(str::to_owned), text }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_slow_listener_learns_how_many_events_it_missed_and_delays_no_sender() {
        let events = Events::default();
        let heard = RefCell::new(Vec::new());
        events.follow(&|reply| {
            let Reply::Event(event) = reply else { panic!("{reply:?}") };
            heard.borrow_mut().push(event.what);
            if heard.borrow().len() == 1 {
                // The listener does not read for a while.
                (0..QUEUE + 7).for_each(|_| events.send(EventKind::Mounted, Some("web"), ""));
            }
            heard.borrow().len() < QUEUE + 2
        });
        let heard = heard.into_inner();
        assert_eq!(heard[..2], [EventKind::Idle, EventKind::Missed]);
        assert!(heard[2..].iter().all(|what| *what == EventKind::Mounted));
        // The listener is gone; the next event has no receiver.
        events.send(EventKind::Unmounted, None, "");
        assert!(events.listeners.lock().unwrap().is_empty());
    }

    #[test]
    fn the_end_releases_listeners() {
        let events = Events::default();
        events.follow(&|_| {
            events.end();
            true
        });
    }
}
