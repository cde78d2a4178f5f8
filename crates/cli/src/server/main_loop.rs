//! Waits for the end of what a server serves, and for requests to end it.
//!
//! One thread takes signals; the main thread receives all events in one queue. Unmounts, and texts with names that are
//! searched for in a source, may take a while. They run on threads of their own, because signals must still be handled.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::sys::{Signal, Signals};
use slackwater_control::parallel::for_each_parallel;

use crate::keeper::Program;
use crate::keeper::client::{KeeperClient, monotonic_ns};
use crate::server::escalation::{Escalation, Step};
use crate::volume::session::Session;

/// How a mount has ended, or a daemon with all of its mounts.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Everything is written back.
    Flushed,
    /// By force: the unwritten data is only in the arena.
    Left,
    /// Given up on the third Ctrl-C: the unwritten data is only in the arena.
    GivenUp,
}

pub(crate) enum Event {
    Signal(Signal),
    /// An unmount requested by a signal has failed, and has reported it.
    StillMounted,
    /// No program can reach the volume of a mount process any more.
    Unmounted,
    Ended(End),
    /// Another process is to take over, of this program if that is another one.
    Restart(Option<Arc<Program>>),
}

/// The volumes that a process serves. The methods that may take a while are called on threads of their own.
pub(crate) trait Serving: Send + Sync + 'static {
    /// The mounted volumes.
    fn sessions(&self) -> Vec<Arc<Session>>;

    /// The keeper, if the volumes outlive this process.
    fn keeper(&self) -> Option<Arc<KeeperClient>>;

    /// Whether SIGHUP is no reason to end.
    fn survives_hang_up(&self) -> bool;

    /// Reports the end if no signal has requested it.
    fn watch(self: Arc<Self>, _events: &Sender<Event>) {}

    /// Unmounts; with `insist`, also what is in use. `None` if [`watch`](Self::watch) reports the end.
    fn unmount(&self, insist: bool) -> Option<Event>;

    /// Shows the progress of the flush after an umount(2), whose caller does not wait.
    fn follow(&self) {}

    /// Says what is not written back, and where it would be left.
    fn explain(&self);

    /// Lets no volume come or go any more, because another process takes all of them over.
    ///
    /// # Blocking
    /// For volumes that are being mounted.
    fn refuse_changes(&self) {}
}

/// Takes signals from its creation on.
pub(crate) struct MainLoop {
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// The message about a signal before anything is mounted.
    interrupted: &'static str,
    /// True while nothing is set up yet: a signal then ends the process, and the lock keeps the start from going on.
    is_starting: Arc<Mutex<bool>>,
    /// A signal waits for [`MainLoop::run`].
    is_asked: Arc<AtomicBool>,
}

impl MainLoop {
    /// With `is_starting`, a signal ends the process until [`MainLoop::mounting`]. `interrupted` is the message then.
    pub(crate) fn begin(signals: Signals, is_starting: bool, interrupted: &'static str) -> Self {
        let (sender, events) = channel();
        let is_starting = Arc::new(Mutex::new(is_starting));
        let is_asked = Arc::new(AtomicBool::new(false));
        let (starting, asked, signalled) = (Arc::clone(&is_starting), Arc::clone(&is_asked), sender.clone());
        // Lives as long as the process.
        thread::spawn(move || {
            loop {
                let signal = signals.wait();
                let starting = starting.lock().unwrap_or_else(PoisonError::into_inner);
                if *starting {
                    errln!("{interrupted}");
                    exit(i32::from(Reason::Failed.status()));
                }
                drop(starting);
                asked.store(true, Ordering::Release);
                if signalled.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        Self { events, sender, interrupted, is_starting, is_asked }
    }

    /// From now on signals wait for [`MainLoop::run`] or [`MainLoop::check`].
    pub(crate) fn mounting(&self) {
        *self.is_starting.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Fails if a signal is waiting.
    ///
    /// # Errors
    /// The message about the interruption.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_asked.load(Ordering::Acquire) { Err(Failure::failed(self.interrupted)) } else { Ok(()) }
    }

    /// Returns when everything has ended, and how.
    ///
    /// # Blocking
    /// For as long as something is served.
    pub(crate) fn run(self, serving: &Arc<impl Serving>) -> End {
        Arc::clone(serving).watch(&self.sender);
        let keeper = serving.keeper();
        if let Some(keeper) = keeper.clone() {
            self.spawn(move || Some(Event::Restart(keeper.succession.wait())));
        }
        let explain = || {
            let serving = Arc::clone(serving);
            thread::spawn(move || {
                serving.explain();
                errln!("It is lost if the machine restarts before that. Programs with open files get errors.");
                errln!("Press Ctrl-C again to give up.");
            });
        };
        let mut escalation = Escalation::default();
        for event in &self.events {
            match event {
                Event::Ended(end) => return end,
                Event::Unmounted | Event::Restart(_) if escalation.is_unmounting => {}
                Event::Unmounted => {
                    let serving = Arc::clone(serving);
                    // Ends with the process, which ends with the flush.
                    thread::spawn(move || serving.follow());
                }
                Event::Restart(program) => {
                    if let Some(keeper) = &keeper {
                        hand_over(&**serving, keeper, program.as_deref());
                    }
                }
                Event::Signal(Signal::HangUp) if serving.survives_hang_up() => {}
                Event::Signal(signal) => match escalation.next(signal) {
                    Step::Unmount => {
                        let (serving, insist) = (Arc::clone(serving), signal != Signal::Interrupt);
                        self.spawn(move || serving.unmount(insist));
                    }
                    Step::Explain => explain(),
                    Step::GiveUp => {
                        serving.sessions().iter().filter_map(|session| session.mounted()).for_each(|it| it.abort());
                        return End::GivenUp;
                    }
                    Step::Wait => {}
                },
                Event::StillMounted => {
                    if escalation.failed() {
                        explain();
                    }
                }
            }
        }
        unreachable!("the thread of signals has a sender")
    }

    /// Runs `work` on a thread, and receives its event.
    fn spawn(&self, work: impl FnOnce() -> Option<Event> + Send + 'static) {
        let sender = self.sender.clone();
        // The main thread receives until the end.
        thread::spawn(move || work().map(|event| sender.send(event)));
    }
}

/// Exits for a successor. Nothing is released: the keeper has all of it.
fn hand_over(serving: &impl Serving, keeper: &KeeperClient, program: Option<&Program>) -> ! {
    serving.refuse_changes();
    let stopped_ns = monotonic_ns();
    for_each_parallel(usize::MAX, serving.sessions().into_iter(), |session| {
        if let Some(mounted) = session.mounted() {
            mounted.hand_over();
        }
    });
    keeper.hand_over(stopped_ns, program);
    exit(0)
}
