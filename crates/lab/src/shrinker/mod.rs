//! `shrinker`: the cost of a registry of shrinkers for threads that mount and unmount, in three forms, beside the kernel's
//! ramfs.
//!
//! A worker mounts a volume in memory, makes and removes a file, a link and a directory in it as stress-ng's ramfs stressor
//! does, and unmounts it, again and again. Each mount registers a shrinker and each unmount unregisters it. Meanwhile either
//! nothing else runs, or one thread walks all shrinkers again and again, and one of them takes 50 ms to scan.
//!
//! Registrations are also measured on their own: of a shrinker without objects, by as many threads.
//!
//! Each form has an engine of its own. Each engine and the kernel have turns in every setting in each round.

mod cycle;
mod kernel;
mod results;
mod testbed;

use std::time::Duration;

use anyhow::{Context, Result};

use self::cycle::Times;
use self::kernel::Kernel;
use self::testbed::Testbed;
use crate::harness::{Cells, Options, PageOptions, Report, Samples, Series, axis, quantile, rounds};
use crate::scratch::Scratch;

const ABOUT: &str = "The cost of a registry of shrinkers for threads that mount and unmount: each mount registers one, while another thread \
     walks them all. Three registries that Linux has had, in this engine.";

/// As many as in the published runs.
const WORKERS: u16 = 9;
const WORKERS_MAX: i64 = 64;
/// A quiet setting has so many turns in a round: the machine's speed drifts, so they are short and many.
const QUIET_TURNS: usize = 3;

#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Workers at once, in addition to the rows with one worker [default: 9]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    pub(crate) workers: Option<u16>,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

axis! {
    /// The registries in the order of their history, and the kernel.
    enum Subject {
        Rwsem = "rwsem",
        /// With the engine's default time for others to join a grace period.
        Srcu = "srcu, 1 ms injected",
        SrcuAtOnce = "srcu, 0 ms injected",
        RefcountRcu = "refcount_rcu",
        Kernel = "kernel",
    }
}

impl Subject {
    const ENGINES: [Self; 4] = [Self::Rwsem, Self::Srcu, Self::SrcuAtOnce, Self::RefcountRcu];
}

axis! {
    /// The load.
    enum Load {
        Quiet = "quiet",
        /// One thread walks all shrinkers again and again, one of which is slow.
        SlowScans = "slow scans",
    }
}

/// How many work, and under which load.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Setting {
    workers: usize,
    load: Load,
}

impl Setting {
    /// One worker and `most` of them, under each load.
    fn all(most: usize) -> Vec<Self> {
        let workers: &[usize] = if most == 1 { &[1] } else { &[1, most] };
        Load::ALL
            .iter()
            .flat_map(|load| workers.iter().map(|workers| Self { workers: *workers, load: *load }))
            .collect()
    }

    fn name(self) -> String {
        let Self { workers, load } = self;
        format!("{workers} worker{}, {}", if workers == 1 { "" } else { "s" }, load.name())
    }

    /// How long the cycles of a turn take, and then its registrations. Several slow scans run in theirs.
    fn time(self, options: &Options) -> Duration {
        Duration::from_millis(match self.load {
            Load::Quiet => options.pick(80, 40),
            Load::SlowScans => options.pick(250, 120),
        })
    }
}

/// Microseconds of one subject in one setting.
#[derive(Default)]
struct Seen {
    mount: Samples,
    umount: Samples,
    register: Samples,
    unregister: Samples,
}

#[derive(Default)]
struct Records {
    seen: Cells<(Setting, Subject), Seen>,
    per_s: Series,
    /// Longest registration of a turn.
    longest_ms: Series,
    /// Median over a turn of mounting and unmounting together.
    mount_and_umount_us: Series,
}

impl Records {
    fn add_cycles(&mut self, setting: Setting, subject: Subject, (per_s, times): (f64, Times)) {
        let (row, Times { first_us: mount, second_us: umount }) = (setting.name(), times);
        self.per_s.add(&row, subject.name(), per_s);
        let both: Vec<f64> = mount.iter().zip(&umount).map(|(mount, umount)| mount + umount).collect();
        self.mount_and_umount_us.add(&row, subject.name(), quantile(&both, 0.5));
        let seen = self.seen.entry((setting, subject));
        seen.mount.push_round(mount);
        seen.umount.push_round(umount);
    }

