//! The axes: the form of the unmount, the backend, the injected wait, the load, and the target.

use std::time::Duration;

use slackwater::UmountForm;

use crate::harness::axis;

/// In the order of their history.
pub(crate) const FORMS: [UmountForm; 4] =
    [UmountForm::Base, UmountForm::Race, UmountForm::RmBarrier, UmountForm::PerSb];

/// The name of a form in tables, plots, targets and JSON.
pub(crate) fn name(form: UmountForm) -> &'static str {
    match form {
        UmountForm::Base => "base",
        UmountForm::Race => "race",
        UmountForm::RmBarrier => "rmbarrier",
        UmountForm::PerSb => "per_sb",
    }
}

axis! {
    /// Where the data of all volumes is stored.
    pub(crate) enum Place {
        Mem = "mem",
        /// Directories on the disk.
        Dir = "dir",
    }
}

axis! {
    /// The wait that is injected before each normal grace period, for others to join.
    pub(crate) enum Injected {
        Nothing = "0 ms injected",
        /// Three ticks of a kernel with 250 per second: what a normal grace period takes there at least.
        ThreeTicks = "12 ms injected",
    }
}

impl Injected {
    pub(crate) fn time(self) -> Duration {
        match self {
            Self::Nothing => Duration::ZERO,
            Self::ThreeTicks => Duration::from_millis(12),
        }
    }
}

axis! {
    /// The load on other volumes.
    pub(crate) enum Load {
        /// Writers, each of which becomes a new tenant every few blocks.
        Churn = "churn",
        /// The same writers, each one tenant throughout: no inode is switched.
        Control = "control",
        Idle = "idle",
    }
}

axis! {
    /// The target of the unmount, named by its letter in the published tables.
    pub(crate) enum Scenario {
        /// A volume that had a writer of its own until just before.
        OwnWriter = "A",
        /// A volume that one tenant wrote to and closed.
        Quiet = "B",
        /// Eight of those at once.
        EightQuiet = "C",
    }
}

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OwnWriter => "a target with a writer of its own",
            Self::Quiet => "an idle target",
            Self::EightQuiet => "eight idle targets at once",
        }
    }
}

/// One engine.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) form: UmountForm,
    pub(crate) place: Place,
    pub(crate) injected: Injected,
}

impl Setting {
    /// All settings; those of a form with and without the injected wait are beside each other.
    pub(crate) fn all() -> Vec<Self> {
        let forms = |place| FORMS.into_iter().map(move |form| (place, form));
        let all = Place::ALL.into_iter().flat_map(forms);
        all.flat_map(|(place, form)| Injected::ALL.map(|injected| Self { form, place, injected })).collect()
    }

    /// The loads it is measured under. Without writers there are no switches, so an unmount waits for no grace period and the
    /// injected wait makes no difference.
    pub(crate) fn loads(self) -> &'static [Load] {
        match self.injected {
            Injected::Nothing => &Load::ALL,
            Injected::ThreeTicks => &[Load::Churn, Load::Control],
        }
    }

    pub(crate) fn name(self) -> String {
        format!("{}, {}, {}", self.place.name(), name(self.form), self.injected.name())
    }
}

/// The unmounts that have a setting, a load and a scenario in common.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Cell {
    pub(crate) setting: Setting,
    pub(crate) load: Load,
    pub(crate) scenario: Scenario,
}
