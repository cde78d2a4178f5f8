//! Waits for the end of a mount, and for requests to end it.
//!
//! One thread takes signals. One waits until the volume has ended, and one until it has ended with unwritten data left.
//! An unmount requested by a signal runs on a fourth thread. The main thread receives all of it in one queue.

use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::commands::mount::kept;
use crate::exit::{Failure, Reason};
use crate::keeper::Program;
use crate::os::sys::{Signal, Signals};
use crate::output::progress::Meter;
use crate::output::terminal::errln;
use crate::volume::front_end::FrontEnd;
use crate::volume::session::Session;
use crate::volume::shutdown::{End, Escalation, Step};

/// Interval between progress reports.
const TICK: std::time::Duration = std::time::Duration::from_millis(200);
/// Lines of a list that are worth reading.
const LINES: usize = 20;

const INTERRUPTED: &str = "Interrupted before it was mounted: nothing is lost.";

enum Event {
    Signal(Signal),
    /// An unmount requested by a signal has failed.
    Failed(Failure),
    /// No program can reach the volume any more.
    Unmounted,
    /// Everything is written back as well.
    Ended,
    /// No program can reach the volume, and unwritten data is left.
    Left,
    /// Another process is to take the mount over, of this program if that is another one.
    Restart(Option<Arc<Program>>),
}

/// Takes signals from its creation on.
pub(crate) struct MainLoop {
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// True while nothing is set up yet: a signal then ends the process, and the lock keeps the start from going on.
    is_starting: Arc<Mutex<bool>>,
    /// A signal waits for [`MainLoop::run`].
    is_asked: Arc<AtomicBool>,
}

impl MainLoop {
    pub(crate) fn begin(signals: Signals) -> Self {
        let (sender, events) = channel();
        let is_starting = Arc::new(Mutex::new(true));
        let is_asked = Arc::new(AtomicBool::new(false));
        let main_loop = Self {
            events,
            sender: sender.clone(),
            is_starting: Arc::clone(&is_starting),
            is_asked: Arc::clone(&is_asked),
        };
        // Lives as long as the process.
        thread::spawn(move || {
            loop {
                let signal = signals.wait();
                let is_starting = is_starting.lock().unwrap_or_else(PoisonError::into_inner);
                if *is_starting {
                    errln!("{INTERRUPTED}");
                    exit(i32::from(Reason::Failed.status()));
                }
                drop(is_starting);
                is_asked.store(true, Ordering::Release);
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        });
        main_loop
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
        if self.is_asked.load(Ordering::Acquire) { Err(Failure::failed(INTERRUPTED)) } else { Ok(()) }
    }

    /// Returns when the volume has ended, and how.
    ///
    /// # Blocking
    /// For as long as it is mounted.
    pub(crate) fn run(self, session: &Arc<Session>, front_end: &Arc<FrontEnd>, is_detached: bool) -> End {
        let (sender, ending, ended) = (self.sender.clone(), Arc::clone(front_end), Arc::clone(session));
        thread::spawn(move || {
            // The main thread receives until the end.
            ending.wait_unmounted();
            if ended.kept().is_some_and(|kept| kept.keeper().succession.is_asked()) {
                return; // the volume goes on in another process
            }
            let _ = sender.send(Event::Unmounted);
            ending.wait_ended();
            let _ = sender.send(Event::Ended);
        });
        let (sender, leaving) = (self.sender.clone(), Arc::clone(session));
        thread::spawn(move || {
            leaving.wait_left();
            // The main thread may already have received another end.
            let _ = sender.send(Event::Left);
        });
        if let Some(kept) = session.kept() {
            let sender = self.sender.clone();
            thread::spawn(move || sender.send(Event::Restart(kept.keeper().succession.wait())));
        }
        let mut escalation = Escalation::default();
        for event in &self.events {
            match event {
                Event::Unmounted if escalation.is_unmounting => {}
                Event::Unmounted => follow(session),
                Event::Ended => return End::Flushed,
                Event::Left => return End::Left,
                Event::Restart(_) if escalation.is_unmounting => {}
                Event::Restart(program) => kept::hand_over(session, front_end, program.as_deref()),
                Event::Signal(Signal::HangUp) if is_detached => {}
                Event::Signal(signal) => match escalation.next(signal) {
                    Step::Unmount => unmount(session, signal != Signal::Interrupt, self.sender.clone()),
                    Step::Explain => explain(session),
                    Step::GiveUp => {
                        front_end.abort();
                        return End::GivenUp;
                    }
                    Step::Wait => {}
                },
                Event::Failed(failure) => {
                    errln!("{failure}");
                    errln!("Still mounted at {}; nothing is lost.", session.entry.mountpoint.printable());
                    if escalation.failed() {
                        explain(session);
                    }
                }
            }
        }
        unreachable!("the thread of signals has a sender")
    }
}

/// Runs on its own thread; success shows as the end of the volume. With `insist`, also unmounts a volume in use.
fn unmount(session: &Arc<Session>, insist: bool, failed: Sender<Event>) {
    let session = Arc::clone(session);
    thread::spawn(move || {
        let mut meter = Meter::new(format!("flushing {}", session.entry.mountpoint.printable()));
        let in_use = |failure: &Failure| {
            errln!("{failure}");
            errln!("Asked to end: unmounting anyway.");
        };
        let outcome = session.umount_patiently(insist, in_use, &mut |left, written| meter.update(left, written));
        drop(meter);
        if let Err(failure) = outcome
            && failure.reason != Reason::Left
        {
            // The main thread receives until the volume has ended.
            let _ = failed.send(Event::Failed(failure));
        }
    });
}

/// After umount(2), whose caller does not wait: shows the progress of the flush here.
fn follow(session: &Arc<Session>) {
    let session = Arc::clone(session);
    // Ends with the process, which ends with the flush.
    thread::spawn(move || {
        let mut meter = Meter::new("unmounted, flushing");
        while let Some((left, written)) = session.figures_after(TICK) {
            meter.update(left, written);
        }
    });
}

/// Runs on its own thread: names are searched for in the source, which may hang, and signals must still be handled.
fn explain(session: &Arc<Session>) {
    let session = Arc::clone(session);
    thread::spawn(move || explain_here(&session));
}

fn explain_here(session: &Session) {
    let (source, arena) = (session.entry.source.name().printable(), session.entry.arena.printable());
    errln!("Not yet written back to {source}: {}", size::text(session.figures().0));
    session.would_lose().lines(LINES).iter().for_each(|line| errln!("  {line}"));
    errln!("Giving up leaves it in {arena}; the next mount of {source} writes it back.");
    errln!("It is lost if the machine restarts before that. Programs with open files get errors.");
    errln!("Press Ctrl-C again to give up.");
}
