//! `fuse`: the cost of a mounted directory, beside the disk it is on, a bare FUSE server, and other file systems.
//!
//! Everything runs in directories on one disk, and every subject has its turn in each round. The bare server reads writes
//! into memory that is already mapped and answers at once, so its time is that of the kernel.

mod access;
mod budget;
mod footprint;
mod mounted;
mod names;
mod programs;
mod subject;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use self::access::{Amounts, p50, p99};
use self::budget::Budget;
use self::footprint::Footprint;
pub(crate) use self::mounted::{Mounted, Unmounted, arena_in, mountpoint_in};
use self::programs::{BARE, BARE_URING, OURS_URING, PEERS, URING_SWITCH, has_uring};
pub(crate) use self::programs::{
    BINDFS, DISK, MERGERFS, OURS, RCLONE, Server, lab, on_path, slackwater, slackwater_with_object_volumes, tied,
};
pub(crate) use self::subject::Subject;
use crate::harness::samples::ratio;
use crate::harness::{Bars, Bound, Estimate, Options, Report, Series, Source, Table, listing, rounds};
use crate::scratch::Scratch;

const ABOUT: &str = "The cost of a mounted directory, beside the disk it is on, a FUSE server that only answers, and file systems of others.";

/// Holds all files of the comparison.
const CACHE_BYTES: u64 = 1 << 30;

/// Upper bound: time of a small write, divided by that of the bare server.
const BY_BARE: f64 = 1.1;
/// Lower bound: throughput, divided by that of the bare server.
const OF_BARE: f64 = 0.8;
/// Lower bound: throughput, divided by that of mergerfs.
const BY_MERGERFS: f64 = 2.5;
/// Lower bound: a rate divided by that of the fastest peer. Below 1, because the interval of two equal rates reaches down to this.
const AS_FAST: f64 = 0.95;
/// The same for names over the device.
const NAMES_BY_DEVICE: f64 = 0.9;
/// Upper bound: time of a small write over io_uring where the scheduler chooses, divided by that on one CPU.
const FREE_BY_PLACED: f64 = 1.15;
/// Upper bound: the same, divided by that over the device between two CPUs.
const FREE_BY_DEVICE: f64 = 0.35;
const MIB_MAX: f64 = 64.0;
const DESCRIPTORS_MAX: f64 = 4096.0;

/// From the start of the program until the first write is answered.
const MOUNT: &str = "mount, ms";
const UMOUNT: &str = "unmount, ms";
/// Until the server has ended.
const FREED: &str = "unmount, memory freed, ms";
/// Upper bounds of our times.
const MOUNT_MS: f64 = 10.0;
const UMOUNT_MS: f64 = 5.0;
const FREED_MS: f64 = 1000.0;
/// An idle mount has no work left after this time.
const IDLE: Duration = Duration::from_millis(500);

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let home = Scratch::in_folder(&options.dir)?;
    let servers = Server::all()?;
    let mut report = Report::new("fuse", ABOUT, options);
    let mut series = Series::default();
    mount_and_umount(options, &home, &servers, &mut series)?;
    compare(options, &home, &servers, &mut series)?;
    let ours = servers.iter().find(|server| server.name == OURS).context("there is no mount of ours")?;
    let footprint = footprint::measure(options, ours, &home.subdirectory("footprint")?)?;

    let columns: Vec<&'static str> = [DISK].into_iter().chain(servers.iter().map(|server| server.name)).collect();
    let rates = [access::WRITE, access::READ_AGAIN].concat();
    report.finding(Source::Kernel, format!("The disk itself, MB/s: {}.", listed(&series, &rates, DISK)));
    report.finding(Source::Ours, format!("MB/s: {}.", listed(&series, &rates, OURS)));
    let rows = [access::WRITE, access::READ, access::READ_AGAIN].concat();
    report.plot(Bars::of("Throughput, MB/s", &series, &columns, rows, str::to_owned));
    let rows = [access::SEQUENTIAL, access::RANDOM].concat();
    report.plot(Bars::of("Small writes, p50 in microseconds", &series, &columns, rows, p50));
    let rows = [names::CREATE, names::STAT, names::UNLINK];
    report.plot(Bars::of("Names, per second", &series, &columns, rows, str::to_owned));
    report.table(table(&series, &columns));
    let budget = Budget::of(&series);
    report.table(budget.table());
    if let Some(plot) = budget.plot() {
        report.plot(plot);
    }
    let title = format!("The process of the mount while {} files were copied", footprint.inodes);
    let mut table = Table::new(title, " | ");
    table.row("peak of memory").text(slackwater_arena::size::text(footprint.peak_bytes));
    table.row("of which the arena").text(slackwater_arena::size::text(footprint.arena_bytes));
    table.row("most descriptors at once").text(footprint.descriptors);
    report.table(table);
    report.note(
        "Medians of the rounds, each in a directory on the same disk. Reads come from the server's cache; reads again, from the \
         kernel's. The disk's own reads always come from the kernel. Small writes and names: client and server on one CPU, or on two \
         where the row says so. In the rows called *free*, the scheduler chooses. A mount ends with the first write. Over io_uring, a client is always served on its own CPU.",
    );
    if !has_uring() {
        report.note(format!("Nothing was measured over io_uring: {URING_SWITCH} is not Y."));
    }
    for peer in PEERS.into_iter().filter(|peer| !columns.contains(peer)) {
        report.note(format!("{peer} is not installed."));
    }
    report.figure("figures", series.json());
    report.figure("peak_bytes", footprint.peak_bytes);
    report.figure("arena_bytes", footprint.arena_bytes);
    report.figure("inodes", footprint.inodes);
    report.figure("descriptors", footprint.descriptors);
    targets(&series, &footprint, &mut report);
    Ok(report)
}

