//! The end of a daemon: all volumes are unmounted at the same time, each when it is written back.
//!
//! SIGTERM also unmounts volumes in use, as a machine that shuts down needs it, and gives up a source that accepts
//! nothing for some time. Ctrl-C leaves volumes in use mounted, names the processes that use them, and waits. The
//! second Ctrl-C says what giving up would mean, and the third gives up: the rest stays in the arena for the next
//! daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::commands::daemon::volumes::Volumes;
use crate::commands::daemon::{kept, systemd};
use crate::control::server::LAST_ANSWERS_WITHIN;
use crate::exit::{Failure, Reason};
use crate::keeper::Program;
use crate::os::early_exit;
use crate::os::sys::{Signal, Signals};
use crate::output::progress::Meter;
use crate::output::terminal::errln;
use crate::volume::shutdown::{End, Escalation, Step};

/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(200);

enum Event {
    Signal(Signal),
    /// All volumes that can be unmounted are unmounted.
    Tried(Outcome),
    /// Another process is to take over, of this program if that is another one.
    Restart(Option<Arc<Program>>),
}

/// The outcome of an attempt to unmount all volumes.
struct Outcome {
    /// Volumes that are still mounted.
    failures: usize,
    /// Volumes that are unmounted and have unwritten data in the arena.
    left: usize,
}

/// Forwards signals for as long as the process lives.
pub(super) struct MainLoop {
    events: std::sync::mpsc::Receiver<Event>,
    sender: Sender<Event>,
}

impl MainLoop {
    pub(super) fn begin(signals: Signals) -> Self {
        let (sender, events) = channel();
        let signalled = sender.clone();
        thread::spawn(move || while signalled.send(Event::Signal(signals.wait())).is_ok() {});
        Self { events, sender }
    }

    /// Whether an end was requested.
    pub(super) fn is_asked(&self) -> bool {
        let Ok(event) = self.events.try_recv() else { return false };
        // For `run`, which runs until the end.
        let _ = self.sender.send(event);
        true
    }

    /// Returns when the end was requested and no volume is mounted.
    ///
    /// # Blocking
    /// For as long as the daemon runs.
    pub(super) fn run(self, volumes: &Arc<Volumes>) -> End {
        let keeper = volumes.shared.keeper.clone();
        if let Some(keeper) = keeper.clone() {
            let sender = self.sender.clone();
            thread::spawn(move || sender.send(Event::Restart(keeper.succession.wait())));
        }
        let mut escalation = Escalation::default();
        let (mut meter, mut seen) = (None, (0, 0));
        loop {
            let event = match meter {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => self.events.recv_timeout(TICK),
            };
            match event {
                // A lost terminal is no reason to end, and there is nothing to reload: `slackwater set` changes a
                // running daemon.
                Ok(Event::Signal(Signal::HangUp)) => {}
                Ok(Event::Signal(signal)) => match escalation.next(signal) {
                    Step::Unmount => {
                        systemd::stopping();
                        meter = Some(Meter::new("flushing"));
                        end(volumes, signal != Signal::Interrupt, self.sender.clone());
                    }
                    Step::Explain => explain(volumes),
                    Step::GiveUp => {
                        let front_ends = volumes.sessions().into_iter().filter_map(|(_, session)| session.served());
                        front_ends.for_each(|(front_end, _)| front_end.abort());
                        return End::GivenUp;
                    }
                    Step::Wait => {}
                },
                Ok(Event::Restart(_)) if escalation.is_unmounting => {}
                Ok(Event::Restart(program)) => {
                    if let Some(keeper) = &keeper {
                        kept::hand_over(volumes, keeper, program.as_deref());
                    }
                }
                Ok(Event::Tried(Outcome { failures: 0, left })) => {
                    // The others are being released.
                    volumes.wait_ended(left, LAST_ANSWERS_WITHIN);
                    if left > 0 && !volumes.wait_ended(0, Duration::ZERO) {
                        return End::Left;
                    }
                }
                Ok(Event::Tried(_)) => {
                    meter = None;
                    errln!(
                        "The daemon keeps serving the volumes that are still mounted, and mounts no others; nothing is lost."
                    );
                    if escalation.failed() {
                        explain(volumes);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The signal thread has a sender.
                Err(RecvTimeoutError::Disconnected) => return End::Flushed,
            }
            if volumes.wait_ended(0, Duration::ZERO) {
                return End::Flushed;
            }
            if let Some(meter) = &mut meter {
                let (left, written) = volumes.figures();
                meter.update(left, written);
                if (left, written) != seen {
                    // Without progress, the service manager's timeout applies.
                    systemd::still_stopping(left);
                    seen = (left, written);
                }
            }
        }
    }
}

/// Runs on its own thread, so that signals are still handled.
fn end(volumes: &Arc<Volumes>, insist: bool, tried: Sender<Event>) {
    let volumes = Arc::clone(volumes);
    thread::spawn(move || {
        let (failures, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failed = |failure: &Failure| {
            let count = if failure.reason == Reason::Left { &left } else { &failures };
            count.fetch_add(1, Ordering::Relaxed);
            errln!("{failure}");
        };
        volumes.umount_all(insist, &failed);
        // The main thread receives until the end.
        let _ = tried.send(Event::Tried(Outcome { failures: failures.into_inner(), left: left.into_inner() }));
    });
}

fn explain(volumes: &Volumes) {
    errln!("Unwritten: {}", size::text(volumes.figures().0));
    for (name, session) in volumes.sessions() {
        let bytes = session.figures().0;
        errln!("  {:>10}  {name} ({})", size::text(bytes), session.entry.source.name().printable());
    }
    errln!("Giving up leaves it in {}; the next daemon here writes it back.", volumes.shared.arena.printable());
    errln!("It is lost if the machine restarts before that. Programs with open files get errors.");
    errln!("Press Ctrl-C again to give up.");
}

/// Ends the process as a crash would, but without dead mounts. The entries stay and say where the data is.
pub(super) fn end_with_data_left(volumes: &Volumes, end: End) -> ! {
    let (what, reason) = match end {
        End::GivenUp => ("Given up", Reason::Failed),
        End::Left | End::Flushed => ("Ended by force", Reason::Left),
    };
    let left = volumes.sessions().iter().map(|(_, session)| session.bytes_left_at_end()).sum();
    let (left, arena) = (size::text(left), volumes.shared.arena.printable());
    errln!("{what}: {left} not written back. The data is kept in {arena}; the next daemon writes it back.");
    let sources: Vec<_> = volumes.sessions().iter().filter_map(|(_, session)| session.entry.source.device()).collect();
    early_exit::exit_now(reason, &sources)
}
