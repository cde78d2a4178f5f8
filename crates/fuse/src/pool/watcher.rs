//! The thread that watches sessions served by one thread.
//!
//! It runs only while a session has such a thread ([`super::solo`]), and checks every [`TICK`] whether that thread is in
//! the same call as before, or has had nothing to do.
//!
//! # Invariants
//! W1. A thread takes a lease and then adds its session to the list. The watcher removes the session under the list's
//!     lock and only while the lease is free, so a held lease is in the list (U3).
//!
//! # Lock order
//! The list's lock is a leaf. Sessions are dropped and threads woken outside it.

use std::time::Duration;

use slackwater_sync::Call;
use slackwater_sync::lock::{Condvar, Mutex};
use slackwater_sync::shim::{Arc, thread};

use super::Core;
use crate::TRANSPORT;
use crate::session::Shared;

/// Time between two checks. A client waits at most twice as long behind the hanging call of another one.
const TICK: Duration = Duration::from_millis(2);
/// The checks after which a thread that serves a session alone is woken, to serve others too, if it had fewer than
/// [`BUSY`] requests meanwhile.
const WINDOW_TICKS: u32 = 5;
const BUSY: u32 = 8;
/// How long the thread waits for the next lease before it exits.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Watcher {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    watched: Vec<Watched>,
    has_thread: bool,
    is_closing: bool,
}

struct Watched {
    token: u64,
    session: Arc<Shared>,
    /// The call at the last check.
    call: Option<Call>,
    /// The [streak](super::Solo::streak) at the start of the window.
    streak: u32,
    /// Checks in the window so far.
    ticks: u32,
}

impl Watcher {
    pub(super) fn new() -> Self {
        Self { list: Mutex::new(TRANSPORT, List::default()), changed: Condvar::new() }
    }

    /// Watches a session whose lease the caller has just taken. False if no thread can be started.
    pub(super) fn watch(&self, core: &Arc<Core>, token: u64, session: &Arc<Shared>) -> bool {
        let mut list = self.list.lock();
        if list.watched.iter().any(|watched| watched.token == token) {
            return true;
        }
        if list.is_closing || !list.has_thread && !start(core) {
            return false;
        }
        list.has_thread = true;
        list.watched.push(Watched { token, session: Arc::clone(session), call: None, streak: 0, ticks: 0 });
        drop(list);
        self.changed.notify_one();
        true
    }

    /// Ends the thread when no lease is held.
    pub(super) fn close(&self) {
        self.list.lock().is_closing = true;
        self.changed.notify_one();
    }

    /// Waits until the next check is due. False if the thread should exit.
    fn wait(&self) -> bool {
        let mut list = self.list.lock();
        let time = if list.watched.is_empty() { IDLE } else { TICK };
        let is_late = self.changed.wait_timeout(&mut list, time);
        let exits = list.watched.is_empty() && (is_late || list.is_closing);
        list.has_thread &= !exits;
        !exits
    }

    fn check(&self, core: &Core) {
        let (mut revoked, mut idle) = (Vec::new(), Vec::new());
        let mut list = self.list.lock();
        for watched in &mut list.watched {
            let solo = &watched.session.solo;
            let call = solo.lease.call();
            if let Some(call) = call.filter(|_| call == watched.call)
                && solo.lease.revoke(call)
            {
                revoked.push((watched.token, Arc::clone(&watched.session)));
            }
            watched.call = call;
            watched.ticks += 1;
            if watched.ticks == WINDOW_TICKS {
                let streak = solo.streak();
                if streak.saturating_sub(watched.streak) < BUSY && solo.lease.is_held() {
                    idle.push(Arc::clone(&watched.session));
                }
                (watched.streak, watched.ticks) = (streak, 0);
            }
        }
        let free: Vec<Watched> = list.watched.extract_if(.., |watched| !watched.session.solo.lease.is_held()).collect();
        drop(list);
        drop(free); // perhaps the last references of sessions that have ended
        for (token, session) in revoked {
            session.solo.back_off();
            let _ = session.connection.transport.set_waiting(false);
            core.deliver_events(token, &session);
        }
        for session in idle {
            session.solo.wake();
        }
    }
}

fn start(core: &Arc<Core>) -> bool {
    let core = Arc::clone(core);
    let work = move || {
        while core.watcher.wait() {
            core.watcher.check(&core);
        }
    };
    thread::Builder::new().name("sw-fuse-watch".to_owned()).spawn(work).is_ok()
}
