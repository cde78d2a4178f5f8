//! `cache`: the cost of writing and reading 4 KiB that are cached, and the rate of flushing a cache.
//!
//! Beside the engine: `memcpy` over as much memory in the same order, which no cache that copies can beat; and the kernel's
//! page cache through `pwrite` and `pread`, on the disk's file system and on tmpfs.
//!
//! A file that is entirely in the cache is flushed beside a plain loop of direct writes of as many bytes. Both end with the
//! data durable. Each is measured on a new file, whose blocks are allocated during the writes, and then on the same file again.

mod access;
mod subject;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fdatasync, ftruncate, syncfs};
use rustix::io::{ReadWriteFlags, pwritev2};
use slackwater::Tunables;

use self::access::{FIRST_WRITE, Order, PAGE, Pattern, Setting, row};
use self::subject::{Cached, Operation, Sharing, Subject, Writer};
use crate::harness::{
    AtLeast, AtMost, Estimate, Options, Report, Series, Source, Table, mb_per_s, median_estimate, ratio, ratios,
    rounds, threads,
};
use crate::scratch::{self, Scratch};

const MEMCPY: &str = "memcpy";
const ENGINE: &str = "engine";
/// The engine with a tenant that asks the throttle after each write.
const TENANT: &str = "tenant";
const TMPFS: &str = "tmpfs";
/// The file system of `--dir`; the facts of the machine name it.
const DISK: &str = "disk";

/// Bytes that are flushed.
const BYTES: u64 = 512 << 20;
const UNIT: usize = 1 << 20;
/// Twice what is flushed, so that the engine is not short of frames.
const ARENA_BYTES: u64 = 1 << 30;
/// The plain loops of direct writes.
const DIRECT_1: &str = "direct, 1 thread";
const DIRECT_4: &str = "direct, 4 threads";
/// The rows of MB/s.
const NEW: &str = "flush 512 MiB, new file";
const AGAIN: &str = "flush 512 MiB, overwritten";

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let home = Scratch::in_folder(&options.dir)?;
    let flushes: &[&str] = options.pick(&[NEW, AGAIN], &[NEW]);
    access::overwrite_and_read(options, home.path(), &mut report.series)?;
    access::first_write(options, home.path(), &mut report.series)?;
    measure_flushes(options.rounds(), flushes, home.path(), &mut report.series)?;

    let one_thread = || operations().map(|(operation, order)| row(operation, order, Setting::ONE));
    for (source, subjects) in [(Source::Kernel, [TMPFS, DISK]), (Source::Ours, [ENGINE, MEMCPY])] {
        let rows =
            one_thread().flat_map(|row| subjects.map(|subject| (format!("{row}, {subject}"), row.clone(), subject)));
        let ns: Vec<_> = rows.map(|(name, row, subject)| (name, report.series.median(&row, subject))).collect();
        report.finding(source, "ns per 4 KiB", ns);
    }
    report.bars("Cached access of 4 KiB, ns", &[MEMCPY, ENGINE, TMPFS, DISK], one_thread(), str::to_owned);
    let subjects = [DIRECT_1, DIRECT_4, ENGINE];
    report.bars("Flushing until it is durable, MB/s", &subjects, flushes.iter().copied(), str::to_owned);
    report.table(access_table(&report.series, options));
    let columns = format!("MB/s | {} | engine by the faster", subjects.join(" | "));
    let mut table = Table::new("Flushing what is cached until it is durable", columns);
    for row in flushes {
        let rates = subjects.map(|subject| report.series.median(row, subject));
        table.row(row).figures(rates).estimate(flush_ratio(&report.series, row));
    }
    report.table(table);
    report.note(
        "Times are those of each thread. By memcpy: the engine's time divided by that of memcpy, less is better. Kernel by it: the \
         time of the faster of disk and tmpfs divided by the engine's, more is better. Tenant: the engine with a tenant that asks \
         the throttle after each write. Ratios: medians of the rounds' ratios, 95 % intervals.",
    );
    targets(report);
    Ok(())
}

fn operations() -> impl Iterator<Item = (Operation, Order)> {
    Operation::ALL.into_iter().flat_map(|operation| Order::ALL.map(|order| (operation, order)))
}

fn access_table(times: &Series, options: &Options) -> Table {
    let subjects = [MEMCPY, ENGINE, TENANT, TMPFS, DISK];
    let columns = format!("ns per 4 KiB | {} | by memcpy | kernel by it | tenant by it", subjects.join(" | "));
    let size = slackwater_host::size::text(access::file_bytes(options));
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
    ratio(&times.combined(row, &[DISK, TMPFS], f64::min), &times.of(row, ENGINE).all())
}

fn flush_ratio(rates: &Series, row: &str) -> Option<Estimate> {
    ratio(&rates.of(row, ENGINE).all(), &rates.combined(row, &[DIRECT_1, DIRECT_4], f64::max))
}

