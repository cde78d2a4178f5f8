//! What was seen of all cycles and registrations, by who did them and beside what.

use super::axes::Setting;
use super::cycle::{Cycles, Samples};
use crate::series::Series;
use crate::statistics::quantile;

/// How long a registry took.
#[derive(Clone, Default)]
pub(crate) struct Registrations {
    pub(crate) register: Samples,
    pub(crate) unregister: Samples,
}

/// Samples of one kind, of all rounds together.
#[derive(Clone, Default)]
pub(crate) struct Microseconds(Vec<f64>);

impl Microseconds {
    fn add(&mut self, samples: &Samples) {
        self.0.extend(samples.microseconds());
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// None without samples.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| quantile(&self.0, share))
    }

    /// So many of them that a curve through them looks like one through all.
    pub(crate) fn thinned(&self) -> Vec<f64> {
        const POINTS: usize = 400;
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        match sorted.len() {
            0..=POINTS => sorted,
            _ => (0..POINTS).map(|point| sorted[last * point / (POINTS - 1)]).collect(),
        }
    }
}

/// What one subject did in one setting.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) mount: Microseconds,
    pub(crate) umount: Microseconds,
    pub(crate) register: Microseconds,
    pub(crate) unregister: Microseconds,
}

/// Everything.
#[derive(Default)]
pub(crate) struct Records {
    seen: Vec<(Setting, &'static str, Seen)>,
    /// Cycles a second.
    pub(crate) per_s: Series,
    /// Longest registration of a round, in milliseconds.
    pub(crate) longest_ms: Series,
    /// Median of mounting and unmounting of a round, in microseconds.
    pub(crate) mount_and_umount_us: Series,
}

impl Records {
    /// Adds the cycles of a turn.
    pub(crate) fn add_cycles(&mut self, setting: Setting, subject: &'static str, cycles: &Cycles) {
        let (row, times) = (setting.name(), &cycles.times);
        self.per_s.add(&row, subject, cycles.per_s);
        let both = times.mount.microseconds().into_iter().zip(times.umount.microseconds());
        let both: Vec<f64> = both.map(|(mount, umount)| mount + umount).collect();
        if !both.is_empty() {
            self.mount_and_umount_us.add(&row, subject, quantile(&both, 0.5));
        }
        let seen = self.seen_mut(setting, subject);
        seen.mount.add(&times.mount);
        seen.umount.add(&times.umount);
    }

    /// Adds the registrations of a turn.
    pub(crate) fn add_registrations(&mut self, setting: Setting, subject: &'static str, registrations: &Registrations) {
        let longest_us = registrations.register.microseconds().into_iter().fold(0.0, f64::max);
        self.longest_ms.add(&setting.name(), subject, longest_us / 1e3);
        let seen = self.seen_mut(setting, subject);
        seen.register.add(&registrations.register);
        seen.unregister.add(&registrations.unregister);
    }

    /// None if it was not measured.
    pub(crate) fn of(&self, setting: Setting, subject: &str) -> Option<&Seen> {
        self.seen.iter().find(|(other, name, _)| *other == setting && *name == subject).map(|(_, _, seen)| seen)
    }

    fn seen_mut(&mut self, setting: Setting, subject: &'static str) -> &mut Seen {
        let at = self.seen.iter().position(|(other, name, _)| *other == setting && *name == subject);
        let at = at.unwrap_or_else(|| {
            self.seen.push((setting, subject, Seen::default()));
            self.seen.len() - 1
        });
        &mut self.seen[at].2
    }

    /// Everything, for other programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let quantiles = |samples: &Microseconds| {
            let of = |share| samples.quantile(share);
            serde_json::json!({ "count": samples.count(), "p50": of(0.5), "p99": of(0.99), "max": of(1.0) })
        };
        let one = |(setting, subject, seen): &(Setting, &'static str, Seen)| {
            serde_json::json!({
                "workers": setting.workers, "load": setting.load.name(), "subject": subject,
                "mount_us": quantiles(&seen.mount), "umount_us": quantiles(&seen.umount),
                "register_us": quantiles(&seen.register), "unregister_us": quantiles(&seen.unregister),
            })
        };
        serde_json::json!({
            "times": self.seen.iter().map(one).collect::<Vec<_>>(),
            "cycles_per_s": self.per_s.json(), "longest_registration_ms": self.longest_ms.json(),
            "mount_and_umount_us": self.mount_and_umount_us.json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_distribution_keeps_its_ends_and_its_middle() {
        let all = Microseconds((0..100_000).rev().map(f64::from).collect());
        let thin = all.thinned();
        assert_eq!((thin.len(), thin[0], thin[399]), (400, 0.0, 99_999.0));
        assert!((quantile(&thin, 0.5) - 50_000.0).abs() < 300.0);
        assert_eq!(Microseconds(vec![2.0, 1.0]).thinned(), [1.0, 2.0]);
        assert!(Microseconds::default().thinned().is_empty() && Microseconds::default().quantile(0.5).is_none());
    }
}
