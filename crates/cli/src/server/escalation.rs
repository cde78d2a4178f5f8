//! The effect of signals, one after another.

use slackwater_control::os::sys::Signal;

/// The effect of a signal.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    Unmount,
    /// Say what giving up would mean.
    Explain,
    GiveUp,
    Wait,
}

/// The first Ctrl-C unmounts, the second one explains, the third one gives up. After a failed unmount, the next one
/// tries again first.
#[derive(Debug, Default)]
pub(crate) struct Escalation {
    pub(crate) is_unmounting: bool,
    has_failed: bool,
    has_explained: bool,
}

impl Escalation {
    pub(crate) fn next(&mut self, signal: Signal) -> Step {
        match signal {
            Signal::Interrupt if self.has_explained => Step::GiveUp,
            Signal::Interrupt if self.is_unmounting => {
                self.has_explained = true;
                Step::Explain
            }
            Signal::Terminate | Signal::HangUp if self.is_unmounting => Step::Wait,
            Signal::Interrupt | Signal::Terminate | Signal::HangUp => {
                self.is_unmounting = true;
                Step::Unmount
            }
        }
    }

    /// Records a failed unmount. Returns whether it is time to explain.
    pub(crate) fn failed(&mut self) -> bool {
        self.is_unmounting = false;
        self.has_explained = self.has_failed;
        std::mem::replace(&mut self.has_failed, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_interrupts_lead_from_unmounting_to_giving_up() {
        let mut escalation = Escalation::default();
        let steps = [(); 3].map(|()| escalation.next(Signal::Interrupt));
        assert_eq!(steps, [Step::Unmount, Step::Explain, Step::GiveUp]);
    }

    #[test]
    fn an_unmount_that_fails_is_tried_again_before_giving_up() {
        let mut escalation = Escalation::default();
        assert_eq!(escalation.next(Signal::Interrupt), Step::Unmount);
        assert!(!escalation.failed());
        assert_eq!(escalation.next(Signal::Interrupt), Step::Unmount);
        assert!(escalation.failed());
        assert_eq!(escalation.next(Signal::Interrupt), Step::GiveUp);
    }

    #[test]
    fn sigterm_never_gives_up() {
        let mut escalation = Escalation::default();
        let steps = [(); 4].map(|()| escalation.next(Signal::Terminate));
        assert_eq!(steps, [Step::Unmount, Step::Wait, Step::Wait, Step::Wait]);
    }
}