fn targets(report: &mut Report) {
    for (operation, order) in operations() {
        let (row, name) = (row(operation, order, Setting::ONE), format!("{} {}", operation.name(), order.name()));
        let by_memcpy = report.series.ratio(&row, ENGINE, MEMCPY);
        report.target(format!("{name}: engine by memcpy"), AtMost(1.6), by_memcpy);
        let by_engine = kernel_by_engine(&report.series, &row);
        report.target(format!("{name}: kernel by engine"), AtLeast(2.0), by_engine);
        if operation == Operation::Write {
            let by_engine = report.series.ratio(&row, TENANT, ENGINE);
            report.target(format!("{name}: tenant by engine"), AtMost(1.1), by_engine);
        }
    }
    // A thread's time for a page with one thread, divided by that with two: 1 is perfect scaling, 1/2 is none.
    let scaling = |report: &Report, operation, order, setting, subject| {
        let of = |setting| report.series.of(&row(operation, order, setting), subject).all();
        ratios(&of(Setting::ONE), &of(setting))
    };
    for (operation, order) in operations() {
        let of = |subject| scaling(report, operation, order, Setting::TWO_OWN, subject);
        let by_memcpy = ratio(&of(ENGINE), &of(MEMCPY));
        let name = format!("{} {}: scaling to 2 threads by memcpy's", operation.name(), order.name());
        report.target(name, AtLeast(0.9), by_memcpy);
    }
    for order in Order::ALL {
        let shared = scaling(report, Operation::Write, order, Setting::TWO_SHARED, ENGINE);
        let throughput = median_estimate(&shared).times(2.0);
        report.target(format!("write {}: two writers of one file by one", order.name()), AtLeast(1.0), throughput);
    }
    let by_direct = flush_ratio(&report.series, NEW);
    report.target("sequential flush by the plain direct loop", AtLeast(0.9), by_direct);
}

/// Measures MB/s.
fn measure_flushes(count: u32, rows: &[&str], dir: &Path, series: &mut Series) -> Result<()> {
    // Nothing is written back before the flush.
    let tunables = Tunables {
        dirty_writeback: Duration::ZERO,
        dirty_background_percent: 99,
        dirty_percent: 100,
        volume_share_percent: 90,
        ..Tunables::default()
    };
    let mut cached = Cached::new(dir, ARENA_BYTES, tunables, 1, BYTES, Writer::Root)?;
    let mut direct = open_direct(dir)?;
    let mut source = vec![0; BYTES as usize + PAGE];
    rounds::run("flush", count, &[(ENGINE, 0), (DIRECT_1, 1), (DIRECT_4, 4)], |_, (name, threads)| {
        if *name == ENGINE {
            cached.empty()?
        } else {
            ftruncate(&direct, 0).context("ftruncate")?
        }
        // Both sides wait for the journal of the file system, so nothing else may be on its way there.
        syncfs(&direct).context("syncfs")?;
        for row in rows {
            let rate =
                if *name == ENGINE { flush(&mut cached)? } else { write_directly(&mut direct, &mut source, *threads)? };
            series.add(row, name, rate);
        }
        Ok(())
    })
}

/// Fills the cache and flushes it; only the flush is timed.
fn flush(cached: &mut Cached) -> Result<f64> {
    let pages = BYTES / PAGE as u64;
    for mut lane in cached.lanes(1, Sharing::Own) {
        lane.batch(Operation::Write, &mut Pattern::new(Order::Sequential, 0, pages, 0), pages)?;
    }
    let dirty = cached.volume().status().dirty_bytes;
    ensure!(dirty == BYTES, "only {dirty} of {BYTES} bytes are dirty before the flush");
    let start = Instant::now();
    cached.settle()?;
    Ok(mb_per_s(BYTES, start.elapsed()))
}

fn open_direct(dir: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32);
    scratch::nameless(dir, &options).context("the file system of --dir does not support direct I/O")
}

/// The plain loop: each thread writes every `count`th unit. As with the cache, the bytes have just been stored in as much
/// memory as the file is large. A single buffer, written again and again, would come out of the processor's cache.
fn write_directly(file: &mut File, source: &mut [u8], count: u64) -> Result<f64> {
    let file = &*file;
    source.fill(count as u8);
    let source = &*source;
    let skip = source.as_ptr().align_offset(PAGE);
    let start = Instant::now();
    threads::run_lanes((0..count).collect(), |first: &mut u64| {
        for number in (*first..BYTES / UNIT as u64).step_by(count as usize) {
            let unit = &source[skip + number as usize * UNIT..][..UNIT];
            let slices = [std::io::IoSlice::new(unit)];
            let written = pwritev2(file, &slices, number * UNIT as u64, ReadWriteFlags::empty()).context("pwritev2")?;
            ensure!(written == UNIT, "a short write of {written} bytes");
        }
        Ok(())
    })?;
    fdatasync(file).context("fdatasync")?;
    Ok(mb_per_s(BYTES, start.elapsed()))
}
