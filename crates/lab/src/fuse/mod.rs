//! `fuse`: the cost of a mounted directory, beside the disk it is on, a bare FUSE server, and other file systems.
//!
//! Everything runs in directories on one disk, and every subject has its turn in each round. The bare server reads writes
//! into memory that is already mapped and answers at once, so its time is that of the kernel.

mod access;
mod budget;
mod footprint;
mod servers;

use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use slackwater_host::size;

use self::access::Amounts;
use self::budget::Budget;
use self::footprint::Footprint;
use self::servers::{BARE, BARE_URING, OURS_URING, PEERS, URING_SWITCH, Unmounted, has_uring};
pub(crate) use self::servers::{
    BINDFS, DISK, MERGERFS, Mounted, OURS, RCLONE, Server, Subject, arena_in, lab, mountpoint_in, on_path, slackwater,
    slackwater_with_object_volumes, tied,
};
use crate::files::writable;
use crate::harness::{
    AtLeast, AtMost, Bound, Estimate, Options, Report, Series, Source, Table, ms, p50, p99, ratio, rounds,
};
use crate::scratch::Scratch;

/// Size of the cache, which holds all files of the comparison.
const CACHE_BYTES: u64 = 1 << 30;

/// Time from the start of the program until the first write is answered.
const MOUNT: &str = "mount, ms";
const UMOUNT: &str = "unmount, ms";
/// Time from the start of the unmount until the server has ended.
const FREED: &str = "unmount, memory freed, ms";
/// An idle mount has no work left after this time.
const IDLE: Duration = Duration::from_millis(500);

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let home = Scratch::in_folder(&options.dir)?;
    let servers = Server::all()?;
    mount_and_umount(options, &home, &servers, &mut report.series)?;
    compare(options, &home, &servers, &mut report.series)?;
    let ours = servers.iter().find(|server| server.name == OURS).context("there is no mount of ours")?;
    let footprint = footprint::measure(options, ours, &home.subdirectory("footprint")?)?;

    let columns: Vec<&'static str> = [DISK].into_iter().chain(servers.iter().map(|server| server.name)).collect();
    for (source, what, subject) in [(Source::Kernel, "The disk itself, MB/s", DISK), (Source::Ours, "MB/s", OURS)] {
        let rates = [access::WRITE, access::READ_AGAIN].concat();
        let rates: Vec<_> = rates.into_iter().map(|row| (row, report.series.median(row, subject))).collect();
        report.finding(source, what, rates);
    }
    let rates = [access::WRITE, access::READ, access::READ_AGAIN].concat();
    report.bars("Throughput, MB/s", &columns, rates, str::to_owned);
    let small = [access::SEQUENTIAL, access::RANDOM].concat();
    report.bars("Small writes, p50 in microseconds", &columns, small, p50);
    report.bars("Names, per second", &columns, [access::CREATE, access::STAT, access::UNLINK], str::to_owned);
    report.table(table(&report.series, &columns));
    let budget = Budget::of(&report.series);
    report.table(budget.table());
    if let Some(plot) = budget.plot() {
        report.plot(plot);
    }
    let title = format!("The process of the mount while {} files were copied", footprint.inodes);
    let mut table = Table::new(title, " | ");
    table.row("peak of memory").text(size::text(footprint.peak_bytes));
    table.row("of which the arena").text(size::text(footprint.arena_bytes));
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
    report.figure("peak_bytes", footprint.peak_bytes);
    report.figure("arena_bytes", footprint.arena_bytes);
    report.figure("inodes", footprint.inodes);
    report.figure("descriptors", footprint.descriptors);
    targets(&footprint, report);
    Ok(())
}

