//! `fuse`: what a mounted directory costs, beside the disk it is on, a bare FUSE server, and other file systems.
//!
//! Everything runs on directories of one disk, and every subject has its turn in each round. The bare server lands
//! what is written in memory that is mapped already and answers at once: what is left of its time is the kernel's.

mod access;
mod footprint;
mod mounted;
mod names;
mod placement;
mod programs;
mod subject;

use anyhow::{Context, Result};

use self::access::{Amounts, p50, p99};
use self::footprint::Footprint;
pub(crate) use self::footprint::{memory, open_descriptors};
use self::mounted::Mounted;
pub(crate) use self::placement::Placement;
use self::programs::{BARE, PEERS};
pub(crate) use self::programs::{BINDFS, DISK, MERGERFS, OURS, RCLONE, Server, lab, on_path, slackwater, tied};
pub(crate) use self::subject::Subject;
use crate::bars::Bars;
use crate::options::Options;
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::rounds;
use crate::scratch::Scratch;
use crate::series::Series;
use crate::statistics::{Estimate, median_estimate, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Holds all files of the comparison.
const CACHE_BYTES: u64 = 1 << 30;

/// Most that a small write may take by the bare server's time.
const BY_BARE: f64 = 1.1;
/// Least of the bare server's throughput.
const OF_BARE: f64 = 0.8;
/// Least by the throughput of mergerfs.
const BY_MERGERFS: f64 = 2.5;
/// Two that are equally fast differ by this in an interval.
const AS_FAST: f64 = 0.95;
const MIB_MAX: f64 = 64.0;
const DESCRIPTORS_MAX: f64 = 4096.0;

const MOUNT: &str = "mount, ms";
const UMOUNT: &str = "unmount, ms";

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let home = Scratch::in_folder(&options.dir)?;
    let servers = Server::all()?;
    let mut report = Report::new("fuse", Some(&options.dir), options.seed, Some(options.rounds()));
    let mut series = Series::default();
    mount_and_umount(options, &home, &servers, &mut series)?;
    compare(options, &home, &servers, &mut series)?;
    let ours = servers.iter().find(|server| server.name == OURS).context("there is no mount of ours")?;
    let footprint = footprint::measure(options, ours, &home.subdirectory("footprint")?)?;

    let columns: Vec<&'static str> = [DISK].into_iter().chain(servers.iter().map(|server| server.name)).collect();
    report.about(
        "What a mounted directory costs, beside the disk it is on, a FUSE server that does nothing but answer, and file systems of \
         others.",
    );
    let rates = [access::WRITE, access::READ_AGAIN].concat();
    report.finding(Source::Kernel, format!("The disk itself, MB/s: {}.", listed(&series, &rates, DISK)));
    report.finding(Source::Ours, format!("MB/s: {}.", listed(&series, &rates, OURS)));
    let rows = [access::WRITE, access::READ, access::READ_AGAIN].concat();
    report.plot(bars("Throughput, MB/s", &series, &columns, &rows, str::to_owned));
    let rows = [access::SEQUENTIAL, access::RANDOM].concat();
    report.plot(bars("Small writes, p50 in microseconds", &series, &columns, &rows, p50));
    let rows = [names::CREATE, names::STAT, names::UNLINK];
    report.plot(bars("Names, per second", &series, &columns, &rows, str::to_owned));
    report.table(table(&series, &columns));
    report.table(footprint_table(&footprint));
    report.note(
        "Medians of the rounds, each on a directory of the same disk. Reads come from what the server has cached;",
    );
    report.note("reads again, from what the kernel has. The disk's own reads always come from the kernel.");
    report.note(
        "Small writes and names: client and server on one CPU, or on two where it says so. Left to the scheduler",
    );
    report.note("it is now this, now that.");
    for peer in PEERS.into_iter().filter(|peer| !columns.contains(peer)) {
        report.note(format!("{peer} is not installed."));
    }
    report.figure("figures", series.json());
    report.figure("peak_bytes", footprint.peak_bytes);
    report.figure("arena_bytes", footprint.arena_bytes);
    report.figure("inodes", footprint.inodes);
    report.figure("descriptors", footprint.descriptors);
    targets(&series, &footprint).into_iter().for_each(|target| report.target(target));
    Ok(report)
}

fn mount_and_umount(options: &Options, home: &Scratch, servers: &[Server], series: &mut Series) -> Result<()> {
    let home = home.subdirectory("mounts")?;
    rounds::run("mounts", options.rounds(), servers.len(), |_, turn| {
        let server = &servers[turn];
        let mounted = Mounted::new(server, &home.join(server.name), CACHE_BYTES)?;
        series.add(MOUNT, server.name, mounted.mount_time.as_secs_f64() * 1e3);
        series.add(UMOUNT, server.name, mounted.umount()?.as_secs_f64() * 1e3);
        Ok(())
    })
}

