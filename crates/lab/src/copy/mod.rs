//! `copy`: a tree of real files, copied through the cache into a directory, unmounted, and compared with its source.

mod compare;
mod places;
mod plain;
mod plan;
mod through;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use slackwater::{SuperBlock, Tunables, UmountError, UmountOptions};
use slackwater_arena::size;
use slackwater_backends::{DirBackend, DirStats};

use self::places::Destination;
use self::plan::Plan;
use self::through::Progress;
use crate::harness::threads::beside;
use crate::harness::{Options, Report, Table, mb_per_s};
use crate::scratch::{self, Scratch};
use crate::{interrupt, rig};

const ABOUT: &str = "A tree of real files, copied through the cache, unmounted, and compared with its source.";

/// Time between two updates of the progress bar.
const PAUSE: Duration = Duration::from_millis(20);
/// A smaller cache would be entirely in flight.
const CACHE_BYTES_MIN: u64 = 8 << 20;
/// How long an unmount tries before its progress is checked.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Attempts without any progress after which an unmount with a failing backend gives up.
const VAIN_MAX: u32 = 3;
/// Differences that are printed.
const SHOWN: usize = 10;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Directory to copy [default: the Rust toolchain's documentation, or /usr/share]
    source: Option<PathBuf>,

    /// Empty directory to copy to; created if it does not exist [default: a temporary one in --dir]
    #[arg(value_name = "DEST")]
    destination: Option<PathBuf>,

    /// Size of the engine's cache
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size::parse)]
    cache: u64,

    /// Threads that copy files
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// Keep a temporary copy
    #[arg(long)]
    keep: bool,

    #[command(flatten)]
    options: Options,
}

/// The copy through the engine.
struct Measured {
    copying: Duration,
    unmounting: Duration,
    left_bytes: u64,
    written_bytes: u64,
    pinned_frames_max: u64,
    stats: DirStats,
}

/// Runs the copy; false if it differs from its source.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let (options, threads) = (&arguments.options, usize::from(arguments.threads));
    if arguments.cache < CACHE_BYTES_MIN {
        let (cache, least) = (size::text(arguments.cache), size::text(CACHE_BYTES_MIN));
        bail!("a cache of {cache} is too small: --cache must be at least {least}");
    }
    rig::raise_file_limit();
    let source = places::source(arguments.source.as_deref())?;
    let engine = rig::engine(arguments.cache, Tunables::default())?;
    let destination = places::destination(arguments.destination.as_deref(), &options.dir, &source)?;
    let plan = list(&source)?;
    let copies = options.pick(2, 1);
    places::refuse_too_much(&plan, destination.path(), copies)?;
    println!("from  {}", source.display());
    println!("to    {}\n", destination.path().display());

    let mut report = Report::with("copy", ABOUT, Some(destination.path()), options.seed, None);
    if !options.quick {
        warm(&plan)?;
    }
    let (volume, backend) = rig::mount_dir(&engine, "copy", destination.path())?;
    let measured = through_engine(&plan, &volume, &backend, threads)?;
    drop((volume, backend, engine));
    let differences = compared(&plan, destination.path(), threads)?;
    let plain = if options.quick { None } else { plainly(&plan, &destination, threads)? };
    add_figures(&mut report, &plan, &measured, plain);

    let is_same = differences.is_empty();
    for difference in differences.iter().take(SHOWN) {
        eprintln!("DIFFERS  {} {}", difference.path.display(), difference.what);
    }
    if differences.len() > SHOWN {
        eprintln!("DIFFERS  and {} more", differences.len() - SHOWN);
    }
    let verdict = match is_same {
        true => "every type, mode, time, link and byte is the same".to_owned(),
        false => format!("{} paths differ", differences.len()),
    };
    report.note(format!("Compared with its source by plain reads: {verdict}."));
    report.note(settle(destination, arguments.keep));
    report.figure("differences", differences.len());
    Ok(report.publish(options)? && is_same)
}

