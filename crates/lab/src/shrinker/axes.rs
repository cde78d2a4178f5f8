//! What is varied: the registry, what is beside it, and how many work at once.

use slackwater::shrink::ShrinkerForm;

/// In the order of their history.
pub(crate) const FORMS: [ShrinkerForm; 3] = [ShrinkerForm::Rwsem, ShrinkerForm::Srcu, ShrinkerForm::RefcountRcu];

/// How tables, plots and targets call a form.
pub(crate) fn name(form: ShrinkerForm) -> &'static str {
    match form {
        ShrinkerForm::Rwsem => "rwsem",
        ShrinkerForm::Srcu => "srcu",
        ShrinkerForm::RefcountRcu => "refcount_rcu",
    }
}

/// The running kernel among them.
pub(crate) const KERNEL: &str = "kernel";

/// What goes on beside.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Load {
    /// Nothing.
    Quiet,
    /// One thread walks all shrinkers again and again, one of which is slow.
    SlowScans,
}

impl Load {
    pub(crate) const ALL: [Self; 2] = [Self::Quiet, Self::SlowScans];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::SlowScans => "slow scans",
        }
    }
}

/// Who works, and beside what.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Setting {
    pub(crate) workers: usize,
    pub(crate) load: Load,
}

impl Setting {
    /// One worker and `most` of them, quiet and beside slow scans.
    pub(crate) fn all(most: usize) -> Vec<Self> {
        let workers: &[usize] = if most == 1 { &[1] } else { &[1, most] };
        Load::ALL
            .iter()
            .flat_map(|load| workers.iter().map(|workers| Self { workers: *workers, load: *load }))
            .collect()
    }

    pub(crate) fn name(self) -> String {
        let Self { workers, load } = self;
        format!("{workers} worker{}, {}", if workers == 1 { "" } else { "s" }, load.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_names_of_their_own() {
        let names = |most| Setting::all(most).into_iter().map(Setting::name).collect::<std::collections::BTreeSet<_>>();
        assert_eq!((names(9).len(), names(1).len()), (4, 2));
        assert!(names(9).contains("9 workers, slow scans") && names(1).contains("1 worker, quiet"));
    }
}
