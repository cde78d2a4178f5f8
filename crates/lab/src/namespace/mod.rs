//! `namespace`: thousands of volumes mounted and unmounted by path in one engine, beside the kernel's tmpfs.
//!
//! Volumes in memory are mounted one by one, and unmounted one by one or in one call, while no, one or two threads look up
//! other volumes and files in them. Unmounts wait for expedited grace periods, or for normal ones with an injected wait of
//! 12 ms; of the latter only as many are made one by one as fit into a turn. The kernel does the same with tmpfs by system
//! calls, in a mount namespace of its own.
//!
//! Each kind of grace period has an engine of its own, and everything has a turn in each round.

mod lookups;
mod testbed;

use std::time::Duration;

use anyhow::{Context, Result};
use slackwater::UmountGrace;

use self::lookups::Lookups;
use self::testbed::{Cycle, Kernel, STANDING, Testbed};
pub(crate) use self::testbed::{IdleVolumesArguments, run_idle_volumes};
use crate::harness::{
    AtLeast, AtMost, Estimate, Exactly, Options, Report, Samples, Series, Source, Table, amounts, axis, ms, rounds,
};
use crate::scratch::Scratch;

/// The wait that is injected before each normal grace period: three ticks of a kernel with 250 per second.
const INJECTED: Duration = Duration::from_millis(12);

axis! {
    /// The subject that mounts and unmounts.
    enum Subject {
        /// A namespace of an engine whose unmounts wait for an expedited grace period.
        Expedited = "expedited",
        /// The same with normal grace periods and [`INJECTED`].
        Normal = "normal, 12 ms injected",
        /// The running kernel with tmpfs.
        Kernel = "kernel",
    }
}

/// How volumes are unmounted. They are always mounted one by one.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Way {
    OneByOne,
    /// All volumes in one call, which the kernel does not have.
    AtOnce,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
struct Setting {
    subject: Subject,
    way: Way,
    /// Threads that look up paths all the time.
    lookers: usize,
}

/// Numbers of threads that look up.
const LOOKERS: [usize; 3] = [0, 1, 2];

impl Setting {
    /// All that can be measured, in the order of the turns.
    fn all() -> Vec<Self> {
        let of = |lookers| [Way::OneByOne, Way::AtOnce].into_iter().map(move |way| (lookers, way));
        let all = LOOKERS
            .into_iter()
            .flat_map(of)
            .flat_map(|(lookers, way)| Subject::ALL.into_iter().map(move |subject| Self { subject, way, lookers }));
        all.filter(|setting| setting.subject != Subject::Kernel || setting.way == Way::OneByOne).collect()
    }

    /// The row of a figure; its subjects are those of [`subject_name`](Self::subject_name).
    fn row(self, figure: &str) -> String {
        format!("{}: {figure}", self.load_name())
    }

    fn load_name(self) -> &'static str {
        match self.lookers {
            0 => "no lookups",
            1 => "1 thread looks up",
            _ => "2 threads look up",
        }
    }

    /// The subject, and how it unmounts.
    fn subject_name(self) -> &'static str {
        match (self.way, self.subject) {
            (Way::AtOnce, Subject::Expedited) => "expedited, at once",
            (Way::AtOnce, Subject::Normal) => "normal, 12 ms injected, at once",
            (_, subject) => subject.name(),
        }
    }

    fn name(self) -> String {
        format!("{}: {}", self.load_name(), self.subject_name())
    }
}

amounts! {
    /// How many volumes a turn mounts and unmounts.
    struct Amounts {
        volumes: usize = 5000, 1500;
        /// Where each waits for a normal grace period.
        normal: usize = 40, 8;
        /// Idle ones whose memory is measured.
        idle: usize = 5000, 5000;
    }
}

impl Amounts {
    fn volumes(self, setting: Setting) -> usize {
        match (setting.subject, setting.way) {
            (Subject::Normal, Way::OneByOne) => self.normal,
            _ => self.volumes,
        }
    }
}

/// The figures of a setting. Microseconds have a sample for each operation; an unmount in one call counts as one for each of
/// its volumes. Of lookups there are some samples of each turn with the distribution of all.
const MOUNT: &str = "mount us";
const MOUNT_ALL: &str = "mount all, ms";
const UMOUNT: &str = "unmount us";
const UMOUNT_ALL: &str = "unmount all, ms";
const GRACE_PERIODS: &str = "grace periods";
const DURING_ONE: &str = "lookups during an unmount";
const BESIDE_MOUNTS: [&str; 4] = [
    "lookups/s beside mounts",
    "lookup beside mounts, us",
    "lookup beside mounts, p99.9 us",
    "longest lookup beside mounts, us",
];
const BESIDE_UMOUNTS: [&str; 4] = [
    "lookups/s beside unmounts",
    "lookup beside unmounts, us",
    "lookup beside unmounts, p99.9 us",
    "longest lookup beside unmounts, us",
];
/// The row of an idle volume.
const MEMORY: &str = "memory of an idle volume, bytes";