fn mount_and_umount(options: &Options, home: &Scratch, servers: &[Server], series: &mut Series) -> Result<()> {
    let home = home.subdirectory("mounts")?;
    rounds::run("mounts", options.rounds(), servers, |_, server| {
        let mounted = Mounted::new(server, &home.join(server.name), CACHE_BYTES)?;
        // The name of the only file of the bare server.
        let path = mounted.path().join(BARE);
        writable(&path)?.write_all_at(&[1; access::PAGE], 0).context("the first write")?;
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
    let amounts = Amounts::of(options);
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
    for phase in access::Phase::ALL {
        rounds::run(phase.name(), options.rounds(), &keepers, |round, subject| {
            phase.measure(subject, amounts, round, series).with_context(|| subject.name())
        })?;
    }
    subjects.into_iter().try_for_each(Subject::end)
}

fn table(series: &Series, columns: &[&'static str]) -> Table {
    let latencies = [access::SEQUENTIAL, access::RANDOM].concat().into_iter().chain([access::SYNC]);
    let latencies = latencies.flat_map(|row| [p50(row), p99(row)]);
    let rates = [access::WRITE, access::READ, access::READ_AGAIN].concat();
    let others = access::RATES.into_iter().chain([MOUNT, UMOUNT, FREED]);
    let mut table = Table::new(
        format!("A mounted directory, cache of {}", size::text(CACHE_BYTES)),
        format!("| {}", columns.join(" | ")),
    );
    for row in latencies.chain(rates.into_iter().chain(others).map(str::to_owned)) {
        let unit = if row.starts_with("1 MiB") { ", MB/s" } else { "" };
        table.row(format!("{row}{unit}")).figures(columns.iter().map(|column| series.median(&row, column)));
    }
    table
}

fn targets(footprint: &Footprint, report: &mut Report) {
    // Below 1 by as much as the interval of two equal rates reaches.
    const AS_FAST: f64 = 0.95;
    let mut all: Vec<(String, Bound, Option<Estimate>)> = Vec::new();
    let series = &report.series;
    for row in [access::SEQUENTIAL, access::RANDOM].concat() {
        let by_bare = series.ratio(&p50(row), OURS, BARE);
        all.push((format!("{row}: p50 by the bare server's"), AtMost(1.1), by_bare));
    }
    if has_uring() {
        let small = |row: &str, subject| series.of(&p50(row), subject);
        for [together, apart, free] in [access::SEQUENTIAL, access::RANDOM] {
            for row in [together, free] {
                let by_bare = series.ratio(&p50(row), OURS_URING, BARE_URING);
                all.push((format!("{row}, io_uring: p50 by the bare server's"), AtMost(1.1), by_bare));
            }
            let by_placed = small(free, OURS_URING).by(small(together, OURS_URING));
            all.push((format!("{free}, io_uring: p50 by that on one CPU"), AtMost(1.15), by_placed));
            let by_device = small(free, OURS_URING).by(small(apart, OURS));
            all.push((format!("{free}, io_uring: p50 by the device's on 2 CPUs"), AtMost(0.35), by_device));
        }
        for row in [access::WRITE, access::READ].concat() {
            let by_device = series.ratio(row, OURS_URING, OURS);
            all.push((format!("{row}, io_uring: by the device"), AtLeast(AS_FAST), by_device));
        }
    }
    for row in access::WRITE {
        all.push((format!("{row}: by the bare server"), AtLeast(0.8), series.ratio(row, OURS, BARE)));
        all.push((format!("{row}: by mergerfs"), AtLeast(2.5), by_fastest(series, row, &[OURS], &[MERGERFS])));
    }
    for row in access::READ_AGAIN {
        all.push((format!("{row}: by the fastest peer"), AtLeast(AS_FAST), by_fastest(series, row, &[OURS], &PEERS)));
    }
    for row in access::RATES {
        let by_peers = |ours: &[&'static str]| by_fastest(series, row, ours, &[BINDFS, MERGERFS]);
        all.push((format!("{row}: by the faster of bindfs and mergerfs"), AtLeast(0.9), by_peers(&[OURS])));
        let title = format!("{row}, the better transport: by the faster of bindfs and mergerfs");
        all.push((title, AtLeast(AS_FAST), by_peers(&[OURS, OURS_URING])));
    }
    for subject in [OURS, OURS_URING].into_iter().filter(|subject| *subject == OURS || has_uring()) {
        for (row, bound_ms) in [(MOUNT, 10.0), (UMOUNT, 5.0), (FREED, 1000.0)] {
            all.push((format!("{row}, {subject}"), AtMost(bound_ms), series.estimate(row, subject)));
        }
    }
    let memory = Some(Estimate::exactly(footprint.beside_mib()));
    all.push(("memory beside the arena and 400 bytes per inode, MiB".to_owned(), AtMost(64.0), memory));
    let descriptors = Some(Estimate::exactly(footprint.descriptors as f64));
    all.push(("descriptors at once".to_owned(), AtMost(4096.0), descriptors));
    all.into_iter().for_each(|(title, bound, reached)| report.target(title, bound, reached));
}

/// The rate of the fastest of `ours` by that of the fastest of `peers`, round by round; `None` if none of them is installed.
fn by_fastest(series: &Series, row: &str, ours: &[&'static str], peers: &[&'static str]) -> Option<Estimate> {
    ratio(&series.combined(row, ours, f64::max), &series.combined(row, peers, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fastest_installed_peer_counts() {
        let mut series = Series::default();
        series.add("r", OURS, 6.0);
        assert!(by_fastest(&series, "r", &[OURS], &PEERS).is_none());
        series.add("r", BINDFS, 2.0);
        series.add("r", MERGERFS, 3.0);
        assert_eq!(by_fastest(&series, "r", &[OURS], &PEERS).unwrap().value, 2.0);
    }
}
