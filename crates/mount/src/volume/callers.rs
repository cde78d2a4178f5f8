//! Callers that wait for a reply, and how an interrupted one is released.
//!
//! A caller that waits for the backend is released when it is being killed: it gets EINTR and exits at once. The call
//! continues without it, and whatever the call hands out is taken back. A killed caller whose write is parked is answered
//! with the number of bytes taken, and the rest is not written.
//!
//! A caller that is merely interrupted keeps waiting: by a signal that it handles, a stop, a freezer or a debugger. No
//! program expects a file of a disk to end a call for these. The kernel interrupts a request only once, so such a caller
//! is watched from then on: it may be killed later.
//!
//! A change that has begun keeps its caller. A process that sees another one die may remove its files or take over its
//! locks, and no change of the dead process may come after that. Only a change that takes longer than
//! [`CHANGE_WAIT_MAX`] continues without its caller, so that a hanging backend does not make processes unkillable.
//!
//! # Invariants
//! C1. A reply is with its [`HeldReply`] until an interrupt takes it, then with its [`Caller`]. The end of the call and
//!     the interrupt take the caller's lock; whichever comes second finds the state that the first left.
//! C2. The bytes of a parked write are copied under the caller's lock. So the count that a killed caller leaves in the
//!     file is exact, and nothing is copied after it.
//! C3. A change begins under the caller's lock, and only while the caller is there. A call whose caller was released
//!     earlier has changed nothing and never will.
//! C4. The kernel learns of every change: by the reply, or, if the caller was released meanwhile, by notifications
//!     after the change. Answers that the kernel got in between are stale.
//!
//! # Lock order
//! A caller's lock comes before those of the engine (C2). Nothing is sent under it, and code that runs under it does
//! not wait for a backend.

use std::time::Duration;

use rustix::io::Errno;
use slackwater::Tick;
use slackwater_fuse::{HeldReply, Reply};
use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::{Arc, Weak};

use crate::lock_order::CALLER;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::writes::Write;
use crate::volume::{Volume, processes};

/// How long a change keeps a caller that is being killed. A working backend is faster than this even under load.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(10);

/// A process that waits for a call.
pub(super) struct Caller {
    /// The thread id; 0 if unknown, and then the caller is never released.
    pid: u32,
    state: Mutex<CallerState>,
}

/// State under a caller's lock.
pub(super) struct CallerState {
    reply: ReplyState,
    /// Bytes taken of a write that is parked or paused.
    pub(super) parked: Option<usize>,
    /// When the change began that the caller waits for.
    changing_since: Option<Tick>,
}

/// Where the reply is.
enum ReplyState {
    Held,
    /// The reply is here: the caller was interrupted and still waits.
    Interrupted(Reply),
    /// The reply was sent: the caller was released or answered.
    Gone,
    /// The reply is with the interrupt, which is to deliver this result.
    Due(Result<Answer, Failure>),
}

/// A waiting caller, and the right to answer it.
pub(super) struct PendingCall {
    held: HeldReply,
    caller: Arc<Caller>,
}

impl PendingCall {
    /// The caller's state, under which a parked write makes progress. `None` if the caller was released.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, CallerState>> {
        let state = self.caller.state.lock();
        if matches!(state.reply, ReplyState::Gone) { None } else { Some(state) }
    }

    /// Whether the caller was released, so that nothing needs to be done for it any more.
    pub(super) fn is_gone(&self) -> bool {
        self.lock().is_none()
    }

    /// Begins a change (C3). Returns false if the caller was released; the change must not be made then.
    #[must_use = "no change is made for a released caller"]
    pub(super) fn begin_change(&self, now: Tick) -> bool {
        let Some(mut state) = self.lock() else { return false };
        state.changing_since = Some(now);
        true
    }

    /// From here on a killed caller leaves the bytes that `write` has taken. Returns false if the caller was released.
    #[must_use = "nothing is done for a released caller"]
    pub(super) fn allow_early_answer(&self, write: &Write) -> bool {
        let Some(mut state) = self.lock() else { return false };
        state.parked = Some(write.taken);
        true
    }
}