/// Adds a turn with so many volumes.
fn add(series: &mut Series, setting: Setting, volumes: usize, cycle: Cycle) {
    let subject = setting.subject_name();
    let Cycle { mount, umount, grace_periods } = cycle;
    let umount_us = match setting.way {
        Way::OneByOne => umount.us,
        Way::AtOnce => vec![umount.all.as_secs_f64() * 1e6 / volumes as f64],
    };
    series.add_round(&setting.row(MOUNT), subject, mount.us);
    series.add(&setting.row(MOUNT_ALL), subject, ms(mount.all));
    series.add_round(&setting.row(UMOUNT), subject, umount_us);
    series.add(&setting.row(UMOUNT_ALL), subject, ms(umount.all));
    for ([rate, us, p999, longest], lookups) in [(BESIDE_MOUNTS, &mount.lookups), (BESIDE_UMOUNTS, &umount.lookups)] {
        let Some(Lookups { per_s, ns, .. }) = lookups else { continue };
        series.add(&setting.row(rate), subject, *per_s);
        series.add_round(&setting.row(us), subject, lookups::samples_us(ns));
        series.add(&setting.row(p999), subject, ns.value_at_quantile(0.999) as f64 / 1e3);
        series.add(&setting.row(longest), subject, ns.max() as f64 / 1e3);
    }
    if let Some(lookups) = umount.lookups {
        series.add(&setting.row(DURING_ONE), subject, lookups.during_one);
    }
    grace_periods.into_iter().for_each(|count| series.add(&setting.row(GRACE_PERIODS), subject, count as f64));
}

/// A turn of a round.
enum Turn<'a> {
    Engine(&'a Testbed, Setting),
    Kernel(&'a Kernel, Setting),
    Memory,
}

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let kernel = report.optional("the kernel's tmpfs", Kernel::new(&home, amounts.volumes))?;
    let testbeds = testbeds(amounts)?;
    rounds::run("namespace", options.rounds(), &turns(&testbeds, kernel.as_ref()), |_, turn| {
        measure_turn(turn, amounts, &mut report.series)
    })?;
    publish(amounts, report);
    Ok(())
}

/// An engine for each kind of grace period.
fn testbeds(amounts: Amounts) -> Result<[(Subject, Testbed); 2]> {
    let new = |grace| Testbed::new(grace, amounts.volumes);
    Ok([(Subject::Expedited, new(UmountGrace::Expedited)?), (Subject::Normal, new(UmountGrace::Normal)?)])
}

fn turns<'a>(testbeds: &'a [(Subject, Testbed)], kernel: Option<&'a Kernel>) -> Vec<Turn<'a>> {
    let turn = |setting: Setting| match testbeds.iter().find(|(subject, _)| *subject == setting.subject) {
        Some((_, testbed)) => Some(Turn::Engine(testbed, setting)),
        None => Some(Turn::Kernel(kernel?, setting)),
    };
    Setting::all().into_iter().filter_map(turn).chain([Turn::Memory]).collect()
}

fn measure_turn(turn: &Turn<'_>, amounts: Amounts, series: &mut Series) -> Result<()> {
    let (setting, cycle) = match turn {
        Turn::Engine(testbed, setting) => {
            (*setting, testbed.run(setting.way, amounts.volumes(*setting), setting.lookers))
        }
        Turn::Kernel(kernel, setting) => (*setting, kernel.run(amounts.volumes(*setting), setting.lookers)),
        Turn::Memory => {
            series.add(MEMORY, Subject::Expedited.name(), testbed::ask(amounts.idle)?);
            return Ok(());
        }
    };
    add(series, setting, amounts.volumes(setting), cycle.with_context(|| setting.name())?);
    Ok(())
}

/// Published figures of the kernel before and after its unmounts waited for expedited grace periods: seconds to mount 5000
/// tmpfs by one command each, and to unmount them by one command for all.
const PUBLISHED: [(&str, f64, f64); 3] = [
    ("4 CPUs, normal grace period", 8.0, 100.0),
    ("1 CPU, normal grace period", 18.0, 36.0),
    ("4 CPUs, expedited", 8.0, 0.6),
];

