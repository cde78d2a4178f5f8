//! ThreadCache that wait, and how one that is interrupted is let go.
//!
//! A caller that waits for the backend is let go when it is being killed: it gets EINTR and dies at once, the
//! call goes on without it, and what the call hands out is taken back. One that is merely interrupted goes on
//! waiting, since the name may be made already; but the kernel interrupts only once, so it is watched from
//! then on. A caller whose write is parked is answered by any interrupt: with what was taken, or EINTR. What is to be durable
//! before that (`O_SYNC`) is made so first.
//!
//! A change that has begun keeps its caller. Who has seen a process die removes what it left, or takes over what
//! it had locked, and no change of the dead may come after that. Only a change that takes very long ([`CHANGE_WAIT_MAX`])
//! goes on without its caller, so that a backend that hangs makes nobody immortal.
//!
//! # Invariants
//! C1. A reply is with its [`HeldReply`] until an interrupt takes it, then with its [`Caller`]. Whichever of the
//!     call's end and the interrupt comes second finds what the first has left, under the caller's lock.
//! C2. Bytes of a parked write are taken under the caller's lock, so the count that an interrupt answers is
//!     what was taken, and nothing is taken after it.
//! C3. A change begins under the caller's lock, and only while the caller is there: who is let go before has
//!     changed nothing and never will.
//! C4. The kernel hears of every change: by its answer, or, if its caller was let go meanwhile, by notifications
//!     when it has been made. What it was told between the two is old.
//!
//! # Lock order
//! A caller's lock comes before those of the engine: C2. Nothing is sent under it, and what runs under it
//! does not wait for a backend.

use std::time::Duration;

use rustix::io::Errno;
use slackwater::Tick;
use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::{Arc, Weak};

use crate::held_replies::HeldReply;
use crate::reply::Reply;
use crate::volume::answer::Answer;
use crate::volume::errno::Failure;
use crate::volume::lock_order::CALLER;
use crate::volume::writes::Write;
use crate::volume::{Volume, processes};

/// For how long a change keeps a caller that is being killed. A backend that works is faster, however busy it is.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Who waits for a call.
pub(super) struct Caller {
    /// Its thread; 0 if that is not known, and then it is never let go.
    pid: u32,
    state: Mutex<CallerState>,
}

/// What a caller's lock protects.
pub(super) struct CallerState {
    reply: ReplyState,
    /// Bytes taken of a write that is parked, if they may be acknowledged.
    pub(super) parked: Option<usize>,
    /// When the change began that it waits for, if it waits for one.
    changing_since: Option<Tick>,
}

/// Where the reply is.
enum ReplyState {
    Held,
    /// Here: its caller was interrupted and still waits.
    Interrupted(Reply),
    /// Nowhere: its caller was let go, or answered.
    Gone,
    /// An interrupt has it, and is to deliver this.
    Due(Result<Answer, Failure>),
}

/// A caller that waits, and the right to answer it.
pub(super) struct PendingCall {
    held: HeldReply,
    caller: Arc<Caller>,
}

impl PendingCall {
    /// The caller's state, in which a parked write makes progress. `None`: it was let go.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, CallerState>> {
        let state = self.caller.state.lock();
        if matches!(state.reply, ReplyState::Gone) { None } else { Some(state) }
    }

    /// Whether the caller was let go: nothing need be done for it any more.
    pub(super) fn is_gone(&self) -> bool {
        self.lock().is_none()
    }

    /// A change begins (C3). False: the caller was let go, and it must not be made.
    #[must_use = "no change is made for who was let go"]
    pub(super) fn begin_change(&self, now: Tick) -> bool {
        let Some(mut state) = self.lock() else { return false };
        state.changing_since = Some(now);
        true
    }
}

impl CallerState {
    /// Whether a signal has come that was not answered.
    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.reply, ReplyState::Interrupted(_))
    }

    /// Whether a change keeps the caller.
    fn is_changing(&self, now: Tick) -> bool {
        self.changing_since.is_some_and(|since| now.since(since) < CHANGE_WAIT_MAX)
    }
}

impl Caller {
    /// Lets the caller go if it was interrupted before and is being killed now. True if there is nobody to
    /// watch any more.
    pub(super) fn release_if_killed(&self, now: Tick) -> bool {
        if !self.state.lock().is_interrupted() {
            return true;
        }
        if !processes::fatal_signal_pending(self.pid) {
            return false;
        }
        let mut state = self.state.lock();
        if state.is_changing(now) {
            return false;
        }
        match std::mem::replace(&mut state.reply, ReplyState::Gone) {
            ReplyState::Interrupted(reply) => {
                drop(state);
                let _ = reply.error(Errno::INTR);
            }
            other @ (ReplyState::Held | ReplyState::Gone | ReplyState::Due(_)) => state.reply = other,
        }
        true
    }
}

impl Volume {
    /// Lets a caller wait.
    pub(super) fn hold_reply(self: &Arc<Self>, pid: u32, reply: Reply) -> PendingCall {
        let state = CallerState { reply: ReplyState::Held, parked: None, changing_since: None };
        let caller = Arc::new(Caller { pid, state: Mutex::new(CALLER, state) });
        let (volume, interrupted) = (Arc::downgrade(self), Arc::clone(&caller));
        let held = reply.hold(move |reply| interrupt(&volume, &interrupted, reply));
        PendingCall { held, caller }
    }

    /// From here on an interrupt lets the caller of a write go with what [`Write::early_count`] says. `None`: nobody waits
    /// any more, or a signal had come before, and has been answered.
    pub(super) fn allow_early_answer(&self, waiting: PendingCall, write: &Write) -> Option<PendingCall> {
        let taken = {
            let mut state = waiting.lock()?;
            state.parked = write.early_count();
            state.parked.filter(|_| state.is_interrupted())
        };
        let Some(taken) = taken else { return Some(waiting) };
        self.finish(waiting, early_answer(taken));
        None
    }

    /// What a caller waited for has come. False: it was let go, and the kernel does not hear of it.
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
}

/// On the thread that read the INTERRUPT.
fn interrupt(volume: &Weak<Volume>, caller: &Arc<Caller>, reply: Reply) {
    let is_killed = processes::fatal_signal_pending(caller.pid);
    let mut state = caller.state.lock();
    let answer = match (std::mem::replace(&mut state.reply, ReplyState::Gone), state.parked) {
        (ReplyState::Due(result), _) => result,
        (_, Some(taken)) => early_answer(taken),
        (_, None) if is_killed && state.changing_since.is_none() => Err(Errno::INTR.into()),
        (_, None) => {
            // A killed one too, in the middle of a change.
            state.reply = ReplyState::Interrupted(reply);
            drop(state);
            if let Some(volume) = volume.upgrade() {
                volume.watch_caller(Arc::downgrade(caller));
            }
            return;
        }
    };
    drop(state);
    match volume.upgrade() {
        Some(volume) => {
            volume.deliver(reply, answer);
            volume.worker.caller_released();
        }
        None => drop(reply.error(Errno::IO)),
    }
}

/// What a write is answered with that goes no further.
pub(super) fn early_answer(taken: usize) -> Result<Answer, Failure> {
    // At most one request, which is far below 4 GiB.
    if taken == 0 { Err(Errno::INTR.into()) } else { Ok(Answer::Written(taken as u32)) }
}
