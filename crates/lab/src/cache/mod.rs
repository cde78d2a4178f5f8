//! `cache`: the cost of writing and reading 4 KiB that are cached, and the rate of flushing a cache.
//!
//! Beside the engine: `memcpy` over as much memory in the same order, which no cache that copies can beat; and the kernel's
//! page cache through `pwrite` and `pread`, on the disk's file system and on tmpfs.

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
use crate::harness::samples::ratio;
use crate::harness::{Bars, Bound, Estimate, Options, Report, Series, Source, Table, median_estimate};
use crate::scratch::Scratch;

const ABOUT: &str = "The cost of writing and reading 4 KiB that are cached, and the rate at which a cache is flushed until all of it is durable; \
     beside copying in memory, tmpfs, and the file system of the disk.";

const MEMCPY: &str = "memcpy";
const ENGINE: &str = "engine";
/// The engine with a tenant that asks the throttle after each write.
const TENANT: &str = "tenant";
const TMPFS: &str = "tmpfs";
/// The file system of `--dir`; the facts of the machine name it.
const DISK: &str = "disk";

/// Upper bound: time of an operation, divided by that of `memcpy`.
const BY_MEMCPY: f64 = 1.6;
/// Lower bound: the kernel's time, divided by the engine's.
const BY_KERNEL: f64 = 2.0;
/// Upper bound: time of a tenant's write, divided by that without tenants.
const BY_ENGINE: f64 = 1.1;
/// Lower bound: speed-up by a second thread, divided by that of `memcpy`.
const BY_SCALING: f64 = 0.9;
/// Lower bound: throughput of a flush, divided by that of the plain loop of direct writes.
const BY_DIRECT: f64 = 0.9;

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("cache", ABOUT, options);
    let (mut times, mut rates) = (Series::default(), Series::default());
    access::overwrite_and_read(options, home.path(), &mut times)?;
    access::first_write(options, home.path(), &mut times)?;
    flush::measure(options, home.path(), &mut rates)?;

    report.finding(Source::Kernel, access_finding(&times, &[TMPFS, DISK]));
    report.finding(Source::Ours, access_finding(&times, &[ENGINE, MEMCPY]));
    let single_rows: Vec<String> = operations().map(|(operation, order)| row(operation, order, Setting::ONE)).collect();
    let title = "Cached access of 4 KiB, ns";
    report.plot(Bars::of(title, &times, &[MEMCPY, ENGINE, TMPFS, DISK], single_rows, str::to_owned));
    let flushes = [flush::DIRECT_1, flush::DIRECT_4, flush::ENGINE];
    let rows = flush::rows(options).iter().map(|row| (*row).to_owned());
    report.plot(Bars::of("Flushing until it is durable, MB/s", &rates, &flushes, rows.clone(), str::to_owned));
    report.table(access_table(&times, options));
    let columns = format!("MB/s | {} | engine by the faster", flushes.join(" | "));
    let mut table = Table::new("Flushing what is cached until it is durable", columns);
    for row in rows {
        let by_direct = flush_ratio(&rates, &row);
        table.row(&row).figures(flushes.map(|subject| rates.median(&row, subject))).estimate(by_direct);
    }
    report.table(table);
    report.note(
        "Times are those of each thread. By memcpy: the engine's time divided by that of memcpy, less is better. Kernel by it: the \
         time of the faster of disk and tmpfs divided by the engine's, more is better. Tenant: the engine with a tenant that asks \
         the throttle after each write. Ratios: medians of the rounds' ratios, 95 % intervals.",
    );
    report.figure("access_ns", times.json());
    report.figure("flush_mb_per_s", rates.json());
    single_thread_targets(&times, &mut report);
    two_thread_targets(&times, &mut report);
    let title = "sequential flush by the plain direct loop";
    report.target(title, Bound::AtLeast(BY_DIRECT), flush_ratio(&rates, flush::NEW));
    Ok(report)
}

fn operations() -> impl Iterator<Item = (Operation, Order)> {
    Operation::ALL.into_iter().flat_map(|operation| Order::ALL.map(|order| (operation, order)))
}

