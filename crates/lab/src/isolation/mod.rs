//! `isolation`: how a tenant that writes all the time affects other tenants.
//!
//! Tenants are cgroups, each with one process ([`worker`]). Two victims write 64 KiB every 20 ms, one of them with fsync,
//! alone or beside a hog. That is measured on this project's mount, on the disk it is on, and on another FUSE file system
//! that caches writes. On this project's mount only: two equal hogs, beside two direct writers on the disk.

mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

pub(crate) use self::worker::{ClientArguments, Role, Worker, run_client};
use crate::cgroups::{Cgroup, Hierarchy};
use crate::files::make_file;
use crate::fuse::{DISK, MERGERFS, OURS, RCLONE, Server, Subject};
use crate::harness::{
    AtLeast, AtMost, Estimate, Options, Report, Series, Source, Table, amounts, median_estimate, ratio, rounds,
};
use crate::interrupt;
use crate::scratch::{Scratch, make_directory};

amounts! {
    /// How much of everything.
    struct Amounts {
        /// Cache of a mount.
        cache_bytes: u64 = 1 << 30, 512 << 20;
        /// File of a hog: more than is ever dirty, or it would only write to memory.
        hog_bytes: u64 = 4 << 30, 512 << 20;
        /// File of a direct writer.
        direct_bytes: u64 = 1 << 30, 256 << 20;
        /// Time from the start of a hog until it is measured.
        warm_up: Duration = Duration::from_secs(1), Duration::from_millis(120);
        /// How long the victims of a turn write.
        time: Duration = Duration::from_secs(4), Duration::from_millis(320);
        /// The time in which the throttle learns the bandwidth of the device, and how long two hogs write in a turn after it.
        hogs_warm_up: Duration = Duration::from_secs(1), Duration::from_millis(800);
        hogs_time: Duration = Duration::from_secs(4), Duration::from_millis(400);
        /// The kinds of hogs beside the victims.
        kinds: &'static [Option<Role>] = &KINDS, &KINDS[..2];
    }
}

/// No hog, or one of a kind.
const KINDS: [Option<Role>; 4] = [None, Some(Role::Overwrite), Some(Role::Extend), Some(Role::Truncate)];

/// The files of the victims, the hogs and the direct writers.
const SYNCED: &str = "synced";
const WRITTEN: &str = "written";
const HOG_FILES: [&str; 2] = ["hog-0", "hog-1"];
const DIRECT_FILES: [&str; 2] = ["direct-0", "direct-1"];
const VICTIM_FILE_BYTES: u64 = 64 << 20;

/// The operations of the victims and the rate of the hog, in the names of rows.
const SYNC: &str = "Write of 64 KiB and fsync";
const WRITE: &str = "Write of 64 KiB without fsync";
const HOG_RATE: &str = "hog, MB/s";
/// The rows of two hogs and of two direct writers, whose subjects are the first and the second of the two.
const HOGS: &str = "two hogs, MB/s";
const DIRECT: &str = "two direct writers, MB/s";
const PAIR: [&str; 2] = ["one", "other"];

/// The row of an operation beside a kind of hog. Those of victims are in milliseconds.
fn row(what: &str, hog: Option<Role>) -> String {
    format!("{what}: {}", beside(hog))
}

fn beside(hog: Option<Role>) -> &'static str {
    match hog {
        None => "quiet",
        Some(Role::Overwrite) => "overwriting hog",
        Some(Role::Extend) => "extending hog",
        Some(Role::Truncate) => "truncating hog",
        Some(Role::Sync | Role::Write | Role::Direct) => "other",
    }
}

/// A top-level cgroup for each process: one below another would be no tenant of its own without a limit.
struct Tenants {
    syncing: Cgroup,
    writing: Cgroup,
    hogs: [Cgroup; 2],
}

