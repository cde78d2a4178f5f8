//! `cache`: what it costs to write and read 4 KiB that are cached, and how fast a cache is flushed.
//!
//! Beside the engine: `memcpy` over as much memory in the same order, which no cache can beat by copying;
//! and the kernel's page cache through `pwrite` and `pread`, on the disk's file system and on tmpfs.

mod access;
mod flush;
mod memory;
mod pattern;
mod subject;
mod sys;

use anyhow::Result;

use self::access::{FIRST_WRITE, Setting, row};
use self::pattern::Order;
use self::subject::Operation;
use crate::bars::Bars;
use crate::options::Options;
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::scratch::Scratch;
use crate::series::Series;
use crate::statistics::{median, median_estimate, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

const MEMCPY: &str = "memcpy";
const ENGINE: &str = "engine";
/// The engine, written to by a tenant that is throttled when its limit is near.
const TENANT: &str = "tenant";
const TMPFS: &str = "tmpfs";
/// The file system of `--dir`; the facts of the machine say which.
const DISK: &str = "disk";

/// Most that an operation may cost beside `memcpy`.
const BY_MEMCPY: f64 = 1.6;
/// Least by which it beats the kernel's.
const BY_KERNEL: f64 = 2.0;
/// Most that a tenant's write costs beside one without tenants.
const BY_ENGINE: f64 = 1.1;
/// Least of the speed-up by a second thread that `memcpy` has.
const BY_SCALING: f64 = 0.9;
/// Least of the plain loop's throughput that a flush reaches.
const BY_DIRECT: f64 = 0.9;

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("cache", Some(&options.dir), options.seed, Some(options.rounds()));
    let (mut times, mut rates) = (Series::default(), Series::default());
    access::overwrite_and_read(options, home.path(), &mut times)?;
    access::first_write(options, home.path(), &mut times)?;
    flush::measure(options, home.path(), &mut rates)?;

    report.about(
        "What it costs to write and read 4 KiB that are cached, and how fast a cache is flushed until all of it is durable; beside \
         copying in memory, tmpfs, and the file system of the disk.",
    );
    report.finding(Source::Kernel, access_finding(&times, &[TMPFS, DISK]));
    report.finding(Source::Ours, access_finding(&times, &[ENGINE, MEMCPY]));
    report.plot(access_bars(&times));
    report.plot(flush_bars(&rates, flush::rows(options)));
    report.table(access_table(&times, options));
    report.table(flush_table(&rates, flush::rows(options)));
    report.note("Each thread's time. By memcpy: the engine's time by memcpy's, less is better. Kernel by it: the time");
    report.note(
        "of the faster of disk and tmpfs by the engine's, more is better. Tenant: the engine, with tenants and a",
    );
    report.note("throttle that is asked after each write. Ratios: medians, 95 % intervals.");
    report.figure("access_ns", times.json());
    report.figure("flush_mb_per_s", rates.json());
    single_thread_targets(&times).into_iter().for_each(|target| report.target(target));
    two_thread_targets(&times).into_iter().for_each(|target| report.target(target));
    report.target(Target::new(
        "sequential flush by the plain direct loop",
        Bound::AtLeast(BY_DIRECT),
        median_estimate(&flush_ratios(&rates, flush::NEW)),
    ));
    Ok(report)
}

fn all_rows() -> Vec<String> {
    let mut rows = vec![FIRST_WRITE.to_owned()];
    for setting in Setting::ALL {
        for operation in Operation::ALL {
            rows.extend(Order::ALL.map(|order| row(operation, order, setting)));
        }
    }
    rows
}

/// Rows of one thread.
fn single_rows() -> impl Iterator<Item = String> {
    let rows = |operation| Order::ALL.into_iter().map(move |order| row(operation, order, Setting::ONE));
    Operation::ALL.into_iter().flat_map(rows)
}