/// Adds the tables, plots and targets.
fn publish(amounts: Amounts, report: &mut Report) {
    let series = &report.series;
    let of = |setting: Setting, figure: &str| -> &Samples { series.of(&setting.row(figure), setting.subject_name()) };
    let measured =
        |way| Setting::all().into_iter().filter(move |each| each.way == way && of(*each, MOUNT).count() != 0);
    // The kernel's time divided by that of the setting, round by round.
    let by_kernel = |setting: Setting, figure: &str| -> Option<Estimate> {
        let kernel = Setting { subject: Subject::Kernel, way: Way::OneByOne, ..setting };
        of(kernel, figure).by_rounds(of(setting, figure), 0.5).filter(|_| setting != kernel)
    };
    let volumes = |setting| amounts.volumes(setting);
    let grace_periods =
        |setting| of(setting, GRACE_PERIODS).median().map_or_else(String::new, |count| count.to_string());

    let columns = " | volumes | mount p50 us | p99 | all ms | kernel by it | unmount p50 us | p99 | all ms | kernel by it | grace periods";
    let mut one_by_one =
        Table::new("Volumes in memory mounted and unmounted one by one; the kernel with tmpfs", columns);
    for setting in measured(Way::OneByOne) {
        let mut row = one_by_one.row(setting.name()).text(volumes(setting));
        for (us, all) in [(MOUNT, MOUNT_ALL), (UMOUNT, UMOUNT_ALL)] {
            row = row.figures(of(setting, us).quantiles([0.5, 0.99])).figure(of(setting, all).median());
            row = row.estimate(by_kernel(setting, us));
        }
        row.text(grace_periods(setting));
    }
    let columns = " | volumes | unmount all, ms | us per volume | by mounting all | grace periods";
    let mut at_once = Table::new("All unmounted in one call", columns);
    for setting in measured(Way::AtOnce) {
        let (mount, umount) = (of(setting, MOUNT_ALL), of(setting, UMOUNT_ALL));
        let row = at_once.row(setting.name()).text(volumes(setting)).figure(umount.median());
        row.figure(of(setting, UMOUNT).median()).estimate(umount.by(mount)).text(grace_periods(setting));
    }
    let columns = " | lookups/s beside mounts | p50 us | p99.9 | longest | beside unmounts | p50 us | p99.9 | longest | during one";
    let mut lookups = Table::new("Lookups meanwhile, of volumes that stay and of files in them", columns);
    for setting in [Way::OneByOne, Way::AtOnce].into_iter().flat_map(measured).filter(|each| each.lookers != 0) {
        let mut row = lookups.row(setting.name());
        for [rate, us, p999, longest] in [BESIDE_MOUNTS, BESIDE_UMOUNTS] {
            row = row.figures([rate, us, p999].map(|figure| of(setting, figure).median()));
            row = row.figure(of(setting, longest).quantile(1.0));
        }
        row.figure(of(setting, DURING_ONE).median());
    }
    let mut memory = Table::new("Memory of an idle volume", " | bytes");
    let bytes = series.estimate(MEMORY, Subject::Expedited.name());
    memory.row("anonymous memory of the process, divided by its volumes").estimate(bytes);
    let mut published = Table::new(
        "Published of the kernel: 5000 tmpfs, by commands",
        " | mount all, s | unmount all, s | us per unmount",
    );
    for (machine, mount, umount) in PUBLISHED {
        published.row(machine).figures([mount, umount, umount * 1e6 / 5000.0]);
    }

    let quiet = |subject| Setting { subject, way: Way::OneByOne, lookers: 0 };
    let mut targets: Vec<(String, _, Option<Estimate>)> = Vec::new();
    for (what, figure) in [("mount", MOUNT), ("unmount", UMOUNT)] {
        let title = format!("{what}, no lookups: the kernel's tmpfs by it");
        targets.push((title, AtLeast(3.0), by_kernel(quiet(Subject::Expedited), figure)));
    }
    let kib = bytes.map(|bytes| bytes.times(1.0 / 1024.0));
    targets.push(("memory of an idle volume, KiB".to_owned(), AtMost(16.0), kib));
    for setting in measured(Way::AtOnce) {
        let all = of(setting, GRACE_PERIODS).all();
        let title = format!("{}: grace periods, as the RCU layer logs them", setting.name());
        targets.push((title, Exactly(1.0), (!all.is_empty()).then(|| Estimate::of_all(&all))));
    }
    for lookers in LOOKERS.into_iter().filter(|lookers| *lookers != 0) {
        let setting = Setting { subject: Subject::Normal, way: Way::OneByOne, lookers };
        // A twelfth of the injected wait: lookups do not wait for it.
        let title = format!("{}: p99.9 of lookups meanwhile, us", setting.name());
        targets.push((title, AtMost(1000.0), of(setting, BESIDE_UMOUNTS[2]).estimate()));
        let title = format!("{}: lookups during an unmount", setting.name());
        targets.push((title, AtLeast(1.0), of(setting, DURING_ONE).estimate()));
    }
    let figures = Subject::ALL.map(|subject| {
        let of = |figure| (format!("{figure}, {}", subject.name()), of(quiet(subject), figure).median());
        [of(MOUNT), of(UMOUNT)]
    });
    let [expedited, normal, kernel] = figures;
    let memory_bytes = bytes.map(|bytes| bytes.value);

    let seconds = |(machine, mount, umount): (&str, f64, f64)| {
        [(format!("{machine}, mounted"), Some(mount)), ("unmounted".to_owned(), Some(umount))]
    };
    let seconds = PUBLISHED.map(seconds).concat();
    report.finding(Source::Published, "5000 tmpfs mounted and unmounted by commands, s", seconds);
    report.finding(Source::Kernel, "tmpfs by system calls, p50", kernel);
    report.finding(Source::Ours, "p50", expedited.into_iter().chain(normal));
    report.finding(Source::Ours, "An idle volume takes", [("bytes:", memory_bytes)]);
    [one_by_one, at_once, lookups, memory, published].into_iter().for_each(|table| report.table(table));
    for setting in LOOKERS.map(|lookers| Setting { lookers, ..quiet(Subject::Kernel) }) {
        for (what, figure) in [("Mount", MOUNT), ("Unmount", UMOUNT)] {
            let title = format!("{what}: {}", setting.load_name());
            report.curves(title, "microseconds", &setting.row(figure), Subject::ALL.map(Subject::name));
        }
    }
    let row = Setting { lookers: 2, ..quiet(Subject::Kernel) }.row(BESIDE_UMOUNTS[1]);
    let title = "Lookups by 2 threads beside unmounts";
    report.curves(title, "microseconds of a lookup", &row, Subject::ALL.map(Subject::name));
    targets.into_iter().for_each(|(title, bound, reached)| report.target(title, bound, reached));
    report.note(format!(
        "Normal: a wait of 12 ms is injected before each normal grace period, about what a kernel with 250 ticks per second \
         takes. The milliseconds in these rows are that wait. An unmount needs a grace period that begins after its call, so it waits \
         for two where one is under way: the one that frees what an earlier unmount left. One by one only {} volumes are \
         unmounted this way.",
        amounts.normal
    ));
    report.note(format!(
        "Grace periods are logged by the RCU layer for the thread that unmounts. All: from the first to the last. Kernel by it: medians of \
         the rounds' ratios of p50, 95 % intervals. The kernel's calls are mount(2) and umount2(2) of tmpfs in a mount namespace of its \
         own. Looked up are {STANDING} volumes that stay mounted, and a file in each; the longest is of all rounds. Memory: RssAnon of \
         a process with {} idle volumes minus that with none; their backends are part of it.",
        amounts.idle
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Amounts = Amounts { volumes: 20, normal: 2, idle: 20 };

    #[test]
    fn every_setting_mounts_unmounts_and_is_on_the_page() {
        let testbeds = testbeds(FEW).unwrap();
        let mut report = Report::of_test("namespace");
        for turn in turns(&testbeds, None).iter().filter(|turn| !matches!(turn, Turn::Memory)) {
            measure_turn(turn, FEW, &mut report.series).unwrap();
        }
        let bytes = testbed::bytes_per_volume(FEW.idle).unwrap();
        report.series.add(MEMORY, Subject::Expedited.name(), bytes);
        for setting in Setting::all().into_iter().filter(|setting| setting.subject != Subject::Kernel) {
            let wanted = match setting.way {
                Way::OneByOne => FEW.volumes(setting),
                Way::AtOnce => 1,
            };
            let seen = report.series.of(&setting.row(GRACE_PERIODS), setting.subject_name()).all();
            assert_eq!(seen, [wanted as f64], "{}", setting.name());
        }
        publish(FEW, &mut report);
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
        let three = Amounts { volumes: 3, ..FEW };
        let mut series = Series::default();
        for setting in Setting::all().into_iter().filter(|setting| setting.subject == Subject::Kernel) {
            measure_turn(&Turn::Kernel(&kernel, setting), three, &mut series).unwrap();
            let count = |figure| series.of(&setting.row(figure), Subject::Kernel.name()).count();
            assert_eq!((count(MOUNT), count(UMOUNT)), (3, 3));
        }
        home.assert_nothing_is_mounted();
    }
}
