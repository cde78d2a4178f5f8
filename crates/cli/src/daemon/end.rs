//! How a daemon ends: all volumes at the same time, each when everything is in its source.
//!
//! SIGTERM unmounts also what is in use, as a machine that goes down wants it; Ctrl-C leaves that, and says who uses it. The
//! second Ctrl-C says what giving up would mean, the third gives up: what is left stays in the arena, for the next daemon.

use std::process::exit;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::daemon::systemd;
use crate::daemon::volumes::Volumes;
use crate::detach::detach;
use crate::exit::{Failure, Reason};
use crate::mount::vigil::{Patience, Step};
use crate::progress::Meter;
use crate::sys::{Signal, Signals};
use crate::terminal::say;

/// Between two looks at how far it is.
const TICK: Duration = Duration::from_millis(200);

enum Event {
    Signal(Signal),
    /// All that could be unmounted is.
    Tried {
        failures: usize,
    },
}

/// Passes signals on, as long as the process lives.
pub(super) struct Watch {
    events: std::sync::mpsc::Receiver<Event>,
    sender: Sender<Event>,
}

impl Watch {
    pub(super) fn begin(signals: Signals) -> Self {
        let (sender, events) = channel();
        let signalled = sender.clone();
        thread::spawn(move || while signalled.send(Event::Signal(signals.wait())).is_ok() {});
        Self { events, sender }
    }

    /// Whether somebody wants the daemon to end.
    pub(super) fn is_asked(&self) -> bool {
        let Ok(event) = self.events.try_recv() else { return false };
        // For `keep`, which is there until the end.
        let _ = self.sender.send(event);
        true
    }

    /// Returns when the daemon was asked to end and no volume is left.
    ///
    /// # Blocking
    /// As long as it runs.
    pub(super) fn keep(self, volumes: &Arc<Volumes>) {
        let mut patience = Patience::default();
        let (mut meter, mut seen) = (None, (0, 0));
        loop {
            let event = match meter {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => self.events.recv_timeout(TICK),
            };
            match event {
                // A terminal that went away is no reason to end, and there is nothing to reload: `slackwater set` changes a
                // running daemon.
                Ok(Event::Signal(Signal::HangUp)) => {}
                Ok(Event::Signal(signal)) => match patience.next(signal) {
                    Step::Unmount => {
                        systemd::stopping();
                        meter = Some(Meter::new("flushing"));
                        end(volumes, signal != Signal::Interrupt, self.sender.clone());
                    }
                    Step::Explain => explain(volumes),
                    Step::GiveUp => give_up(volumes),
                    Step::Wait => {}
                },
                Ok(Event::Tried { failures: 0 }) => {}
                Ok(Event::Tried { .. }) => {
                    meter = None;
                    say!("The daemon goes on for what is still mounted, and mounts nothing more; nothing is lost.");
                    if patience.failed() {
                        explain(volumes);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // The thread of signals has a sender.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if volumes.wait_ended(Duration::ZERO) {
                return;
            }
            if let Some(meter) = &mut meter {
                let (left, written) = volumes.figures();
                meter.update(left, written);
                if (left, written) != seen {
                    // Where nothing moves the service manager's patience ends.
                    systemd::still_stopping(left);
                    seen = (left, written);
                }
            }
        }
    }
}

/// On a thread of its own: signals are heard meanwhile.
fn end(volumes: &Arc<Volumes>, insist: bool, tried: Sender<Event>) {
    let volumes = Arc::clone(volumes);
    thread::spawn(move || {
        let failures = std::sync::atomic::AtomicUsize::new(0);
        let failed = |failure: &Failure| {
            failures.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            say!("{failure}");
        };
        volumes.umount_all(insist, &failed);
        // The main thread listens until the end.
        let _ = tried.send(Event::Tried { failures: failures.into_inner() });
    });
}

fn explain(volumes: &Volumes) {
    say!("Not in the sources yet: {}", size::text(volumes.figures().0));
    for (name, session) in volumes.sessions() {
        let bytes = session.figures().0;
        say!("  {:>10}  {name} ({})", size::text(bytes), session.entry.source.path.printable());
    }
    say!("Giving up leaves it in {}, and the next daemon here brings it in;", volumes.shared.arena.printable());
    say!("it is lost if the machine restarts before. Programs with open files get errors.");
    say!("Ctrl-C once more gives up.");
}

/// As a crash would, but without dead mounts left behind. The entries stay and say where the data is.
fn give_up(volumes: &Volumes) -> ! {
    for (_, session) in volumes.sessions() {
        if let Err(error) = detach(&session.entry.mountpoint) {
            say!("{} could not be freed: {error}", session.entry.mountpoint.printable());
        }
    }
    say!(
        "Given up. What is not in the sources is in {}: the next daemon brings it in.",
        volumes.shared.arena.printable()
    );
    exit(i32::from(Reason::Failed.status()))
}