fn access_finding(times: &Series, subjects: &[&'static str]) -> String {
    let one = |(operation, order)| {
        let row = row(operation, order, Setting::ONE);
        let ns = |subject: &&'static str| Some(format!("{subject} {:.0}", times.median(&row, subject)?));
        let ns: Vec<String> = subjects.iter().filter_map(ns).collect();
        format!("{row}: {}", ns.join(", "))
    };
    format!("ns per 4 KiB. {}.", operations().map(one).collect::<Vec<_>>().join("; "))
}

fn access_table(times: &Series, options: &Options) -> Table {
    let subjects = [MEMCPY, ENGINE, TENANT, TMPFS, DISK];
    let columns = format!("ns per 4 KiB | {} | by memcpy | kernel by it | tenant by it", subjects.join(" | "));
    let size = slackwater_arena::size::text(access::file_bytes(options));
    let mut table = Table::new(format!("Cached access, files of {size}"), columns);
    let of_setting = |setting| operations().map(move |(operation, order)| row(operation, order, setting));
    for row in [FIRST_WRITE.to_owned()].into_iter().chain(Setting::ALL.into_iter().flat_map(of_setting)) {
        let ns = |subject| times.median(&row, subject).map_or_else(String::new, |ns| format!("{ns:.0}"));
        let cells = subjects.map(ns).into_iter().fold(table.row(&row), |cells, ns| cells.text(ns));
        let cells = cells.estimate(times.ratio(&row, ENGINE, MEMCPY)).estimate(kernel_by_engine(times, &row));
        cells.estimate(times.ratio(&row, TENANT, ENGINE));
    }
    table
}

/// The faster kernel file by the engine, round by round.
fn kernel_by_engine(times: &Series, row: &str) -> Option<Estimate> {
    ratio(&times.best(row, &[DISK, TMPFS], f64::min), &times.of(row, ENGINE).all())
}

fn flush_ratio(rates: &Series, row: &str) -> Option<Estimate> {
    let faster = rates.best(row, &[flush::DIRECT_1, flush::DIRECT_4], f64::max);
    ratio(&rates.of(row, flush::ENGINE).all(), &faster)
}

fn single_thread_targets(times: &Series, report: &mut Report) {
    for (operation, order) in operations() {
        let row = row(operation, order, Setting::ONE);
        let name = format!("{} {}", operation.name(), order.name());
        let by_memcpy = times.ratio(&row, ENGINE, MEMCPY);
        report.target(format!("{name}: engine by memcpy"), Bound::AtMost(BY_MEMCPY), by_memcpy);
        report.target(format!("{name}: kernel by engine"), Bound::AtLeast(BY_KERNEL), kernel_by_engine(times, &row));
        if operation == Operation::Write {
            let by_tenant = times.ratio(&row, TENANT, ENGINE);
            report.target(format!("{name}: tenant by engine"), Bound::AtMost(BY_ENGINE), by_tenant);
        }
    }
}

fn two_thread_targets(times: &Series, report: &mut Report) {
    // A thread's time for a page with one thread, divided by that with two: 1 is perfect scaling, 1/2 is none.
    let scaling = |operation, order, setting, subject| {
        let of = |setting| times.of(&row(operation, order, setting), subject).all();
        crate::harness::ratios(&of(Setting::ONE), &of(setting))
    };
    for (operation, order) in operations() {
        let of = |subject| scaling(operation, order, Setting::TWO_OWN, subject);
        let name = format!("{} {}: scaling to 2 threads by memcpy's", operation.name(), order.name());
        report.target(name, Bound::AtLeast(BY_SCALING), ratio(&of(ENGINE), &of(MEMCPY)));
    }
    for order in Order::ALL {
        let shared = scaling(Operation::Write, order, Setting::TWO_SHARED, ENGINE);
        let throughput: Vec<f64> = shared.iter().map(|scaling| scaling * 2.0).collect();
        let name = format!("write {}: two writers of one file by one", order.name());
        report.target(name, Bound::AtLeast(1.0), median_estimate(&throughput));
    }
}
