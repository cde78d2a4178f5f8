//! `namespace`: thousands of volumes mounted and unmounted by path in one engine, beside the kernel's tmpfs.
//!
//! Volumes in memory are mounted one by one, and unmounted one by one or in one call, while no, one or two threads look up
//! other volumes and files in them. Unmounts wait for expedited grace periods, or for normal ones with an injected wait of
//! 12 ms; of the latter only as many are made one by one as fit into a turn. The kernel does the same with tmpfs by system
//! calls, in a mount namespace of its own.
//!
//! Each kind of grace period has an engine of its own, and everything has a turn in each round.

mod axes;
mod kernel;
mod lookups;
mod memory;
mod results;
mod testbed;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use self::axes::{Setting, Subject, Way};
use self::kernel::Kernel;
use self::lookups::histogram;
pub(crate) use self::memory::{IdleVolumesArguments, run_idle_volumes};
use self::testbed::{Cycle, STANDING, Testbed};
use crate::harness::{Cells, Options, Report, Samples, Series, quantile, rounds};
use crate::scratch::Scratch;

const ABOUT: &str = "Thousands of volumes in memory mounted and unmounted by path in one engine, one by one and in one call, while threads look \
     up others: what the grace period of an unmount costs, normal or expedited.";

/// How many volumes a turn mounts and unmounts.
#[derive(Copy, Clone)]
struct Amounts {
    volumes: usize,
    /// Where each waits for a normal grace period.
    normal: usize,
    /// Idle ones whose memory is measured.
    idle: usize,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        Self { volumes: options.pick(5000, 1500), normal: options.pick(40, 8), idle: 5000 }
    }

    fn volumes(self, setting: Setting) -> usize {
        match (setting.subject, setting.way) {
            (Subject::Normal, Way::OneByOne) => self.normal,
            _ => self.volumes,
        }
    }
}

/// The records of one setting.
#[derive(Default)]
struct Seen {
    /// In a turn.
    volumes: usize,
    /// Microseconds of each mount, and of each unmount where each has a call.
    mount: Samples,
    umount: Samples,
    beside_mounts: LookupNs,
    beside_umounts: LookupNs,
    /// Of each turn.
    grace_periods: Samples,
}

/// Nanoseconds of lookups.
struct LookupNs(Histogram<u64>);

impl Default for LookupNs {
    fn default() -> Self {
        Self(histogram().expect("the bounds are valid"))
    }
}

/// Everything. Series have a sample for each round.
#[derive(Default)]
struct Records {
    seen: Cells<Setting, Seen>,
    /// The median of a turn. For unmounts in one call: its time divided by the volumes.
    mount_us: Series,
    umount_us: Series,
    mount_all_ms: Series,
    umount_all_ms: Series,
    lookups_per_s_beside_mounts: Series,
    lookups_per_s_beside_umounts: Series,
    /// Of lookups beside unmounts.
    lookup_p999_us: Series,
    lookups_during_one: Series,
    /// Bytes of an idle volume.
    bytes: Samples,
}

impl Records {
    /// Adds a turn with so many volumes.
    fn add(&mut self, setting: Setting, volumes: usize, cycle: Cycle) -> Result<()> {
        let (row, subject) = (setting.load_name(), setting.subject_name());
        let Cycle { mount, umount, grace_periods } = cycle;
        let umount_us = match setting.way {
            Way::OneByOne => quantile(&umount.us, 0.5),
            Way::AtOnce => umount.all.as_secs_f64() * 1e6 / volumes as f64,
        };
        self.mount_us.add(row, subject, quantile(&mount.us, 0.5));
        self.umount_us.add(row, subject, umount_us);
        self.mount_all_ms.add(row, subject, mount.all.as_secs_f64() * 1e3);
        self.umount_all_ms.add(row, subject, umount.all.as_secs_f64() * 1e3);
        let seen = self.seen.entry(setting);
        if let Some(lookups) = &mount.lookups {
            self.lookups_per_s_beside_mounts.add(row, subject, lookups.per_s);
            seen.beside_mounts.0.add(&lookups.ns)?;
        }
        if let Some(lookups) = &umount.lookups {
            self.lookups_per_s_beside_umounts.add(row, subject, lookups.per_s);
            self.lookup_p999_us.add(row, subject, lookups.ns.value_at_quantile(0.999) as f64 / 1e3);
            self.lookups_during_one.add(row, subject, lookups.during_one);
            seen.beside_umounts.0.add(&lookups.ns)?;
        }
        seen.volumes = volumes;
        seen.mount.push_round(mount.us);
        if setting.way == Way::OneByOne {
            seen.umount.push_round(umount.us);
        }
        grace_periods.into_iter().for_each(|count| seen.grace_periods.push(count as f64));
        Ok(())
    }
}