/// Keeps or removes the copy, and says so.
fn settle(destination: Destination, keep: bool) -> String {
    match destination {
        Destination::Named(path) => format!("The copy is in {}.", path.display()),
        Destination::Temporary(scratch, path) if keep => {
            scratch.keep();
            format!("The copy is kept in {}.", path.display())
        }
        Destination::Temporary(..) => "The copy was temporary and has been removed; --keep keeps it.".into(),
    }
}

fn spinner(template: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn bar(bytes: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_prefix(what);
    let template = "{prefix:>11} [{bar:24}] {bytes}/{total_bytes}  {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> "))
}

fn list(source: &Path) -> Result<Plan> {
    let spinner = spinner("    listing {spinner} {elapsed}");
    spinner.enable_steady_tick(Duration::from_millis(100));
    let plan = Plan::of(source);
    spinner.finish_and_clear();
    plan
}

/// Reads the source once, so that it is in the kernel's cache for both copies.
fn warm(plan: &Plan) -> Result<()> {
    let bar = bar(plan.bytes, "reading");
    for entry in &plan.entries {
        interrupt::check()?;
        if let plan::Kind::File { size_bytes } = entry.kind {
            let path = plan.source.join(&entry.path);
            let read = std::fs::File::open(&path).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
            read.with_context(|| format!("cannot read {}", path.display()))?;
            bar.inc(size_bytes);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// Does `work` beside a thread that calls `look` now and then.
fn watched<T>(mut look: impl FnMut() + Send, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let watch = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            look();
            std::thread::sleep(PAUSE);
        }
        Ok(())
    };
    Ok(beside([watch], |_| work())?.0)
}

fn through_engine(plan: &Plan, volume: &Arc<SuperBlock>, backend: &DirBackend, threads: usize) -> Result<Measured> {
    let (progress, mut pinned_frames_max) = (Progress::default(), 0);
    let bar_copying = bar(plan.bytes, "copying");
    let start = Instant::now();
    let look = || {
        pinned_frames_max = pinned_frames_max.max(volume.bdi().pinned_frames());
        let bytes = progress.bytes.load(Ordering::Relaxed);
        bar_copying.set_position(bytes);
        let (files, rate) = (progress.files.load(Ordering::Relaxed), mb_per_s(bytes, start.elapsed()));
        let dirty = size::text(volume.status().dirty_bytes);
        bar_copying.set_message(format!("{files}/{} files  {rate:.0} MB/s  {dirty} dirty", plan.files));
    };
    let copied = watched(look, || through::copy(plan, volume, threads, &progress));
    let copying = start.elapsed();
    bar_copying.finish_and_clear();
    if let Err(error) = copied {
        let _ = rig::discard(volume);
        return Err(error);
    }

    let left_bytes = volume.status().bytes_left();
    let bar_unmounting = bar(left_bytes, "unmounting");
    let start = Instant::now();
    let look = || {
        let left = volume.status().bytes_left();
        let done = left_bytes.saturating_sub(left);
        bar_unmounting.set_position(done);
        let rate = mb_per_s(done, start.elapsed());
        let failing = volume.status().failing.map_or_else(String::new, |kind| format!("  failing: {kind}"));
        bar_unmounting.set_message(format!("{} left  {rate:.0} MB/s{failing}", size::text(left)));
    };
    watched(look, || unmount(volume))?;
    let unmounting = start.elapsed();
    bar_unmounting.finish_and_clear();
    let written_bytes = volume.bdi().written_bytes();
    Ok(Measured { copying, unmounting, left_bytes, written_bytes, pinned_frames_max, stats: backend.stats() })
}

/// Unmounts, however long it takes, unless there is no progress or an interrupt.
fn unmount(volume: &Arc<SuperBlock>) -> Result<()> {
    let options = UmountOptions { deadline: Some(ATTEMPT), ..UmountOptions::default() };
    let (mut least_bytes, mut vain) = (u64::MAX, 0);
    loop {
        let error = match volume.umount(options) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let UmountError::Deadline { dirty_bytes, cause } = &error else {
            return Err(error).context("cannot unmount");
        };
        vain = if *dirty_bytes < least_bytes { 0 } else { vain + 1 };
        least_bytes = least_bytes.min(*dirty_bytes);
        let is_over = match cause {
            Some(kind) if vain >= VAIN_MAX => Some(format!("writeback keeps failing: {kind}")),
            Some(_) | None => interrupt::is_interrupted().then(|| "interrupted".to_owned()),
        };
        if let Some(why) = is_over {
            let _ = rig::discard(volume);
            bail!("cannot unmount: {why}; {} were not written back", size::text(*dirty_bytes));
        }
    }
}

fn compared(plan: &Plan, destination: &Path, threads: usize) -> Result<Vec<compare::Difference>> {
    let (bar, bytes) = (bar(plan.bytes, "comparing"), AtomicU64::new(0));
    let look = || bar.set_position(bytes.load(Ordering::Relaxed));
    let differences = watched(look, || compare::compare(plan, destination, threads, &bytes));
    bar.finish_and_clear();
    differences
}

/// The same copy without the engine, in a temporary directory beside `destination`, if it can be made there.
fn plainly(plan: &Plan, destination: &Destination, threads: usize) -> Result<Option<plain::PlainTimes>> {
    let folder = match destination {
        Destination::Named(path) => path.parent(),
        Destination::Temporary(scratch, _) => scratch.path().parent(),
    };
    let destination = destination.path();
    let beside = folder.map(Scratch::in_folder).and_then(Result::ok);
    let Some(beside) = beside.filter(|beside| scratch::same_file_system(beside.path(), destination)) else {
        return Ok(None);
    };
    let spinner = spinner("copying once more without the engine {spinner} {elapsed}");
    spinner.enable_steady_tick(Duration::from_millis(100));
    let times = plain::copy(plan, &beside.tree("plain")?, threads)?;
    drop(beside);
    spinner.finish_and_clear();
    Ok(Some(times))
}

fn add_figures(report: &mut Report, plan: &Plan, measured: &Measured, plain: Option<plain::PlainTimes>) {
    let title = format!(
        "{} files, {} names, {} ({} sockets, FIFOs and devices left out)",
        plan.files,
        plan.entries.len(),
        size::text(plan.bytes),
        plan.skipped
    );
    let mut table = Table::new(title, " | engine | std::fs::copy + syncfs");
    let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
    let rate = |time: Duration| format!("{:.0} MB/s", mb_per_s(plan.bytes, time));
    let whole = measured.copying + measured.unmounting;
    let plain_whole = plain.map(|times| times.copying + times.syncing);
    let mut times = |name: &str, text: &dyn Fn(Duration) -> String, engine, plain: Option<Duration>| {
        table.row(name).text(text(engine)).text(plain.map_or_else(String::new, text));
    };
    times("copying", &seconds, measured.copying, plain.map(|times| times.copying));
    times("unmounting, syncfs", &seconds, measured.unmounting, plain.map(|times| times.syncing));
    times("together", &seconds, whole, plain_whole);
    times("rate", &rate, whole, plain_whole);
    let pinned = measured.pinned_frames_max * slackwater::PAGE_BYTES;
    let stats = measured.stats;
    let writes = stats.direct_writes + stats.dontcache_writes + stats.plain_writes;
    let average = measured.written_bytes.checked_div(writes).unwrap_or(0);
    table.row("left for the unmount").text(size::text(measured.left_bytes));
    table.row("most pinned in the cache").text(size::text(pinned));
    table.row("write calls, average").text(format!("{writes}, {}", size::text(average)));
    let direct = format!("{}/{}/{}", stats.direct_writes, stats.dontcache_writes, stats.plain_writes);
    table.row("direct/dontcache/plain").text(direct);
    report.table(table);

    report.figure("files", plan.files);
    report.figure("names", plan.entries.len());
    report.figure("bytes", plan.bytes);
    report.figure("skipped", plan.skipped);
    report.figure("copying_s", measured.copying.as_secs_f64());
    report.figure("unmounting_s", measured.unmounting.as_secs_f64());
    report.figure("left_bytes", measured.left_bytes);
    report.figure("pinned_bytes_max", pinned);
    report.figure("written_bytes", measured.written_bytes);
    report.figure("write_calls", writes);
    if let Some(times) = plain {
        report.figure("plain_copying_s", times.copying.as_secs_f64());
        report.figure("plain_syncing_s", times.syncing.as_secs_f64());
    }
}
