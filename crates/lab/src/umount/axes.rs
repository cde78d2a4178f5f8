//! What is varied: the form of the unmount, the backend, the length of a grace period, the load, and the target.

use std::time::Duration;

use slackwater::UmountForm;

/// In the order of their history.
pub(crate) const FORMS: [UmountForm; 4] =
    [UmountForm::Base, UmountForm::Race, UmountForm::RmBarrier, UmountForm::PerSb];

/// How tables, plots and targets call a form.
pub(crate) fn name(form: UmountForm) -> &'static str {
    match form {
        UmountForm::Base => "base",
        UmountForm::Race => "race",
        UmountForm::RmBarrier => "rmbarrier",
        UmountForm::PerSb => "per_sb",
    }
}

/// Where the bytes of all volumes end up.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Place {
    /// In memory.
    Mem,
    /// In directories of the disk.
    Dir,
}

impl Place {
    pub(crate) const ALL: [Self; 2] = [Self::Mem, Self::Dir];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::Dir => "dir",
        }
    }
}

/// How long a normal grace period waits for others to join.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Delay {
    None,
    /// Three ticks of a kernel that has 250 a second.
    ThreeTicks,
}

impl Delay {
    pub(crate) const ALL: [Self; 2] = [Self::None, Self::ThreeTicks];

    pub(crate) fn time(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::ThreeTicks => Duration::from_millis(12),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "0 ms",
            Self::ThreeTicks => "12 ms",
        }
    }
}

/// What goes on beside.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Load {
    /// Writers that are a new tenant every few blocks.
    Churn,
    /// The same writers, each the same tenant all the time: no inode is switched.
    Control,
    /// Nothing.
    Idle,
}

impl Load {
    pub(crate) const ALL: [Self; 3] = [Self::Churn, Self::Control, Self::Idle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Churn => "churn",
            Self::Control => "control",
            Self::Idle => "idle",
        }
    }
}

/// What is unmounted.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Scenario {
    /// A volume that had a writer of its own until just before.
    OwnWriter,
    /// A volume that one tenant wrote to, long closed.
    Quiet,
    /// Eight of those at once.
    EightQuiet,
}

impl Scenario {
    pub(crate) const ALL: [Self; 3] = [Self::OwnWriter, Self::Quiet, Self::EightQuiet];

    /// Its letter in the published tables.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::OwnWriter => "A",
            Self::Quiet => "B",
            Self::EightQuiet => "C",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::OwnWriter => "a target with a writer of its own",
            Self::Quiet => "an idle target",
            Self::EightQuiet => "eight idle targets at once",
        }
    }
}

/// One engine, and what it is compared by.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) form: UmountForm,
    pub(crate) place: Place,
    pub(crate) delay: Delay,
}

impl Setting {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for place in Place::ALL {
            for delay in Delay::ALL {
                all.extend(FORMS.map(|form| Self { form, place, delay }));
            }
        }
        all
    }

    /// The loads it is measured under. Without writers there are no switches, so no grace period is waited for and its
    /// length is no matter.
    pub(crate) fn loads(self) -> &'static [Load] {
        match self.delay {
            Delay::None => &Load::ALL,
            Delay::ThreeTicks => &[Load::Churn, Load::Control],
        }
    }

    pub(crate) fn name(self) -> String {
        format!("{}, {}, {}", self.place.name(), self.delay.name(), name(self.form))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = Setting::all().into_iter().map(Setting::name).collect();
        assert_eq!(names.len(), 16);
    }
}