    fn add_registrations(&mut self, setting: Setting, subject: Subject, times: Times) {
        let longest_us = times.first_us.iter().copied().fold(0.0, f64::max);
        self.longest_ms.add(&setting.name(), subject.name(), longest_us / 1e3);
        let seen = self.seen.entry((setting, subject));
        seen.register.push_round(times.first_us);
        seen.unregister.push_round(times.second_us);
    }
}

/// Runs the experiment; `None` is the default.
pub(crate) fn run(options: &Options, workers: Option<u16>) -> Result<Report> {
    let most = usize::from(workers.unwrap_or(WORKERS));
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("shrinker", ABOUT, options);
    let kernel = report.optional("the kernel's ramfs", Kernel::new(&home, most))?;
    let settings = Setting::all(most);
    let testbeds = testbeds()?;
    let mut turns: Vec<(Option<&Testbed>, Setting)> = Vec::new();
    for setting in &settings {
        let is_quiet = setting.load == Load::Quiet;
        for _ in 0..if is_quiet { QUIET_TURNS } else { 1 } {
            turns.extend(testbeds.iter().map(|testbed| (Some(testbed), *setting)));
            turns.extend(kernel.iter().filter(|_| is_quiet).map(|_| (None, *setting)));
        }
    }
    let mut records = Records::default();
    rounds::run("shrinker", options.rounds(), &turns, |_, (testbed, setting)| {
        let time = setting.time(options);
        match (testbed, &kernel) {
            (Some(testbed), _) => measure_turn(testbed, *setting, time, &mut records),
            (None, Some(kernel)) => {
                kernel.run(setting.workers, time).map(|cycles| records.add_cycles(*setting, Subject::Kernel, cycles))
            }
            (None, None) => Ok(()),
        }
        .with_context(|| setting.name())
    })?;
    results::report(&records, &settings, &mut report);
    Ok(report)
}

fn testbeds() -> Result<Vec<Testbed>> {
    Subject::ALL.into_iter().filter_map(|subject| Testbed::new(subject).transpose()).collect()
}

fn measure_turn(testbed: &Testbed, setting: Setting, time: Duration, records: &mut Records) -> Result<()> {
    let Setting { workers, load } = setting;
    let (cycles, registrations) = testbed.under(load, || {
        let cycle = |times: &mut Times, worker| cycle::cycle(&testbed.engine, worker, times);
        Ok((cycle::run_lanes(workers, time, cycle)?, testbed.register(workers, time)?))
    })?;
    records.add_cycles(setting, testbed.subject, cycles);
    records.add_registrations(setting, testbed.subject, registrations);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_mounts_works_registers_and_leaves_nothing_behind() {
        let mut records = Records::default();
        for testbed in testbeds().unwrap() {
            for setting in Setting::all(3) {
                measure_turn(&testbed, setting, Duration::ZERO, &mut records).unwrap();
            }
            assert!(
                testbed.engine.volumes().is_empty() && testbed.engine.shrinkers().is_empty(),
                "{:?}",
                testbed.subject
            );
        }
        let mut report = Report::of_test("shrinker");
        results::report(&records, &Setting::all(3), &mut report);
        report.assert_page_has(&[
            "3 workers, slow scans: srcu, 1 ms injected",
            "1 worker, quiet: refcount_rcu",
            "<svg",
            "7884",
            "longest registration",
        ]);
        assert_eq!((Setting::all(9).len(), Setting::all(1).len()), (4, 2));
    }

    #[test]
    fn the_kernels_mounts_are_invisible_to_other_processes() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        // Without root there is nothing to test.
        let Ok(kernel) = Kernel::new(&home, 2) else { return };
        assert!(kernel.run(2, Duration::from_millis(1)).unwrap().0 > 0.0);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&home.path().display().to_string()), "{mounts}");
    }
}
