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

mod testbed;

use std::time::Duration;

use anyhow::{Context, Result};

use self::testbed::{Kernel, Testbed, Times};
use crate::harness::{AtLeast, AtMost, Options, Report, Series, Source, Table, axis, rounds};
use crate::scratch::Scratch;

/// Number of workers, as in the published runs.
const WORKERS: usize = 9;
/// A quiet setting has so many turns in a round: the machine's speed drifts, so they are short and many.
const QUIET_TURNS: usize = 3;

axis! {
    /// The registries in the order of their history, and the kernel.
    enum Subject {
        Rwsem = "rwsem",
        /// The registry with the engine's default time for others to join a grace period.
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

/// The number of workers, and their load.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Setting {
    workers: usize,
    load: Load,
}

impl Setting {
    /// The settings: one worker and `most` of them, under each load.
    fn all(most: usize) -> Vec<Self> {
        Load::ALL.into_iter().flat_map(|load| [1, most].map(|workers| Self { workers, load })).collect()
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

    /// The row of a figure.
    fn row(self, figure: &str) -> String {
        format!("{figure}: {}", self.name())
    }
}

/// The figures of a setting. Those in microseconds have a sample for each operation.
const CYCLES: &str = "cycles/s";
const MOUNT: &str = "mount us";
const UMOUNT: &str = "unmount us";
const REGISTER: &str = "register us";
const UNREGISTER: &str = "unregister us";

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let home = Scratch::in_folder(&options.dir)?;
    let kernel = report.optional("the kernel's ramfs", Kernel::new(&home, WORKERS))?;
    let testbeds = testbeds()?;
    let mut turns: Vec<(Option<&Testbed>, Setting)> = Vec::new();
    for setting in Setting::all(WORKERS) {
        let is_quiet = setting.load == Load::Quiet;
        for _ in 0..if is_quiet { QUIET_TURNS } else { 1 } {
            turns.extend(testbeds.iter().map(|testbed| (Some(testbed), setting)));
            turns.extend(kernel.iter().filter(|_| is_quiet).map(|_| (None, setting)));
        }
    }
    let series = &mut report.series;
    rounds::run("shrinker", options.rounds(), &turns, |_, (testbed, setting)| {
        let time = setting.time(options);
        match (testbed, &kernel) {
            (Some(testbed), _) => measure_turn(testbed, *setting, time, series),
            (None, Some(kernel)) => kernel
                .run(setting.workers, time)
                .map(|(per_s, times)| add_cycles(series, *setting, Subject::Kernel, per_s, times)),
            (None, None) => Ok(()),
        }
        .with_context(|| setting.name())
    })?;
    publish(WORKERS, report);
    Ok(())
}

fn testbeds() -> Result<Vec<Testbed>> {
    Subject::ENGINES.into_iter().map(Testbed::new).collect()
}

fn measure_turn(testbed: &Testbed, setting: Setting, time: Duration, series: &mut Series) -> Result<()> {
    let Setting { workers, load } = setting;
    let ((per_s, times), registrations) =
        testbed.under(load, || Ok((testbed.cycle(workers, time)?, testbed.register(workers, time)?)))?;
    add_cycles(series, setting, testbed.subject, per_s, times);
    series.add_round(&setting.row(REGISTER), testbed.subject.name(), registrations.first_us);
    series.add_round(&setting.row(UNREGISTER), testbed.subject.name(), registrations.second_us);
    Ok(())
}

fn add_cycles(series: &mut Series, setting: Setting, subject: Subject, per_s: f64, times: Times) {
    series.add(&setting.row(CYCLES), subject.name(), per_s);
    series.add_round(&setting.row(MOUNT), subject.name(), times.first_us);
    series.add_round(&setting.row(UMOUNT), subject.name(), times.second_us);
}

/// Published cycles per second of three registries of the kernel: nine stress-ng workers that mount a ramfs, work in it and
/// unmount it, for a minute; on 24 and on 32 CPUs.
const PUBLISHED: [(&str, Option<f64>, Option<f64>); 4] = [
    ("rwsem", Some(7884.12), Some(12_915.89)),
    ("srcu", None, Some(2811.08)),
    ("srcu, expedited", None, Some(11_834.18)),
    ("refcount_rcu", Some(7952.55), None),
];

/// Adds the tables, plots and targets; `most` is the larger number of workers.
fn publish(most: usize, report: &mut Report) {
    const QUANTILES: [f64; 3] = [0.5, 0.99, 1.0];
    let series = &report.series;
    let default = Subject::RefcountRcu.name();
    let columns = " | cycles/s | by rwsem | mount p50 us | p99 | max | umount p50 us | p99 | max";
    let mut cycles =
        Table::new("Mounting a volume in memory, working in it, unmounting it; the kernel with a ramfs", columns);
    let columns =
        " | registrations | register p50 us | p99 | max | unregister p50 us | p99 | max | longest of a round, ms";
    let mut registrations = Table::new("Registering a shrinker without objects, and unregistering it", columns);
    for (setting, subject) in
        Setting::all(most).into_iter().flat_map(|setting| Subject::ALL.map(|each| (setting, each)))
    {
        let of = |figure| series.of(&setting.row(figure), subject.name());
        let name = format!("{}: {}", setting.name(), subject.name());
        if of(CYCLES).count() != 0 {
            let ratio = series.ratio(&setting.row(CYCLES), subject.name(), Subject::Rwsem.name());
            let row = cycles.row(&name).figure(of(CYCLES).median());
            let row = row.estimate(ratio.filter(|_| subject != Subject::Rwsem));
            row.figures(of(MOUNT).quantiles(QUANTILES)).figures(of(UMOUNT).quantiles(QUANTILES));
        }
        if of(REGISTER).count() != 0 {
            let row = registrations.row(&name).text(of(REGISTER).count());
            let row = row.figures(of(REGISTER).quantiles(QUANTILES)).figures(of(UNREGISTER).quantiles(QUANTILES));
            row.figure(of(REGISTER).of_rounds(1.0).median().map(|us| us / 1e3));
        }
    }
    let mut published =
        Table::new("Published of the kernel: nine workers, ramfs, 60 s", " | 24 CPUs, cycles/s | 32 CPUs, cycles/s");
    for (registry, one, other) in PUBLISHED {
        published.row(registry).figures([one, other]);
    }
    let [quiet, slow] = Load::ALL.map(|load| Setting { workers: 1, load });
    let by = |bottom: Subject| series.ratio(&quiet.row(CYCLES), default, bottom.name());
    let (by_rwsem, by_kernel) = (by(Subject::Rwsem), by(Subject::Kernel));
    let longest = series.of(&slow.row(REGISTER), default).of_rounds(1.0).estimate().map(|us| us.times(1e-3));
    let medians = |setting: Setting, subjects: &[Subject]| -> Vec<_> {
        let of = |subject: &Subject| (subject.name(), series.median(&setting.row(CYCLES), subject.name()));
        subjects.iter().map(of).collect()
    };
    let kernel = medians(quiet, &[Subject::Kernel]);
    let [ours, beside_scans] = [quiet, slow].map(|setting| medians(setting, &Subject::ENGINES));
    let figures = PUBLISHED.map(|(registry, cycles, _)| (registry, cycles));
    report.finding(Source::Published, "Nine stressors with a ramfs on 24 CPUs, cycles per s", figures);
    report.finding(Source::Kernel, "One worker with a ramfs, cycles per s", kernel);
    report.finding(Source::Ours, "One worker, cycles per s", ours);
    report.finding(Source::Ours, "Beside scans of 50 ms", beside_scans);
    [cycles, registrations, published].into_iter().for_each(|table| report.table(table));
    for setting in Setting::all(most) {
        let (title, row) = (format!("Registration: {}", setting.name()), setting.row(REGISTER));
        report.curves(title, "microseconds of a registration", &row, Subject::ENGINES.map(Subject::name));
    }
    report.target("cycles with refcount_rcu by those with rwsem, quiet", AtLeast(0.95), by_rwsem);
    report.target("cycles by those of the kernel with a ramfs", AtLeast(5.0), by_kernel);
    let title = format!("{default}: longest registration of a round beside slow scans, ms");
    report.target(title, AtMost(25.0), longest);
    report.note(
        "Injected: before each SRCU grace period the engine's default waits 1 ms for others to join (rcu::Options::coalesce), and \
         an unmount waits for one grace period. The cycles with \"srcu, 1 ms injected\" are therefore limited to somewhat less than \
         1000 per second and worker; \"srcu, 0 ms injected\" is the same registry without that wait. Beside slow scans both wait for \
         the scan.",
    );
    report.note(
        "By rwsem: medians of the rounds' ratios, 95 % intervals. The kernel's cycle is mount(2), the same work in a ramfs, and \
         umount2(2), in a mount namespace of its own. Only the engine's shrinkers are walked, so the kernel has no rows beside slow \
         scans.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_mounts_works_registers_and_leaves_nothing_behind() {
        let mut report = Report::of_test("shrinker");
        for testbed in testbeds().unwrap() {
            for setting in Setting::all(3) {
                measure_turn(&testbed, setting, Duration::ZERO, &mut report.series).unwrap();
            }
            let is_clean = testbed.engine.volumes().is_empty() && testbed.engine.shrinkers().is_empty();
            assert!(is_clean, "{:?}", testbed.subject);
        }
        publish(3, &mut report);
        report.assert_page_has(&[
            "3 workers, slow scans: srcu, 1 ms injected",
            "1 worker, quiet: refcount_rcu",
            "<svg",
            "7884",
            "longest registration",
        ]);
    }

    #[test]
    fn the_kernels_mounts_are_invisible_to_other_processes() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        // Without root there is nothing to test.
        let Ok(kernel) = Kernel::new(&home, 2) else { return };
        assert!(kernel.run(2, Duration::from_millis(1)).unwrap().0 > 0.0);
        home.assert_nothing_is_mounted();
    }
}
