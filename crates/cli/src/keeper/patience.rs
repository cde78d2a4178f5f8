//! How long the end of a mount waits for a source that holds the dead server up. No server can unmount it then.

use std::time::Instant;

use slackwater_control::errln;
use slackwater_control::os::sys::Signal;

use crate::server::escalation::{Escalation, Step};
use crate::volume::session::STALL;

/// The signals that have come.
#[derive(Debug, Default)]
pub(super) struct Patience {
    escalation: Escalation,
    /// When the mount ends, after SIGTERM.
    ends_at: Option<Instant>,
}

impl Patience {
    /// Begins with the signal that the server had received.
    pub(super) fn new(before: Option<Signal>) -> Self {
        let mut patience = Self::default();
        patience.note(before);
        patience
    }

    /// Takes a signal. Returns whether the mount ends now, with its data in the cache.
    pub(super) fn ends(&mut self, signal: Option<Signal>) -> bool {
        self.note(signal) || self.ends_at.is_some_and(|at| at <= Instant::now())
    }

    /// Notes a signal. Returns whether it is the one that gives up.
    fn note(&mut self, signal: Option<Signal>) -> bool {
        let Some(signal @ (Signal::Interrupt | Signal::Terminate)) = signal else { return false };
        if signal == Signal::Terminate {
            self.ends_at.get_or_insert_with(|| Instant::now() + STALL);
        }
        match self.escalation.next(signal) {
            Step::Unmount | Step::Wait => false,
            Step::Explain => {
                errln!("Giving up leaves what is not written back in the cache; the next mount writes it back.");
                errln!("It is lost if the machine restarts before that. Press Ctrl-C again to give up.");
                false
            }
            Step::GiveUp => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_third_interrupt_gives_up_and_sigterm_sets_a_time() {
        let mut patience = Patience::new(None);
        assert!(!patience.ends(None));
        let interrupts = [(); 3].map(|()| patience.ends(Some(Signal::Interrupt)));
        assert_eq!(interrupts, [false, false, true]);
        assert_eq!(patience.ends_at, None);
        let mut patience = Patience::new(Some(Signal::Terminate));
        assert!(!patience.ends(Some(Signal::HangUp)) && patience.ends_at.is_some());
        patience.ends_at = Instant::now().checked_sub(Duration::from_secs(1));
        assert!(patience.ends(None));
    }
}