fn access_finding(times: &Series, subjects: &[&'static str]) -> String {
    let one = |row: String| {
        let ns = |subject: &&'static str| Some(format!("{subject} {:.0}", times.median(&row, subject)?));
        let ns: Vec<String> = subjects.iter().filter_map(ns).collect();
        format!("{row}: {}", ns.join(", "))
    };
    format!("ns per 4 KiB. {}.", single_rows().map(one).collect::<Vec<_>>().join("; "))
}

fn access_bars(times: &Series) -> Bars {
    let subjects = vec![MEMCPY, ENGINE, TMPFS, DISK];
    let ns = |row: String| {
        let ns = subjects.iter().map(|subject| times.median(&row, subject)).collect();
        (row, ns)
    };
    let groups = single_rows().map(ns).collect();
    Bars { title: "Cached access of 4 KiB, ns".to_owned(), subjects, groups }
}

fn flush_bars(rates: &Series, rows: &[&str]) -> Bars {
    let subjects = vec![flush::DIRECT_1, flush::DIRECT_4, flush::ENGINE];
    let rates = |row: &&str| {
        let rates = subjects.iter().map(|subject| rates.median(row, subject)).collect();
        ((*row).to_owned(), rates)
    };
    let groups = rows.iter().map(rates).collect();
    Bars { title: "Flushing until it is durable, MB/s".to_owned(), subjects, groups }
}

fn access_table(times: &Series, options: &Options) -> Table {
    let columns = [
        ("ns per 4 KiB", Align::Left),
        (MEMCPY, Align::Right),
        (ENGINE, Align::Right),
        (TENANT, Align::Right),
        (TMPFS, Align::Right),
        (DISK, Align::Right),
        ("by memcpy", Align::Right),
        ("kernel by it", Align::Right),
        ("tenant by it", Align::Right),
    ];
    let size = slackwater_size::text(access::file_bytes(options));
    let mut table = Table::new(format!("Cached access, files of {size}"), &columns);
    for row in all_rows() {
        let ns = |subject| times.median(&row, subject).map_or_else(String::new, |ns| format!("{ns:.0}"));
        let kernel = median_estimate(&kernel_by_engine(times, &row));
        let by_memcpy = times.ratio(&row, ENGINE, MEMCPY).text();
        let by_tenant = times.ratio(&row, TENANT, ENGINE).text();
        let ns = [MEMCPY, ENGINE, TENANT, TMPFS, DISK].map(ns);
        table.row([row].into_iter().chain(ns).chain([by_memcpy, kernel.text(), by_tenant]));
    }
    table
}

fn flush_table(rates: &Series, rows: &[&str]) -> Table {
    let names = [flush::DIRECT_1, flush::DIRECT_4, flush::ENGINE];
    let columns = [
        ("MB/s", Align::Left),
        (names[0], Align::Right),
        (names[1], Align::Right),
        (names[2], Align::Right),
        ("engine by the faster", Align::Right),
    ];
    let mut table = Table::new("Flushing what is cached until it is durable", &columns);
    for row in rows {
        let rate = |subject| rates.median(row, subject).map_or_else(String::new, figure);
        let by_direct = median_estimate(&flush_ratios(rates, row));
        table.row([(*row).to_owned(), rate(names[0]), rate(names[1]), rate(names[2]), by_direct.text()]);
    }
    table
}

/// The faster kernel file by the engine, round by round.
fn kernel_by_engine(times: &Series, row: &str) -> Vec<f64> {
    let kernel: &[&str] = if times.of(row, TMPFS).is_empty() { &[DISK] } else { &[DISK, TMPFS] };
    ratios(&times.least(row, kernel), times.of(row, ENGINE))
}

fn flush_ratios(rates: &Series, row: &str) -> Vec<f64> {
    let direct = rates.of(row, flush::DIRECT_1).iter().zip(rates.of(row, flush::DIRECT_4));
    let faster: Vec<f64> = direct.map(|(one, four)| one.max(*four)).collect();
    ratios(rates.of(row, flush::ENGINE), &faster)
}

fn single_thread_targets(times: &Series) -> Vec<Target> {
    let mut targets = Vec::new();
    for operation in Operation::ALL {
        for order in Order::ALL {
            let row = row(operation, order, Setting::ONE);
            let name = format!("{} {}", operation.name(), order.name());
            let by_memcpy = times.ratio(&row, ENGINE, MEMCPY);
            targets.push(Target::new(format!("{name}: engine by memcpy"), Bound::AtMost(BY_MEMCPY), by_memcpy));
            let by_kernel = median_estimate(&kernel_by_engine(times, &row));
            targets.push(Target::new(format!("{name}: kernel by engine"), Bound::AtLeast(BY_KERNEL), by_kernel));
            if operation == Operation::Write {
                let by_tenant = times.ratio(&row, TENANT, ENGINE);
                targets.push(Target::new(format!("{name}: tenant by engine"), Bound::AtMost(BY_ENGINE), by_tenant));
            }
        }
    }
    targets
}

fn two_thread_targets(times: &Series) -> Vec<Target> {
    let mut targets = Vec::new();
    // A thread's time for a page with one thread by that with two: 1 is perfect scaling, 1/2 is none.
    let scaling = |operation, order, setting, subject| {
        ratios(
            times.of(&row(operation, order, Setting::ONE), subject),
            times.of(&row(operation, order, setting), subject),
        )
    };
    for operation in Operation::ALL {
        for order in Order::ALL {
            let of = |subject| scaling(operation, order, Setting::TWO_OWN, subject);
            let reached = median_estimate(&ratios(&of(ENGINE), &of(MEMCPY)));
            let name = format!("{} {}: scaling to 2 threads by memcpy's", operation.name(), order.name());
            targets.push(Target::new(name, Bound::AtLeast(BY_SCALING), reached));
        }
    }
    for order in Order::ALL {
        let shared = scaling(Operation::Write, order, Setting::TWO_SHARED, ENGINE);
        let throughput: Vec<f64> = shared.iter().map(|scaling| scaling * 2.0).collect();
        debug_assert!(median(&throughput) > 0.0, "a time is positive");
        let name = format!("write {}: two writers of one file by one", order.name());
        targets.push(Target::new(name, Bound::AtLeast(1.0), median_estimate(&throughput)));
    }
    targets
}
