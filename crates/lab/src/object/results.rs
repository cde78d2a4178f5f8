//! From the figures to the report: tables, targets and what the page says.

use super::parts::{self, Amounts, Peak};
use super::store::{DIR, Delay, PEERS, S3FS};
use super::{BARE, row};
use crate::fuse::{OURS, RCLONE};
use crate::harness::{AtLeast, AtMost, Bound, Estimate, Report, Samples, Series, Source, Table};

const COLUMNS: [&str; 5] = [BARE, OURS, DIR, RCLONE, S3FS];
const IDLE: &str = "requests per s while idle";

/// Fills the report.
pub(super) fn publish(report: &mut Report, amounts: Amounts, idle: &[(Delay, f64)], peaks: &[Peak]) {
    let rows = |all: &[&str]| all.iter().flat_map(|what| Delay::ALL.map(|delay| row(what, delay))).collect::<Vec<_>>();
    let rates = [
        parts::WRITE,
        parts::READ,
        parts::WRITES,
        parts::CREATES,
        parts::REQUESTS,
        parts::SYNC,
        parts::PUTS,
        parts::TIME_OF_ALL,
        parts::PUTS_OF_ALL,
    ];
    report.medians(format!("A file of {} MiB, and small files", amounts.bytes >> 20), &COLUMNS, rows(&rates));
    let trees = [parts::LIST, parts::LIST_REQUESTS, parts::MOUNT, parts::UNPACK, parts::STATUS, parts::STATUS_REQUESTS];
    report.medians("Trees of files", &COLUMNS, rows(&trees));
    let mut rest = Table::new("A volume at rest, and memory beside the arena", format!("| {OURS} | {DIR}"));
    for (delay, per_s) in idle {
        rest.row(row(IDLE, *delay)).figure(*per_s);
        report.figure(format!("idle_requests_per_s_{}", delay.tag()), *per_s);
    }
    for Peak { files, object_volume, dir_volume } in peaks {
        let name = format!("most memory while {files} files are created, MiB");
        rest.row(name).figures([mib(*object_volume), mib(*dir_volume)]);
        report.figure(format!("anonymous_bytes_{files}_files"), *object_volume);
        report.figure(format!("anonymous_bytes_{files}_files_dir"), *dir_volume);
    }
    report.table(rest);
    targets(report, idle, peaks);
    for delay in Delay::ALL {
        let by_bare = |what| of(&report.series, what, OURS, delay).by(of(&report.series, what, BARE, delay));
        let ratio = |what| (what, by_bare(what).map(|by| by.value));
        let ratios = [parts::WRITE, parts::READ, parts::SYNC].map(ratio);
        report.finding(Source::Ours, format!("By the bare store, {} per request", delay.name()), ratios);
        let rows = [parts::WRITE, parts::READ].map(|what| row(what, delay));
        report.bars(&format!("MB/s, {} per request", delay.name()), &COLUMNS, rows, str::to_owned);
    }
    report.note(format!(
        "Medians of the rounds. The bare store writes and reads as many bytes in objects of 8 MiB, 16 at once. A volume of a \
         directory has no store, so both rows have its figures. In a turn {} files of 4 KiB are created, and {} by rclone and \
         s3fs, which take part in three rounds. Requests are counted by the server until everything is durable.",
        amounts.files,
        parts::FILES_OF_PEERS,
    ));
    report.note(
        "rclone runs with --vfs-cache-mode writes and --vfs-write-back 0s; the time of its write ends when the object is in the \
         store. A cell of fsync is empty if fsync sends nothing to the store. The trees that rclone and s3fs list were put into \
         the store before.",
    );
    for peer in PEERS {
        if Delay::ALL.iter().all(|delay| report.series.median(&row(parts::WRITE, *delay), peer).is_none()) {
            report.note(format!("{peer} is not installed."));
        }
    }
}

fn targets(report: &mut Report, idle: &[(Delay, f64)], peaks: &[Peak]) {
    // By the bare store, if a target is a part of its throughput.
    const OF_BARE: f64 = 0.8;
    // Files created per s by one thread, if a volume of a directory reaches that.
    const CREATES_PER_S: f64 = 5000.0;
    let series = &report.series;
    let mut all: Vec<(String, Bound, Option<Estimate>)> = Vec::new();
    for (delay, what) in Delay::ALL.into_iter().flat_map(|delay| [parts::WRITE, parts::READ].map(|what| (delay, what)))
    {
        let by_bare = of(series, what, OURS, delay).by(of(series, what, BARE, delay));
        all.push((format!("{}: by the bare store", row(what, delay)), AtLeast(OF_BARE), by_bare));
    }
    for what in [parts::WRITES, parts::CREATES] {
        // Rates are the reverse of times.
        let [short, long] = Delay::ALL.map(|delay| of(series, what, OURS, delay));
        all.push((format!("{what}: time with 30 ms by that with 1 ms"), AtMost(1.1), short.by(long)));
    }
    for delay in Delay::ALL {
        let ours = |what| of(series, what, OURS, delay);
        let (dir, name) = (of(series, parts::CREATES, DIR, delay), row(parts::CREATES, delay));
        if dir.median().is_some_and(|per_s| per_s >= CREATES_PER_S) {
            all.push((name, AtLeast(CREATES_PER_S), ours(parts::CREATES).estimate()));
        } else {
            // This machine is too slow for the rate.
            let by_dir = ours(parts::CREATES).by(dir);
            all.push((format!("{name}: by a volume of a directory"), AtLeast(OF_BARE), by_dir));
        }
        all.push((row(parts::REQUESTS, delay), AtMost(20.0), ours(parts::REQUESTS).estimate()));
        let by_put = ours(parts::SYNC).by(of(series, parts::SYNC, BARE, delay));
        all.push((format!("{}: by one PUT", row(parts::SYNC, delay)), AtMost(1.3), by_put));
        let by_one = ours(parts::PUTS_OF_ALL).by(ours(parts::PUTS));
        all.push((format!("{}: by those of one", row(parts::PUTS_OF_ALL, delay)), AtMost(4.0), by_one));
        let requests = ours(parts::LIST_REQUESTS).quantile(1.0).map(Estimate::exactly);
        all.push((row(parts::LIST_REQUESTS, delay), AtMost(200.0), requests));
    }
    for (delay, per_s) in idle {
        all.push((row(IDLE, *delay), AtMost(1.0), Some(Estimate::exactly(*per_s))));
    }
    if let [few, many] = peaks {
        let beside = |peak: &Peak| mib(peak.object_volume) - mib(peak.dir_volume);
        let (held, growth) = (beside(many), beside(many) - beside(few));
        let name = format!("memory beside that of a volume of a directory with {} files, MiB", many.files);
        // The sum of the limits in docs/OBJECT.md.
        all.push((name, AtMost(516.0), Some(Estimate::exactly(held))));
        let name = format!("its growth from {} to {} files, MiB", few.files, many.files);
        all.push((name, AtMost(16.0), Some(Estimate::exactly(growth))));
    }
    all.into_iter().for_each(|(name, bound, reached)| report.target(name, bound, reached));
}

fn of<'s>(series: &'s Series, what: &str, column: &'static str, delay: Delay) -> &'s Samples {
    series.of(&row(what, delay), column)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