impl CallerState {
    fn is_interrupted(&self) -> bool {
        matches!(self.reply, ReplyState::Interrupted(_))
    }

    /// The answer to a caller that is being killed. `None` if a running change keeps it.
    fn last_answer(&self, now: Tick) -> Option<Result<Answer, Failure>> {
        let is_changing = self.changing_since.is_some_and(|since| now.since(since) < CHANGE_WAIT_MAX);
        match self.parked {
            Some(taken) => Some(early_answer(taken)),
            None => (!is_changing).then_some(Err(Errno::INTR.into())),
        }
    }
}

impl Volume {
    /// Holds a reply for a caller that waits.
    pub(super) fn hold_reply(self: &Arc<Self>, pid: u32, reply: Reply) -> PendingCall {
        let state = CallerState { reply: ReplyState::Held, parked: None, changing_since: None };
        let caller = Arc::new(Caller { pid, state: Mutex::new(CALLER, state) });
        let (volume, interrupted) = (Arc::downgrade(self), Arc::clone(&caller));
        let held = reply.hold(move |reply| interrupt(&volume, &interrupted, reply));
        PendingCall { held, caller }
    }

    /// Answers a caller with the result of its call. Returns false if it was released, so that the kernel does not get
    /// the result.
    pub(super) fn finish(&self, waiting: PendingCall, result: Result<Answer, Failure>) -> bool {
        let PendingCall { held, caller } = waiting;
        let reply = match held.take() {
            Some(reply) => Some(reply),
            None => {
                let mut state = caller.state.lock();
                match std::mem::replace(&mut state.reply, ReplyState::Gone) {
                    ReplyState::Interrupted(reply) => Some(reply),
                    ReplyState::Held => {
                        state.reply = ReplyState::Due(result);
                        return true;
                    }
                    ReplyState::Gone | ReplyState::Due(_) => None,
                }
            }
        };
        let Some(reply) = reply else {
            if let Ok(answer) = result {
                self.take_back(answer);
            }
            return false;
        };
        self.deliver(reply, result);
        true
    }

    /// Releases an interrupted caller if it is being killed. Returns true if it need not be watched any more.
    pub(super) fn release_if_killed(&self, caller: &Caller) -> bool {
        if !caller.state.lock().is_interrupted() {
            return true;
        }
        if !processes::is_dying(caller.pid) {
            return false;
        }
        let mut state = caller.state.lock();
        let Some(answer) = state.last_answer(self.sb.now()) else { return false };
        match std::mem::replace(&mut state.reply, ReplyState::Gone) {
            ReplyState::Interrupted(reply) => {
                drop(state);
                self.deliver(reply, answer);
                self.worker.caller_released();
            }
            other @ (ReplyState::Held | ReplyState::Gone | ReplyState::Due(_)) => state.reply = other,
        }
        true
    }
}

/// Runs on the thread that read the INTERRUPT.
fn interrupt(volume: &Weak<Volume>, caller: &Arc<Caller>, reply: Reply) {
    let Some(volume) = volume.upgrade() else {
        let _ = reply.error(Errno::IO);
        return;
    };
    {
        let mut state = caller.state.lock();
        match std::mem::replace(&mut state.reply, ReplyState::Gone) {
            ReplyState::Due(result) => {
                drop(state);
                return volume.deliver(reply, result);
            }
            ReplyState::Held | ReplyState::Interrupted(_) | ReplyState::Gone => {
                state.reply = ReplyState::Interrupted(reply);
            }
        }
    }
    if !volume.release_if_killed(caller) {
        volume.watch_caller(Arc::downgrade(caller));
    }
}

/// The answer to a write that ends early, with the bytes taken.
pub(super) fn early_answer(taken: usize) -> Result<Answer, Failure> {
    // At most one request, which is far below 4 GiB.
    if taken == 0 { Err(Errno::INTR.into()) } else { Ok(Answer::Written(taken as u32)) }
}
