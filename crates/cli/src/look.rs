//! One look at all mount processes: who is there, and how each of them is.
//!
//! They are asked at once, so that one that is stopped takes from the others no more than the time that it is given.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::client::ask;
use crate::control::protocol::{Reply, Request, Status};
use crate::registry::{Entry, Found};

/// Processes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// What a mount process said of itself, and when.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) at: Instant,
    pub(crate) status: Status,
}

/// All of them, each kind by number of process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    pub(crate) answers: Vec<Answer>,
    /// They live and do not answer.
    pub(crate) silent: Vec<Entry>,
    /// They died, and what they had not brought to the source is in their arenas.
    pub(crate) dead: Vec<Entry>,
}

impl Look {
    /// Asks those that were found.
    ///
    /// # Blocking
    /// For processes that do not answer, `within` at most; longer only where there are many of them.
    pub(crate) fn at(found: Vec<Found>, within: Duration) -> Self {
        let helpers = found.len().min(ASKED_AT_ONCE).saturating_sub(1);
        let (queue, look) = (Mutex::new(found.into_iter()), Mutex::new(Self::default()));
        let work = || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(found) = next else { break };
                let answer = ask(&found.socket(), &Request::Status, within);
                look.lock().unwrap_or_else(PoisonError::into_inner).add(found, answer);
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers {
                // Those that cannot be had leave the work to the others.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        let mut look = look.into_inner().unwrap_or_else(PoisonError::into_inner);
        look.answers.sort_by_key(|answer| answer.status.pid);
        look.silent.sort_by_key(|entry| entry.pid);
        look.dead.sort_by_key(|entry| entry.pid);
        look
    }

    fn add(&mut self, found: Found, answer: std::io::Result<Reply>) {
        match answer {
            Ok(Reply::Status(status)) => self.answers.push(Answer { at: Instant::now(), status: *status }),
            // Who ends between two looks is gone, not dead.
            _ if found.is_still_alive() => self.silent.push(found.entry),
            _ if found.entry.arena.exists() && !found.has_ended_in_order() => self.dead.push(found.entry),
            _ => {}
        }
    }
}