fn mount_and_umount(options: &Options, home: &Scratch, servers: &[Server], series: &mut Series) -> Result<()> {
    let home = home.subdirectory("mounts")?;
    rounds::run("mounts", options.rounds(), servers, |_, server| {
        let mounted = Mounted::new(server, &home.join(server.name), CACHE_BYTES)?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        // The name of the only file of the bare server.
        let file = File::options().write(true).create(true).truncate(false).open(mounted.path().join(BARE));
        file.and_then(|file| file.write_all_at(&[1; 4096], 0)).context("the first write")?;
        series.add(MOUNT, server.name, ms(mounted.age()));
        mounted.settle()?;
        thread::sleep(IDLE);
        let Unmounted { command, server: ended } = mounted.umount()?;
        series.add(UMOUNT, server.name, ms(command));
        series.add(FREED, server.name, ms(ended));
        Ok(())
    })
}

fn compare(options: &Options, home: &Scratch, servers: &[Server], series: &mut Series) -> Result<()> {
    // Names of equal length: the kernel takes longer for a longer path.
    let mut subjects = vec![Subject::disk(home.subdirectory("subject-0")?)];
    for (server, number) in servers.iter().zip(1..) {
        subjects.push(Subject::mounted(server, home.subdirectory(&format!("subject-{number}"))?, CACHE_BYTES)?);
    }
    let (amounts, files) = (Amounts::of(options), names::files(options));
    for subject in &subjects {
        access::prepare(subject, amounts).and_then(|()| subject.settle()).with_context(|| subject.name())?;
    }
    rounds::run("fuse", options.rounds(), &subjects, |round, subject| {
        let mut turn = || -> Result<()> {
            access::write(subject, amounts, options.seed.wrapping_add(u64::from(round)), series)?;
            subject.settle()?;
            if subject.keeps_files() {
                access::read_and_sync(subject, amounts, series)?;
                subject.settle()?;
            }
            Ok(())
        };
        turn().with_context(|| subject.name())
    })?;
    let keepers: Vec<&Subject> = subjects.iter().filter(|subject| subject.keeps_files()).collect();
    for phase in names::Phase::ALL {
        rounds::run(phase.name(), options.rounds(), &keepers, |round, subject| {
            phase.measure(subject, files, round, series).with_context(|| subject.name())
        })?;
    }
    subjects.into_iter().try_for_each(Subject::end)
}

fn all_rows() -> Vec<String> {
    let mut rows = Vec::new();
    for row in [access::SEQUENTIAL, access::RANDOM].concat().into_iter().chain([access::SYNC]) {
        rows.extend([p50(row), p99(row)]);
    }
    let rates = [access::WRITE, access::READ, access::READ_AGAIN].concat();
    rows.extend(rates.into_iter().map(str::to_owned));
    rows.extend(names::RATES.into_iter().chain([MOUNT, UMOUNT, FREED]).map(str::to_owned));
    rows
}

fn listed(series: &Series, rows: &[&str], subject: &'static str) -> String {
    listing(rows.iter().map(|row| (*row, series.median(row, subject))), "; ").unwrap_or_default()
}

