//! What is varied: who mounts, how they unmount, and how many threads look up beside.

use std::time::Duration;

use slackwater::UmountGrace;

/// A normal grace period: three ticks of a kernel that has 250 a second.
pub(crate) const NORMAL_GRACE: Duration = Duration::from_millis(12);

/// Who mounts and unmounts.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Subject {
    /// An engine's namespace whose unmounts wait for an expedited grace period.
    Expedited,
    /// The same, for one of [`NORMAL_GRACE`].
    Normal,
    /// The running kernel, with tmpfs.
    Kernel,
}

impl Subject {
    /// What unmounts of an engine wait for; the kernel is what it is.
    pub(crate) fn grace(self) -> Option<UmountGrace> {
        match self {
            Self::Expedited => Some(UmountGrace::Expedited),
            Self::Normal => Some(UmountGrace::Normal),
            Self::Kernel => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Expedited => "expedited",
            Self::Normal => "normal",
            Self::Kernel => "kernel",
        }
    }
}

/// How volumes are unmounted. They are always mounted one by one.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Way {
    OneByOne,
    /// In one call, which the kernel does not have.
    AtOnce,
}

/// Who does what, and beside how many.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) subject: Subject,
    pub(crate) way: Way,
    /// Threads that look up all the time.
    pub(crate) lookers: usize,
}

/// Numbers of threads that look up.
pub(crate) const LOOKERS: [usize; 3] = [0, 1, 2];

impl Setting {
    /// Everything that the engine's namespaces do.
    pub(crate) fn of_engines() -> Vec<Self> {
        let mut all = Vec::new();
        for lookers in LOOKERS {
            for way in [Way::OneByOne, Way::AtOnce] {
                all.extend([Subject::Expedited, Subject::Normal].map(|subject| Self { subject, way, lookers }));
            }
        }
        all
    }

    /// What the kernel does.
    pub(crate) fn of_kernel() -> Vec<Self> {
        LOOKERS.map(|lookers| Self { subject: Subject::Kernel, way: Way::OneByOne, lookers }).to_vec()
    }

    /// What is said of the lookers.
    pub(crate) fn beside(self) -> &'static str {
        match self.lookers {
            0 => "nobody looks up",
            1 => "1 thread looks up",
            _ => "2 threads look up",
        }
    }

    /// Who, and how.
    pub(crate) fn who(self) -> &'static str {
        match (self.way, self.subject) {
            (Way::AtOnce, Subject::Expedited) => "expedited, at once",
            (Way::AtOnce, Subject::Normal) => "normal, at once",
            (_, subject) => subject.name(),
        }
    }

    pub(crate) fn name(self) -> String {
        format!("{}: {}", self.beside(), self.who())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names_of_their_own() {
        let all = Setting::of_engines().into_iter().chain(Setting::of_kernel());
        let names: std::collections::BTreeSet<_> = all.map(Setting::name).collect();
        assert_eq!(names.len(), 4 * 3 + 3);
    }
}
