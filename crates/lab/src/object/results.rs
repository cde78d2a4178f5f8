//! From the figures to the report: tables, targets and what the page says.

use super::rest::Peak;
use super::server::Delay;
use super::subject::{DIR, PEERS, S3FS};
use super::testbed::{BARE, row};
use super::{small, streams, syncs, trees};
use crate::fuse::{OURS, RCLONE};
use crate::harness::{Bars, Bound, Estimate, Options, Report, Samples, Series, Source, Table};

/// Lower bound: throughput divided by that of the bare store.
const OF_BARE: f64 = 0.8;
/// Upper bound: time with 30 ms per request divided by that with 1 ms, where no one waits for the store.
const BY_DELAY: f64 = 1.1;
/// Lower bound of files created per s by one thread, if a volume of a directory reaches it.
const CREATES_PER_S: f64 = 5000.0;
const REQUESTS_PER_1000_FILES: f64 = 20.0;
/// Upper bound: time of an fsync divided by that of one request.
const BY_PUT: f64 = 1.3;
/// Upper bound: PUTs of 64 threads divided by those of one.
const BY_ONE_SYNC: f64 = 4.0;
const LIST_REQUESTS: f64 = 200.0;
const IDLE_REQUESTS_PER_S: f64 = 1.0;
/// Memory beside the arena and what a volume of a directory has, in MiB: the sum of the limits in docs/OBJECT.md.
const MEMORY_MIB: f64 = 516.0;
/// How much that may grow with ten times the files, in MiB.
const GROWTH_MIB: f64 = 16.0;

const COLUMNS: [&str; 5] = [BARE, OURS, DIR, RCLONE, S3FS];

/// Fills the report.
pub(super) fn write(report: &mut Report, series: &Series, options: &Options, idle: &[(Delay, f64)], peaks: &[Peak]) {
    let file_mib = streams::bytes(options) >> 20;
    report.table(rates_table(series, &format!("A file of {file_mib} MiB, and small files")));
    report.table(trees_table(series));
    report.table(rest_table(idle, peaks));
    targets(report, series, idle, peaks);
    for delay in Delay::ALL {
        let ratio = |what| of(series, what, OURS, delay).by(of(series, what, BARE, delay)).map(|by| by.text());
        if let (Some(write), Some(read), Some(sync)) = (ratio(streams::WRITE), ratio(streams::READ), ratio(syncs::SYNC))
        {
            let name = delay.name();
            let text =
                format!("Beside the bare store, {name} per request: writes {write}, cold reads {read}, fsync {sync}.");
            report.finding(Source::Ours, text);
        }
        let rows = [streams::WRITE, streams::READ].map(|what| row(what, delay));
        let title = format!("MB/s, {} per request", delay.name());
        report.plot(Bars::of(&title, series, &COLUMNS, rows, str::to_owned));
    }
    report.note(format!(
        "Medians of the rounds. The bare store writes and reads as many bytes in objects of 8 MiB, 16 at once. A volume of a \
         directory has no store, so both rows have its figures. In a turn {} files of 4 KiB are created, and {} by rclone and \
         s3fs, which take part in three rounds. Requests are counted by the server until everything is durable.",
        small::files(options),
        small::FILES_OF_PEERS,
    ));
    report.note(
        "rclone runs with --vfs-cache-mode writes and --vfs-write-back 0s; the time of its write ends when the object is in the \
         store. A cell of fsync is empty if fsync sends nothing to the store. The trees that rclone and s3fs list were put into \
         the store before.",
    );
    for peer in PEERS {
        if Delay::ALL.iter().all(|delay| series.median(&row(streams::WRITE, *delay), peer).is_none()) {
            report.note(format!("{peer} is not installed."));
        }
    }
    report.figure("figures", series.json());
    for (delay, per_s) in idle {
        report.figure(format!("idle_requests_per_s_{}", delay.tag()), *per_s);
    }
    for Peak { files, object_volume, dir_volume } in peaks {
        report.figure(format!("anonymous_bytes_{files}_files"), *object_volume);
        report.figure(format!("anonymous_bytes_{files}_files_dir"), *dir_volume);
    }
}

fn rates_table(series: &Series, title: &str) -> Table {
    let mut table = Table::new(title, format!("| {}", COLUMNS.join(" | ")));
    let rows = [
        streams::WRITE,
        streams::READ,
        small::WRITES,
        small::CREATES,
        small::REQUESTS,
        syncs::SYNC,
        syncs::PUTS,
        syncs::TIME_OF_ALL,
        syncs::PUTS_OF_ALL,
    ];
    add_rows(&mut table, series, &rows);
    table
}

