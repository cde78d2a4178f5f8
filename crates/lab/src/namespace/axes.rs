//! The axes: the subject, how volumes are unmounted, and how many threads look up paths meanwhile.

use std::time::Duration;

use slackwater::UmountGrace;

use crate::harness::axis;

/// The wait that is injected before each normal grace period: three ticks of a kernel with 250 per second.
pub(crate) const INJECTED: Duration = Duration::from_millis(12);

axis! {
    /// The subject that mounts and unmounts.
    pub(crate) enum Subject {
        /// A namespace of an engine whose unmounts wait for an expedited grace period.
        Expedited = "expedited",
        /// The same with normal grace periods and [`INJECTED`].
        Normal = "normal, 12 ms injected",
        /// The running kernel with tmpfs.
        Kernel = "kernel",
    }
}

impl Subject {
    /// The grace period that unmounts of an engine wait for.
    pub(crate) fn grace(self) -> Option<UmountGrace> {
        match self {
            Self::Expedited => Some(UmountGrace::Expedited),
            Self::Normal => Some(UmountGrace::Normal),
            Self::Kernel => None,
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

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::OneByOne, Self::AtOnce];
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) subject: Subject,
    pub(crate) way: Way,
    /// Threads that look up paths all the time.
    pub(crate) lookers: usize,
}

/// Numbers of threads that look up.
pub(crate) const LOOKERS: [usize; 3] = [0, 1, 2];

impl Setting {
    /// All that can be measured, in the order of the turns.
    pub(crate) fn all() -> Vec<Self> {
        let of = |lookers| Way::ALL.into_iter().map(move |way| (lookers, way));
        let all = LOOKERS
            .into_iter()
            .flat_map(of)
            .flat_map(|(lookers, way)| Subject::ALL.into_iter().map(move |subject| Self { subject, way, lookers }));
        all.filter(|setting| setting.subject != Subject::Kernel || setting.way == Way::OneByOne).collect()
    }

    /// The load, for the names of rows.
    pub(crate) fn load_name(self) -> &'static str {
        match self.lookers {
            0 => "no lookups",
            1 => "1 thread looks up",
            _ => "2 threads look up",
        }
    }

    /// The subject, and how it unmounts.
    pub(crate) fn subject_name(self) -> &'static str {
        match (self.way, self.subject) {
            (Way::AtOnce, Subject::Expedited) => "expedited, at once",
            (Way::AtOnce, Subject::Normal) => "normal, 12 ms injected, at once",
            (_, subject) => subject.name(),
        }
    }

    pub(crate) fn name(self) -> String {
        format!("{}: {}", self.load_name(), self.subject_name())
    }
}