fn compare(options: &Options, home: &Scratch, servers: &[Server], series: &mut Series) -> Result<()> {
    // The kernel takes longer for a longer path.
    let mut subjects = vec![Subject::disk(home.subdirectory("subject-0")?)];
    for (server, number) in servers.iter().zip(1..) {
        subjects.push(Subject::mounted(server, home.subdirectory(&format!("subject-{number}"))?, CACHE_BYTES)?);
    }
    let (amounts, files) = (Amounts::of(options), names::files(options));
    for subject in &subjects {
        access::prepare(subject, amounts).and_then(|()| subject.settle()).with_context(|| subject.name())?;
    }
    rounds::run("fuse", options.rounds(), subjects.len(), |round, turn| {
        let subject = &subjects[turn];
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
        rounds::run(phase.name(), options.rounds(), keepers.len(), |round, turn| {
            let subject = keepers[turn];
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
    rows.extend([names::CREATE, names::STAT, names::STAT_OF_SERVER, names::UNLINK, MOUNT, UMOUNT].map(str::to_owned));
    rows
}

fn listed(series: &Series, rows: &[&str], subject: &'static str) -> String {
    let one = |row: &&str| Some(format!("{row} {}", figure(series.median(row, subject)?)));
    rows.iter().filter_map(one).collect::<Vec<_>>().join("; ")
}

/// `named`: how a figure of a row is called.
fn bars(title: &str, series: &Series, columns: &[&'static str], rows: &[&str], named: fn(&str) -> String) -> Bars {
    let of_row = |row: &&str| {
        let figures = columns.iter().map(|column| series.median(&named(row), column)).collect();
        ((*row).to_owned(), figures)
    };
    Bars { title: title.to_owned(), subjects: columns.to_vec(), groups: rows.iter().map(of_row).collect() }
}

/// What stands beside a row in the table.
fn with_unit(row: &str) -> String {
    if row.starts_with("1 MiB") { format!("{row}, MB/s") } else { row.to_owned() }
}

fn table(series: &Series, columns: &[&'static str]) -> Table {
    let mut heads = vec![("", Align::Left)];
    heads.extend(columns.iter().map(|name| (*name, Align::Right)));
    let mut table = Table::new(format!("A mounted directory, cache of {}", slackwater_size::text(CACHE_BYTES)), &heads);
    for row in all_rows() {
        let cells = columns.iter().map(|column| series.median(&row, column).map_or_else(String::new, figure));
        table.row([with_unit(&row)].into_iter().chain(cells));
    }
    table
}

fn footprint_table(footprint: &Footprint) -> Table {
    let title = format!("The process of the mount while {} files were copied", footprint.inodes);
    let mut table = Table::new(title, &[("", Align::Left), ("", Align::Right)]);
    table.row(["peak of memory".to_owned(), slackwater_size::text(footprint.peak_bytes)]);
    table.row(["of which the arena".to_owned(), slackwater_size::text(footprint.arena_bytes)]);
    table.row(["most descriptors at once".to_owned(), footprint.descriptors.to_string()]);
    table
}

fn targets(series: &Series, footprint: &Footprint) -> Vec<Target> {
    let mut targets = Vec::new();
    for row in [access::SEQUENTIAL, access::RANDOM].concat() {
        let ratio = series.ratio(&p50(row), OURS, BARE);
        targets.push(Target::new(format!("{row}: p50 by the bare server's"), Bound::AtMost(BY_BARE), ratio));
    }
    for row in access::WRITE {
        let by_bare = series.ratio(row, OURS, BARE);
        targets.push(Target::new(format!("{row}: by the bare server"), Bound::AtLeast(OF_BARE), by_bare));
        let by_mergerfs = by_fastest(series, row, &[MERGERFS]);
        targets.extend(
            by_mergerfs.map(|ratio| Target::new(format!("{row}: by mergerfs"), Bound::AtLeast(BY_MERGERFS), ratio)),
        );
    }
    for row in access::READ_AGAIN {
        let ratio = by_fastest(series, row, &PEERS);
        targets.extend(
            ratio.map(|ratio| Target::new(format!("{row}: by the fastest peer"), Bound::AtLeast(AS_FAST), ratio)),
        );
    }
    for row in [names::CREATE, names::STAT, names::STAT_OF_SERVER, names::UNLINK] {
        let ratio = by_fastest(series, row, &[BINDFS, MERGERFS]);
        let name = format!("{row}: by the faster of bindfs and mergerfs");
        targets.extend(ratio.map(|ratio| Target::new(name, Bound::AtLeast(AS_FAST), ratio)));
    }
    // One copy is one figure: the most that it took.
    let once = |value| Estimate { value, low: value, high: value };
    let memory = "memory beside the arena and 400 bytes an inode, MiB";
    targets.push(Target::new(memory, Bound::AtMost(MIB_MAX), once(footprint.beside_mib())));
    let descriptors = once(footprint.descriptors as f64);
    targets.push(Target::new("descriptors at once", Bound::AtMost(DESCRIPTORS_MAX), descriptors));
    targets
}

/// Our rate by that of the fastest of `peers`, round by round; none if none of them is here.
fn by_fastest(series: &Series, row: &str, peers: &[&'static str]) -> Option<Estimate> {
    let here: Vec<&'static str> = peers.iter().copied().filter(|peer| !series.of(row, peer).is_empty()).collect();
    (!here.is_empty()).then(|| median_estimate(&ratios(series.of(row, OURS), &series.most(row, &here))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_peer_that_is_here_counts() {
        let mut series = Series::default();
        series.add("r", OURS, 6.0);
        assert!(by_fastest(&series, "r", &PEERS).is_none());
        series.add("r", BINDFS, 2.0);
        series.add("r", MERGERFS, 3.0);
        assert_eq!(by_fastest(&series, "r", &PEERS).unwrap().value, 2.0);
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = all_rows().into_iter().collect();
        assert_eq!(names.len(), all_rows().len());
    }
}