fn trees_table(series: &Series) -> Table {
    let mut table = Table::new("Trees of files", format!("| {}", COLUMNS.join(" | ")));
    let rows = [trees::LIST, trees::LIST_REQUESTS, trees::MOUNT, trees::UNPACK, trees::STATUS, trees::STATUS_REQUESTS];
    add_rows(&mut table, series, &rows);
    table
}

fn add_rows(table: &mut Table, series: &Series, rows: &[&str]) {
    for what in rows {
        for row in Delay::ALL.map(|delay| row(what, delay)) {
            table.row(&row).figures(COLUMNS.iter().map(|column| series.median(&row, column)));
        }
    }
}

fn rest_table(idle: &[(Delay, f64)], peaks: &[Peak]) -> Table {
    let mut table = Table::new("A volume at rest, and memory beside the arena", format!("| {OURS} | {DIR}"));
    for (delay, per_s) in idle {
        table.row(row("requests per s while idle", *delay)).figure(*per_s);
    }
    for Peak { files, object_volume, dir_volume } in peaks {
        let bytes = [*object_volume, *dir_volume].map(mib);
        table.row(format!("most memory while {files} files are created, MiB")).figures(bytes);
    }
    table
}

fn targets(report: &mut Report, series: &Series, idle: &[(Delay, f64)], peaks: &[Peak]) {
    for delay in Delay::ALL {
        for what in [streams::WRITE, streams::READ] {
            let by_bare = of(series, what, OURS, delay).by(of(series, what, BARE, delay));
            report.target(format!("{}: by the bare store", row(what, delay)), Bound::AtLeast(OF_BARE), by_bare);
        }
    }
    for what in [small::WRITES, small::CREATES] {
        // Rates are the reverse of times.
        let [short, long] = Delay::ALL.map(|delay| of(series, what, OURS, delay));
        report.target(format!("{what}: time with 30 ms by that with 1 ms"), Bound::AtMost(BY_DELAY), short.by(long));
    }
    for delay in Delay::ALL {
        let dir = of(series, small::CREATES, DIR, delay);
        let name = row(small::CREATES, delay);
        if dir.median().is_some_and(|per_s| per_s >= CREATES_PER_S) {
            let rate = of(series, small::CREATES, OURS, delay).estimate();
            report.target(name, Bound::AtLeast(CREATES_PER_S), rate);
        } else {
            // This machine is too slow for the rate.
            let by_dir = of(series, small::CREATES, OURS, delay).by(dir);
            report.target(format!("{name}: by a volume of a directory"), Bound::AtLeast(OF_BARE), by_dir);
        }
        let requests = of(series, small::REQUESTS, OURS, delay).estimate();
        report.target(row(small::REQUESTS, delay), Bound::AtMost(REQUESTS_PER_1000_FILES), requests);
        let by_put = of(series, syncs::SYNC, OURS, delay).by(of(series, syncs::SYNC, BARE, delay));
        report.target(format!("{}: by one PUT", row(syncs::SYNC, delay)), Bound::AtMost(BY_PUT), by_put);
        let by_one = of(series, syncs::PUTS_OF_ALL, OURS, delay).by(of(series, syncs::PUTS, OURS, delay));
        report.target(
            format!("{}: by those of one", row(syncs::PUTS_OF_ALL, delay)),
            Bound::AtMost(BY_ONE_SYNC),
            by_one,
        );
        let requests = of(series, trees::LIST_REQUESTS, OURS, delay).quantile(1.0).map(Estimate::exactly);
        report.target(row(trees::LIST_REQUESTS, delay), Bound::AtMost(LIST_REQUESTS), requests);
    }
    for (delay, per_s) in idle {
        let name = row("requests per s while idle", *delay);
        report.target(name, Bound::AtMost(IDLE_REQUESTS_PER_S), Estimate::exactly(*per_s));
    }
    let beside = |peak: &Peak| mib(peak.object_volume) - mib(peak.dir_volume);
    if let [few, many] = peaks {
        let name = format!("memory beside that of a volume of a directory with {} files, MiB", many.files);
        report.target(name, Bound::AtMost(MEMORY_MIB), Estimate::exactly(beside(many)));
        let name = format!("its growth from {} to {} files, MiB", few.files, many.files);
        report.target(name, Bound::AtMost(GROWTH_MIB), Estimate::exactly(beside(many) - beside(few)));
    }
}

fn of<'s>(series: &'s Series, what: &str, column: &'static str, delay: Delay) -> &'s Samples {
    series.of(&row(what, delay), column)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