fn table(series: &Series, columns: &[&'static str]) -> Table {
    let title = format!("A mounted directory, cache of {}", slackwater_arena::size::text(CACHE_BYTES));
    let mut table = Table::new(title, format!("| {}", columns.join(" | ")));
    for row in all_rows() {
        let unit = if row.starts_with("1 MiB") { ", MB/s" } else { "" };
        table.row(format!("{row}{unit}")).figures(columns.iter().map(|column| series.median(&row, column)));
    }
    table
}

fn targets(series: &Series, footprint: &Footprint, report: &mut Report) {
    for row in [access::SEQUENTIAL, access::RANDOM].concat() {
        let ratio = series.ratio(&p50(row), OURS, BARE);
        report.target(format!("{row}: p50 by the bare server's"), Bound::AtMost(BY_BARE), ratio);
    }
    uring_targets(series, report);
    for row in access::WRITE {
        let by_bare = series.ratio(row, OURS, BARE);
        report.target(format!("{row}: by the bare server"), Bound::AtLeast(OF_BARE), by_bare);
        let by_mergerfs = by_fastest(series, row, &[MERGERFS]);
        report.target(format!("{row}: by mergerfs"), Bound::AtLeast(BY_MERGERFS), by_mergerfs);
    }
    for row in access::READ_AGAIN {
        let ratio = by_fastest(series, row, &PEERS);
        report.target(format!("{row}: by the fastest peer"), Bound::AtLeast(AS_FAST), ratio);
    }
    for row in names::RATES {
        let by_peers = by_fastest(series, row, &[BINDFS, MERGERFS]);
        report.target(
            format!("{row}: by the faster of bindfs and mergerfs"),
            Bound::AtLeast(NAMES_BY_DEVICE),
            by_peers,
        );
        let better = series.best(row, &[OURS, OURS_URING], f64::max);
        let by_peers = ratio(&better, &series.best(row, &[BINDFS, MERGERFS], f64::max));
        let target = format!("{row}, the better transport: by the faster of bindfs and mergerfs");
        report.target(target, Bound::AtLeast(AS_FAST), by_peers);
    }
    for subject in [OURS, OURS_URING].into_iter().filter(|subject| *subject == OURS || has_uring()) {
        for (row, bound) in [(MOUNT, MOUNT_MS), (UMOUNT, UMOUNT_MS), (FREED, FREED_MS)] {
            report.target(format!("{row}, {subject}"), Bound::AtMost(bound), series.estimate(row, subject));
        }
    }
    let memory = "memory beside the arena and 400 bytes per inode, MiB";
    report.target(memory, Bound::AtMost(MIB_MAX), Estimate::exactly(footprint.beside_mib()));
    let descriptors = Estimate::exactly(footprint.descriptors as f64);
    report.target("descriptors at once", Bound::AtMost(DESCRIPTORS_MAX), descriptors);
}

/// Targets for requests over io_uring, if they were measured.
fn uring_targets(series: &Series, report: &mut Report) {
    if !has_uring() {
        return;
    }
    let small = |row: &str, subject| series.of(&p50(row), subject).all();
    for [together, apart, free] in [access::SEQUENTIAL, access::RANDOM] {
        for row in [together, free] {
            let by_bare = series.ratio(&p50(row), OURS_URING, BARE_URING);
            report.target(format!("{row}, io_uring: p50 by the bare server's"), Bound::AtMost(BY_BARE), by_bare);
        }
        let by_placed = ratio(&small(free, OURS_URING), &small(together, OURS_URING));
        report.target(format!("{free}, io_uring: p50 by that on one CPU"), Bound::AtMost(FREE_BY_PLACED), by_placed);
        let by_device = ratio(&small(free, OURS_URING), &small(apart, OURS));
        report.target(
            format!("{free}, io_uring: p50 by the device's on 2 CPUs"),
            Bound::AtMost(FREE_BY_DEVICE),
            by_device,
        );
    }
    for row in [access::WRITE, access::READ].concat() {
        let by_device = series.ratio(row, OURS_URING, OURS);
        report.target(format!("{row}, io_uring: by the device"), Bound::AtLeast(AS_FAST), by_device);
    }
}

/// Our rate by that of the fastest of `peers`, round by round; `None` if none of them is installed.
fn by_fastest(series: &Series, row: &str, peers: &[&'static str]) -> Option<Estimate> {
    ratio(&series.of(row, OURS).all(), &series.best(row, peers, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fastest_installed_peer_counts() {
        let mut series = Series::default();
        series.add("r", OURS, 6.0);
        assert!(by_fastest(&series, "r", &PEERS).is_none());
        series.add("r", BINDFS, 2.0);
        series.add("r", MERGERFS, 3.0);
        assert_eq!(by_fastest(&series, "r", &PEERS).unwrap().value, 2.0);
    }
}