impl Tenants {
    fn new() -> Result<Self> {
        let hierarchy = Hierarchy::of_tenants()?;
        let hogs = [hierarchy.top("hog-a")?, hierarchy.top("hog-b")?];
        Ok(Self { syncing: hierarchy.top("syncing")?, writing: hierarchy.top("writing")?, hogs })
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let tenants = Tenants::new().context("each tenant needs a cgroup of its own")?;
    let systems = mount_all(&home, amounts)?;
    let names: Vec<&'static str> = systems.iter().map(Subject::name).collect();
    measure_victims(options.rounds(), amounts, &systems, &tenants, &mut report.series)?;
    measure_hogs(options.rounds(), amounts, &systems, &tenants, &mut report.series)?;
    systems.into_iter().try_for_each(Subject::end)?;
    publish(&names, report);
    report.note(
        "Victims write 64 KiB every 20 ms, with fsync or without; a hog writes blocks of 1 MiB as fast as it can. By quiet: medians of \
         the rounds' ratios of p99, 95 % intervals. Every process is in a cgroup of its own.",
    );
    report.note(format!("The kernel on the disk: {}.", tenants.syncing.about()));
    if options.quick {
        report.note("Quick: the hog writes less than what makes the kernel start writeback on the disk.");
    }
    if names.len() < 3 {
        report.note("Neither mergerfs nor rclone is installed, so there are no rows of another FUSE file system.");
    }
    Ok(())
}

/// The disk, this project's mount, and another FUSE file system if one is installed, in `home` and with all files.
fn mount_all(home: &Scratch, amounts: Amounts) -> Result<Vec<Subject>> {
    let servers = Server::keepers()?;
    let named = |name| servers.iter().find(|server: &&Server| server.name == name);
    let ours = named(OURS).context("there is no mount of ours")?;
    let mut chosen = vec![ours.with_options(&["--tenant-by", "cgroup"])];
    // With the kernel's writeback cache.
    let options = "cache.files=auto-full,cache.writeback=true,category.create=ff,minfreespace=0,fsname=lab";
    let mergerfs = named(MERGERFS).map(|server| server.with_options(&["-o", options]));
    chosen.extend(mergerfs.or_else(|| named(RCLONE).cloned()));

    let disk = home.subdirectory("disk")?;
    let bar = rounds::bar("files", 1 + chosen.len() as u64);
    make_files(&disk, &HOG_FILES[..1], amounts)?;
    DIRECT_FILES.iter().try_for_each(|name| make_file(&disk.join(name), amounts.direct_bytes))?;
    bar.inc(1);
    let mut systems = vec![Subject::disk(disk)];
    for server in chosen {
        let home = home.subdirectory(server.name)?;
        let source = home.join("source");
        make_directory(&source)?;
        make_files(&source, if server.name == OURS { &HOG_FILES } else { &HOG_FILES[..1] }, amounts)?;
        systems.push(Subject::mounted(&server, home, amounts.cache_bytes)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(systems)
}

fn make_files(folder: &Path, hogs: &[&str], amounts: Amounts) -> Result<()> {
    hogs.iter().try_for_each(|name| make_file(&folder.join(name), amounts.hog_bytes))?;
    [SYNCED, WRITTEN].into_iter().try_for_each(|name| make_file(&folder.join(name), VICTIM_FILE_BYTES))
}

/// Measures the victims on every system without a hog and with each kind of hog, once per round.
fn measure_victims(
    count: u32,
    amounts: Amounts,
    systems: &[Subject],
    tenants: &Tenants,
    series: &mut Series,
) -> Result<()> {
    let of_system = |subject| amounts.kinds.iter().map(move |hog| (subject, *hog));
    let turns: Vec<(&Subject, Option<Role>)> = systems.iter().flat_map(of_system).collect();
    rounds::run("victims", count, &turns, |_, (subject, hog)| {
        observe(subject, *hog, amounts, tenants, series).with_context(|| subject.name())
    })
}

fn observe(
    subject: &Subject,
    hog: Option<Role>,
    amounts: Amounts,
    tenants: &Tenants,
    series: &mut Series,
) -> Result<()> {
    let own = subject.file("hog-own");
    let start_hog = |role| {
        let file = if role == Role::Overwrite { subject.file(HOG_FILES[0]) } else { own.clone() };
        Worker::start(&tenants.hogs[0], &ClientArguments::new(role, file, amounts.hog_bytes))
    };
    let running = hog.map(start_hog).transpose()?;
    interrupt::sleep(amounts.warm_up)?;
    let victim =
        |cgroup, role, name| Worker::start(cgroup, &ClientArguments::new(role, subject.file(name), VICTIM_FILE_BYTES));
    let syncing = victim(&tenants.syncing, Role::Sync, SYNCED)?;
    let writing = victim(&tenants.writing, Role::Write, WRITTEN)?;
    interrupt::sleep(amounts.time)?;
    for (what, victim) in [(SYNC, syncing), (WRITE, writing)] {
        let ms = victim.stop()?.all("whole_ms");
        anyhow::ensure!(!ms.is_empty(), "a victim wrote nothing");
        series.add_round(&row(what, hog), subject.name(), ms);
    }
    if let Some(running) = running {
        series.add(&row(HOG_RATE, hog), subject.name(), running.stop()?.rate(amounts.warm_up)?);
    }
    if own.exists() {
        std::fs::remove_file(&own).with_context(|| format!("cannot remove {}", own.display()))?;
    }
    subject.settle()
}

/// Measures two equal hogs on the mount, and two direct writers on the disk, each pair once per round.
fn measure_hogs(
    count: u32,
    amounts: Amounts,
    systems: &[Subject],
    tenants: &Tenants,
    series: &mut Series,
) -> Result<()> {
    let named = |name: &str| systems.iter().find(|subject| subject.name() == name).context("it is not mounted");
    let (ours, disk) = (named(OURS)?, named(DISK)?);
    let pairs = [
        (HOGS, ours, Role::Overwrite, HOG_FILES, amounts.hog_bytes),
        (DIRECT, disk, Role::Direct, DIRECT_FILES, amounts.direct_bytes),
    ];
    rounds::run("hogs", count, &pairs, |_, (row, subject, role, files, bytes)| {
        let start = |(cgroup, file): (_, PathBuf)| Worker::start(cgroup, &ClientArguments::new(*role, file, *bytes));
        let files = files.iter().map(|file| subject.file(file));
        let workers = tenants.hogs.iter().zip(files).map(start).collect::<Result<Vec<_>>>()?;
        interrupt::sleep(amounts.hogs_warm_up + amounts.hogs_time)?;
        for (name, worker) in PAIR.into_iter().zip(workers) {
            series.add(row, name, worker.stop()?.rate(amounts.hogs_warm_up)?);
        }
        subject.settle()
    })
}

/// Adds the tables, plots and targets; `systems` are those of the victims.
fn publish(systems: &[&'static str], report: &mut Report) {
    let series = &report.series;
    let by_quiet = |what: &str, hog: Option<Role>, system| -> Option<Estimate> {
        let (beside, quiet) = (series.of(&row(what, hog), system), series.of(&row(what, None), system));
        beside.by_rounds(quiet, 0.99).filter(|_| hog.is_some())
    };
    let mut tables = Vec::new();
    for what in [SYNC, WRITE] {
        let columns = " | <beside | writes | p50 ms | p99 | max | p99 by quiet | hog MB/s";
        let mut table = Table::new(format!("{what}, all rounds"), columns);
        for (system, hog) in systems.iter().flat_map(|system| KINDS.map(|hog| (*system, hog))) {
            let ms = series.of(&row(what, hog), system);
            if ms.count() != 0 {
                let cells =
                    table.row(system).text(beside(hog)).text(ms.count()).figures(ms.quantiles([0.5, 0.99, 1.0]));
                let cells = cells.estimate(by_quiet(what, hog, system));
                cells.figure(series.median(&row(HOG_RATE, hog), system));
            }
        }
        tables.push(table);
    }
    let together = |row| series.combined(row, &PAIR, |one, other| one + other);
    let mut table =
        Table::new("Two equal hogs in two cgroups, medians of the rounds", " | one MB/s | other | together");
    for (name, row) in [(OURS, HOGS), ("direct writes to the disk", DIRECT)] {
        let both = Some(together(row)).filter(|both| !both.is_empty()).map(|both| median_estimate(&both).value);
        table.row(name).figures([series.median(row, PAIR[0]), series.median(row, PAIR[1]), both]);
    }
    tables.push(table);
    let fsync = by_quiet(SYNC, Some(Role::Overwrite), OURS);
    let even = ratio(&series.combined(HOGS, &PAIR, f64::min), &series.combined(HOGS, &PAIR, f64::max));
    let of_device = ratio(&together(HOGS), &together(DIRECT));
    for (source, is_ours) in [(Source::Kernel, false), (Source::Ours, true)] {
        let chosen = systems.iter().filter(|system| (**system == OURS) == is_ours);
        let p99 = |hog| move |system: &&'static str| (format!("{system} {}", beside(hog)), hog, *system);
        let rows: Vec<_> = chosen.clone().map(p99(None)).chain(chosen.map(p99(KINDS[1]))).collect();
        let figures: Vec<_> = rows
            .into_iter()
            .map(|(name, hog, system)| (name, report.series.of(&row(SYNC, hog), system).quantile(0.99)))
            .collect();
        report.finding(source, "p99 of write and fsync in ms", figures);
    }
    tables.into_iter().for_each(|table| report.table(table));
    for (what, hog) in [SYNC, WRITE].into_iter().flat_map(|what| KINDS.map(|hog| (what, hog))) {
        report.curves(row(what, hog), "milliseconds", &row(what, hog), systems.iter().copied());
    }
    report.target("fsync p99 beside an overwriting hog by quiet", AtMost(2.0), fsync);
    report.target("two equal hogs: the slower by the faster", AtLeast(0.9), even);
    report.target("two hogs together by direct writes", AtLeast(0.9), of_device);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::targets::Target;

    #[test]
    fn a_report_has_all_tables_plots_and_targets() {
        let mut report = Report::of_test("isolation");
        let mut add = |row: &str, subject, samples: [f64; 2]| {
            samples.into_iter().for_each(|sample| report.series.add(row, subject, sample));
        };
        for what in [SYNC, WRITE] {
            add(&row(what, None), OURS, [1.0, 2.0]);
            add(&row(what, Some(Role::Overwrite)), OURS, [1.5, 5.0]);
        }
        for (row, subject, rates) in [
            (HOGS, PAIR[0], [1.0, 0.92]),
            (HOGS, PAIR[1], [0.95, 1.0]),
            (DIRECT, PAIR[0], [1.0, 1.0]),
            (DIRECT, PAIR[1], [1.1, 1.1]),
        ] {
            add(row, subject, rates);
        }
        publish(&[OURS], &mut report);
        report.assert_page_has(&["without fsync: overwriting hog", "Two equal hogs", "<svg"]);
        let met: Vec<bool> = report.targets.iter().map(Target::is_met).collect();
        // 2.5 in the second round; 8 % apart at most; 91 %.
        assert_eq!(met, [false, true, true], "{:?}", report.targets);
    }
}
