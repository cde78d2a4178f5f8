//! What was seen of all mounts, unmounts and lookups, by who did them and beside how many.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::json;

use super::axes::{Setting, Way};
use super::lookups::{Lookups, histogram};
use super::testbed::Cycle;
use crate::samples::Microseconds;
use crate::series::Series;
use crate::statistics::quantile;

/// What was seen in one setting.
pub(crate) struct Seen {
    /// In a turn.
    pub(crate) volumes: usize,
    pub(crate) mount: Microseconds,
    /// Of each; of nothing, where all go in one call.
    pub(crate) umount: Microseconds,
    /// Nanoseconds of lookups.
    pub(crate) beside_mounts: Histogram<u64>,
    pub(crate) beside_umounts: Histogram<u64>,
    /// Of each turn.
    pub(crate) grace_periods: Vec<f64>,
}

/// Everything. Series have a figure of each round.
#[derive(Default)]
pub(crate) struct Records {
    seen: Vec<(Setting, Seen)>,
    /// Medians of a turn. Where all go in one call: that time by their number.
    pub(crate) mount_us: Series,
    pub(crate) umount_us: Series,
    pub(crate) mount_all_ms: Series,
    pub(crate) umount_all_ms: Series,
    pub(crate) lookups_per_s_beside_mounts: Series,
    pub(crate) lookups_per_s_beside_umounts: Series,
    /// Beside unmounts.
    pub(crate) lookup_p999_us: Series,
    pub(crate) lookups_during_one: Series,
    /// Bytes of an idle volume.
    pub(crate) bytes: Vec<f64>,
}

impl Records {
    /// Adds a turn, of so many volumes.
    pub(crate) fn add(&mut self, setting: Setting, volumes: usize, cycle: &Cycle) -> Result<()> {
        let (row, who) = (setting.beside(), setting.who());
        let Cycle { mount, umount, grace_periods } = cycle;
        let umount_us = match setting.way {
            Way::OneByOne => quantile(&umount.times.microseconds(), 0.5),
            Way::AtOnce => umount.all.as_secs_f64() * 1e6 / volumes as f64,
        };
        self.mount_us.add(row, who, quantile(&mount.times.microseconds(), 0.5));
        self.umount_us.add(row, who, umount_us);
        self.mount_all_ms.add(row, who, mount.all.as_secs_f64() * 1e3);
        self.umount_all_ms.add(row, who, umount.all.as_secs_f64() * 1e3);
        if let Some(lookups) = &mount.lookups {
            self.lookups_per_s_beside_mounts.add(row, who, lookups.per_s);
        }
        if let Some(lookups) = &umount.lookups {
            self.lookups_per_s_beside_umounts.add(row, who, lookups.per_s);
            self.lookup_p999_us.add(row, who, lookups.ns.value_at_quantile(0.999) as f64 / 1e3);
            self.lookups_during_one.add(row, who, lookups.during_one);
        }
        let seen = self.seen_mut(setting, volumes)?;
        seen.mount.add(&mount.times);
        if setting.way == Way::OneByOne {
            seen.umount.add(&umount.times);
        }
        seen.grace_periods.extend(grace_periods.map(|count| count as f64));
        let add = |all: &mut Histogram<u64>, lookups: &Option<Lookups>| -> Result<()> {
            lookups.as_ref().map_or(Ok(()), |lookups| Ok(all.add(&lookups.ns)?))
        };
        add(&mut seen.beside_mounts, &mount.lookups)?;
        add(&mut seen.beside_umounts, &umount.lookups)
    }

    /// None if it was not measured.
    pub(crate) fn of(&self, setting: Setting) -> Option<&Seen> {
        self.seen.iter().find(|(other, _)| *other == setting).map(|(_, seen)| seen)
    }

    fn seen_mut(&mut self, setting: Setting, volumes: usize) -> Result<&mut Seen> {
        let at = match self.seen.iter().position(|(other, _)| *other == setting) {
            Some(at) => at,
            None => {
                let (mount, umount, grace_periods) = Default::default();
                let (beside_mounts, beside_umounts) = (histogram()?, histogram()?);
                let seen = Seen { volumes, mount, umount, beside_mounts, beside_umounts, grace_periods };
                self.seen.push((setting, seen));
                self.seen.len() - 1
            }
        };
        Ok(&mut self.seen[at].1)
    }

    /// Everything, for other programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        let quantiles = |samples: &Microseconds| {
            let of = |share| samples.quantile(share);
            json!({ "count": samples.count(), "p50": of(0.5), "p99": of(0.99), "max": of(1.0) })
        };
        let lookups = |ns: &Histogram<u64>| {
            let of = |share| ns.value_at_quantile(share);
            json!({ "count": ns.len(), "p50": of(0.5), "p999": of(0.999), "max": ns.max() })
        };
        let one = |(setting, seen): &(Setting, Seen)| {
            json!({
                "who": setting.who(), "lookers": setting.lookers, "volumes": seen.volumes,
                "mount_us": quantiles(&seen.mount), "umount_us": quantiles(&seen.umount),
                "lookup_ns_beside_mounts": lookups(&seen.beside_mounts),
                "lookup_ns_beside_umounts": lookups(&seen.beside_umounts),
                "grace_periods": seen.grace_periods,
            })
        };
        json!({
            "settings": self.seen.iter().map(one).collect::<Vec<_>>(),
            "mount_us": self.mount_us.json(), "umount_us": self.umount_us.json(),
            "mount_all_ms": self.mount_all_ms.json(), "umount_all_ms": self.umount_all_ms.json(),
            "lookups_per_s_beside_mounts": self.lookups_per_s_beside_mounts.json(),
            "lookups_per_s_beside_umounts": self.lookups_per_s_beside_umounts.json(),
            "lookup_p999_us": self.lookup_p999_us.json(), "lookups_during_an_unmount": self.lookups_during_one.json(),
            "bytes_of_an_idle_volume": self.bytes,
        })
    }
}