/// A turn of a round.
enum Turn<'a> {
    Engine(&'a Testbed, Setting),
    Kernel(&'a Kernel, Setting),
    Memory,
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("namespace", ABOUT, options);
    let kernel = report.optional("the kernel's tmpfs", Kernel::new(&home, amounts.volumes))?;
    let testbeds = testbeds(amounts)?;
    let mut records = Records::default();
    rounds::run("namespace", options.rounds(), &turns(&testbeds, kernel.as_ref()), |_, turn| {
        measure_turn(turn, amounts, &mut records)
    })?;
    results::report(&records, &mut report);
    results::notes(amounts.normal, amounts.idle, &mut report);
    Ok(report)
}

/// An engine for each kind of grace period.
fn testbeds(amounts: Amounts) -> Result<Vec<(Subject, Testbed)>> {
    let graces = Subject::ALL.into_iter().filter_map(|subject| Some((subject, subject.grace()?)));
    graces.map(|(subject, grace)| Ok((subject, Testbed::new(grace, amounts.volumes)?))).collect()
}

fn turns<'a>(testbeds: &'a [(Subject, Testbed)], kernel: Option<&'a Kernel>) -> Vec<Turn<'a>> {
    let turn = |setting: Setting| match testbeds.iter().find(|(subject, _)| *subject == setting.subject) {
        Some((_, testbed)) => Some(Turn::Engine(testbed, setting)),
        None => Some(Turn::Kernel(kernel?, setting)),
    };
    Setting::all().into_iter().filter_map(turn).chain([Turn::Memory]).collect()
}

fn measure_turn(turn: &Turn<'_>, amounts: Amounts, records: &mut Records) -> Result<()> {
    let (setting, cycle) = match turn {
        Turn::Engine(testbed, setting) => {
            (*setting, testbed.run(setting.way, amounts.volumes(*setting), setting.lookers))
        }
        Turn::Kernel(kernel, setting) => (*setting, kernel.run(amounts.volumes(*setting), setting.lookers)),
        Turn::Memory => {
            records.bytes.push(memory::ask(amounts.idle)?);
            return Ok(());
        }
    };
    records.add(setting, amounts.volumes(setting), cycle.with_context(|| setting.name())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Amounts = Amounts { volumes: 20, normal: 2, idle: 20 };
    const THREE: Amounts = Amounts { volumes: 3, ..FEW };

    #[test]
    fn every_setting_mounts_unmounts_and_is_on_the_page() {
        let testbeds = testbeds(FEW).unwrap();
        let mut records = Records::default();
        for turn in turns(&testbeds, None).iter().filter(|turn| !matches!(turn, Turn::Memory)) {
            measure_turn(turn, FEW, &mut records).unwrap();
        }
        records.bytes.push(memory::bytes_per_volume(FEW.idle).unwrap());
        let of_engine = |setting: &Setting| setting.subject != Subject::Kernel;
        for setting in Setting::all().into_iter().filter(of_engine) {
            let wanted = match setting.way {
                Way::OneByOne => FEW.volumes(setting),
                Way::AtOnce => 1,
            };
            let seen = records.seen.of(&setting).unwrap();
            assert_eq!(seen.grace_periods.all(), [wanted as f64], "{}", setting.name());
        }
        let mut report = Report::of_test("namespace");
        results::report(&records, &mut report);
        report.assert_page_has(&[
            "2 threads look up: normal, 12 ms injected, at once: grace periods",
            "1 thread looks up: normal, 12 ms injected: p99.9 of lookups meanwhile",
            "4 CPUs, expedited",
            "Unmount: no lookups",
            "<svg",
            "Memory of an idle volume",
        ]);
    }

    #[test]
    fn the_kernels_mounts_are_invisible_to_other_processes() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        // Without root there is nothing to test.
        let Ok(kernel) = Kernel::new(&home, 3) else { return };
        let mut records = Records::default();
        for setting in Setting::all().into_iter().filter(|setting| setting.subject == Subject::Kernel) {
            measure_turn(&Turn::Kernel(&kernel, setting), THREE, &mut records).unwrap();
            let seen = records.seen.of(&setting).unwrap();
            assert_eq!((seen.mount.count(), seen.umount.count()), (3, 3));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&home.path().display().to_string()), "{mounts}");
    }
}
