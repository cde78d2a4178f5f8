//! `shrinker`: what a registry of shrinkers costs those who mount and unmount, in three forms, and the kernel's own ramfs.
//!
//! A worker mounts a volume in memory, makes and removes a file, a link and a directory in it as stress-ng's ramfs stressor
//! does, and unmounts it, again and again. Each mount registers a shrinker and each unmount unregisters it. Beside that,
//! nothing happens, or one thread walks all shrinkers all the time, and one of them takes 50 ms to scan.
//!
//! Registrations themselves are measured apart: of a shrinker that has nothing, by as many threads.
//!
//! Each form has an engine of its own, and each engine has turns in every setting in each round, as the kernel has.

mod axes;
mod cycle;
mod kernel;
mod published;
mod records;
mod results;
mod testbed;

use std::time::Duration;

use anyhow::{Context, Result};

use self::axes::{FORMS, KERNEL, Load, Setting, name};
use self::kernel::Kernel;
use self::records::Records;
use self::testbed::Testbed;
use crate::options::{Options, PageOptions};
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{interrupt, rounds};

/// As many as in the published runs.
const WORKERS: u16 = 9;
const WORKERS_MAX: i64 = 64;

#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Workers at once, beside the rows with one
    #[arg(long, value_name = "N", default_value_t = WORKERS, value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    workers: u16,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

impl Arguments {
    /// Without any of its own.
    pub(crate) fn usual(page: PageOptions) -> Self {
        Self { workers: WORKERS, page }
    }
}

/// How often a quiet setting has its turns in a round: the machine's speed drifts, so they are short and many.
const QUIET_TURNS: usize = 3;

/// How long the cycles of a turn take, and its registrations again.
struct Amounts {
    quiet: Duration,
    /// Several slow scans come and go meanwhile.
    slow: Duration,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        let time = |full, quick| Duration::from_millis(options.pick(full, quick));
        Self { quiet: time(80, 40), slow: time(250, 120) }
    }

    fn time(&self, load: Load) -> Duration {
        match load {
            Load::Quiet => self.quiet,
            Load::SlowScans => self.slow,
        }
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<Report> {
    let options = &arguments.page.options;
    let (most, amounts) = (usize::from(arguments.workers), Amounts::of(options));
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("shrinker", None, options.seed, Some(options.rounds()));
    report.about(
        "What the registry of shrinkers costs those who mount and unmount: each mount registers one, and beside it somebody walks them \
         all. Three registries that Linux has had, in this engine.",
    );
    let kernel = match Kernel::new(&home, most) {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            interrupt::check()?;
            report.note(format!("No rows for the kernel's ramfs: {error:#}."));
            None
        }
    };
    let testbeds = FORMS.into_iter().map(Testbed::new).collect::<Result<Vec<_>>>()?;
    let settings = Setting::all(most);
    let records = measure(options, &amounts, &testbeds, kernel.as_ref(), &settings)?;
    results::report(&records, &settings, &mut report);
    report.figure("shrinker", records.json());
    report.note(
        "By rwsem: medians of the rounds' ratios, 95 % intervals. The kernel's cycle is mount(2), the same work in a",
    );
    report.note(
        "ramfs, and umount2(2), in a mount namespace of its own; the walks beside are of the engine's shrinkers.",
    );
    Ok(report)
}

/// Gives everybody a turn in each setting in each round. The kernel has none beside slow scans, which are not its own.
fn measure(
    options: &Options,
    amounts: &Amounts,
    testbeds: &[Testbed],
    kernel: Option<&Kernel>,
    settings: &[Setting],
) -> Result<Records> {
    let mut turns: Vec<(Option<&Testbed>, Setting)> = Vec::new();
    for setting in settings {
        let is_quiet = setting.load == Load::Quiet;
        for _ in 0..if is_quiet { QUIET_TURNS } else { 1 } {
            turns.extend(testbeds.iter().map(|testbed| (Some(testbed), *setting)));
            turns.extend(kernel.filter(|_| is_quiet).map(|_| (None, *setting)));
        }
    }
    let mut records = Records::default();
    rounds::run("shrinker", options.rounds(), turns.len(), |_, turn| {
        let (testbed, setting) = turns[turn];
        match (testbed, kernel) {
            (Some(testbed), _) => measure_turn(testbed, setting, amounts, &mut records),
            (None, Some(kernel)) => {
                records.add_cycles(setting, KERNEL, &kernel.run(setting.workers, amounts.quiet)?);
                Ok(())
            }
            (None, None) => Ok(()),
        }
        .with_context(|| setting.name())
    })?;
    Ok(records)
}

fn measure_turn(testbed: &Testbed, setting: Setting, amounts: &Amounts, records: &mut Records) -> Result<()> {
    let Setting { workers, load } = setting;
    let time = amounts.time(load);
    let (cycles, registrations) = testbed.under(load, || {
        let cycles = cycle::run(&testbed.engine, workers, time)?;
        Ok((cycles, testbed.register(workers, time)?))
    })?;
    records.add_cycles(setting, name(testbed.form), &cycles);
    records.add_registrations(setting, name(testbed.form), &registrations);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: Amounts = Amounts { quiet: Duration::ZERO, slow: Duration::ZERO };

    #[test]
    fn every_form_mounts_works_registers_and_leaves_nothing_behind() {
        let mut records = Records::default();
        for form in FORMS {
            let testbed = Testbed::new(form).unwrap();
            for setting in Setting::all(3) {
                measure_turn(&testbed, setting, &ONCE, &mut records).unwrap();
            }
            assert!(testbed.engine.volumes().is_empty() && testbed.engine.shrinkers().is_empty(), "{form:?}");
        }
        let mut report = Report::new("shrinker", None, 1, Some(1));
        results::report(&records, &Setting::all(3), &mut report);
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let path = home.path().join("page.html");
        report.write_page(&path).unwrap();
        let page = std::fs::read_to_string(path).unwrap();
        for part in
            ["3 workers, slow scans: srcu", "1 worker, quiet: refcount_rcu", "<svg", "7884", "longest registration"]
        {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn the_kernels_cycle_is_seen_by_nobody_else() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        // Not root: there is nothing to see.
        let Ok(kernel) = Kernel::new(&home, 2) else { return };
        let cycles = kernel.run(2, Duration::from_millis(1)).unwrap();
        assert!(cycles.per_s > 0.0);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&home.path().display().to_string()), "{mounts}");
    }
}
