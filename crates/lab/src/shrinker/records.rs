//! What was seen of all cycles and registrations, by who did them and beside what.

use super::axes::Setting;
use super::cycle::Cycles;
use crate::samples::{Microseconds, Samples};
use crate::series::Series;
use crate::statistics::quantile;

/// How long a registry took.
#[derive(Clone, Default)]
pub(crate) struct Registrations {
    pub(crate) register: Samples,
    pub(crate) unregister: Samples,
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
