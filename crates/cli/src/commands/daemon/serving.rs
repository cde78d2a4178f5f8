//! The volumes of a daemon, as its main loop sees them: at the end all are unmounted at the same time, each when it is
//! written back.
//!
//! SIGTERM also unmounts volumes in use, as a machine that shuts down needs it, and gives up a source that accepts
//! nothing for some time. Ctrl-C leaves volumes in use mounted, names the processes that use them, and waits. The
//! second Ctrl-C says what giving up would mean, and the third gives up: the rest stays in the arena for the next
//! daemon.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use slackwater_control::errln;
use slackwater_control::exit::Reason;
use slackwater_control::parallel::while_running;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::commands::daemon::systemd;
use crate::commands::daemon::volumes::{Slot, State, Volumes};
use crate::control::LAST_ANSWERS_WITHIN;
use crate::keeper::client::KeeperClient;
use crate::os::early_exit;
use crate::progress::Meter;
use crate::server::main_loop::{End, Event, Serving};
use crate::volume::session::{Session, TICK};

/// How long a successor waits for volumes that are being mounted.
const MOUNTED_WITHIN: Duration = Duration::from_secs(10);

impl Serving for Volumes {
    fn sessions(&self) -> Vec<Arc<Session>> {
        self.mounted().into_iter().map(|(_, session)| session).collect()
    }

    fn keeper(&self) -> Option<Arc<KeeperClient>> {
        self.shared.keeper.clone()
    }

    /// A lost terminal is no reason to end, and there is nothing to reload: `slackwater set` changes a running daemon.
    fn survives_hang_up(&self) -> bool {
        true
    }

    fn unmount(&self, insist: bool) -> Option<Event> {
        systemd::stopping();
        let (mut meter, mut seen) = (Meter::new("flushing"), (0, 0));
        let mut tick = || {
            let (left, written) = self.figures();
            meter.update(left, written);
            if (left, written) != seen {
                // Without progress, the service manager's timeout applies.
                systemd::still_stopping(left);
                seen = (left, written);
            }
        };
        let (failures, left) = while_running(TICK, || self.umount_all(insist), &mut tick);
        if failures > 0 {
            drop(meter);
            errln!(
                "The daemon keeps serving the volumes that are still mounted, and mounts no others; nothing is lost."
            );
            return Some(Event::StillMounted);
        }
        // The others are being released.
        self.wait_ended(left, LAST_ANSWERS_WITHIN);
        if left > 0 && !self.wait_ended(0, Duration::ZERO) {
            return Some(Event::Ended(End::Left));
        }
        while !self.wait_ended(0, TICK) {
            tick();
        }
        Some(Event::Ended(End::Flushed))
    }

    fn explain(&self) {
        errln!("Unwritten: {}", size::text(self.figures().0));
        for (name, session) in self.mounted() {
            let bytes = session.figures().0;
            errln!("  {:>10}  {name} ({})", size::text(bytes), session.entry.source.name().printable());
        }
        errln!("Giving up leaves it in {}; the next daemon here writes it back.", self.shared.arena.printable());
    }

    fn refuse_changes(&self) {
        let mut state = self.state();
        state.is_handing_over = true;
        let is_mounting = |state: &mut State| state.by_name.values().any(|slot| matches!(slot, Slot::Reserved(_)));
        let waited = self.changed.wait_timeout_while(state, MOUNTED_WITHIN, is_mounting);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Ends the process as a crash would, but without dead mounts. The entries stay and say where the data is.
pub(super) fn end_with_data_left(volumes: &Volumes, end: End) -> ! {
    let (what, reason) = match end {
        End::GivenUp => ("Given up", Reason::Failed),
        End::Left | End::Flushed => ("Ended by force", Reason::Left),
    };
    let sessions = volumes.sessions();
    let left = sessions.iter().map(|session| session.bytes_left_at_end()).sum();
    let (left, arena) = (size::text(left), volumes.shared.arena.printable());
    errln!("{what}: {left} not written back. The data is kept in {arena}; the next daemon writes it back.");
    let sources: Vec<_> = sessions.iter().filter_map(|session| session.entry.source.device()).collect();
    early_exit::exit_now(reason, &sources)
}
