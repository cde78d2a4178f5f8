//! `idle`: the cost of an engine with ten thousand clean inodes while there is nothing to do.
//!
//! Each round is a part of the time that the engine is left alone.

mod flushers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use slackwater::backend::MemBackend;
use slackwater::{Engine, File, SuperBlock, Tunables, UmountOptions};

use self::flushers::Activity;
use crate::harness::statistics::mean_estimate;
use crate::harness::{Bars, Bound, Estimate, Options, PageOptions, Report, Source, Table, figure, rounds};
use crate::{interrupt, rig};

const ABOUT: &str = "The cost of an engine with ten thousand clean inodes while there is nothing to do: wake-ups and CPU time of its \
     flushers.";
const LINUX: &str =
    "Linux has a timer of 5 s for each wb with dirty inodes, and none for a clean one: at most one wake-up in 5 s.";

const VOLUMES: usize = 4;
const INODES: usize = 10_000;
const FILE_BYTES: usize = 4096;
const ARENA_BYTES: u64 = 256 << 20;
/// Wake-ups are counted per this time: the period of the kernel's flusher.
const PERIOD: Duration = Duration::from_secs(5);
/// Less than this is printed as 0 ms.
const CPU_MS_MAX: f64 = 0.5;
/// Time for timers of earlier work to run out: each fires once and finds nothing.
const SETTLING: Duration = Duration::from_secs(6);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Seconds to leave the engine alone [default: 60, quick 15]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) seconds: Option<u16>,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

/// Runs the experiment; `None` is the default.
pub(crate) fn run(options: &Options, seconds: Option<u16>) -> Result<Report> {
    let seconds = seconds.unwrap_or(options.pick(60, 15));
    let mut report = Report::with("idle", ABOUT, None, options.seed, Some(options.rounds()));
    let engine = rig::engine(ARENA_BYTES, Tunables::default())?;
    let volumes = (0..VOLUMES).map(|number| read_volume(&engine, number)).collect::<Result<Vec<_>>>()?;
    let inodes: u64 = volumes.iter().map(|volume| volume.status().inodes).sum();
    ensure!(inodes >= INODES as u64, "only {inodes} inodes are cached");

    let window = Duration::from_secs(seconds.into()) / options.rounds();
    let (mut wake_ups, mut cpu_ms) = (Vec::new(), Vec::new());
    interrupt::sleep(SETTLING)?;
    let start = Activity::now()?;
    let mut before = start;
    rounds::run("idle", options.rounds(), &[()], |_, ()| {
        interrupt::sleep(window)?;
        let now = Activity::now()?;
        let seen = now - before;
        before = now;
        wake_ups.push(seen.wake_ups as f64 / VOLUMES as f64 * PERIOD.as_secs_f64() / window.as_secs_f64());
        cpu_ms.push(seen.cpu_ns as f64 / 1e6);
        Ok(())
    })?;
    let whole = before - start;
    volumes.iter().try_for_each(|volume| volume.umount(UmountOptions::default()))?;

    let whole_ms = whole.cpu_ns as f64 / 1e6;
    let title = format!("{inodes} clean inodes on {VOLUMES} volumes, {} flusher threads, {seconds} s", whole.threads);
    let mut table = Table::new(title, " | ");
    table.row("wake-ups of all flushers").text(whole.wake_ups);
    table.row("their CPU time, ms").figure(whole_ms);
    report.table(table);
    report.figure("inodes", inodes);
    report.figure("seconds", seconds);
    report.figure("wake_ups", whole.wake_ups);
    report.figure("cpu_ms", whole_ms);
    let per_wb = mean_estimate(&wake_ups, options.seed);
    report.finding(Source::Published, LINUX.to_owned());
    let (count, time) = (whole.wake_ups, figure(whole_ms));
    report.finding(Source::Ours, format!("{count} wake-ups of all flushers in {seconds} s, {time} ms of CPU time."));
    let groups = vec![
        ("a wb of Linux with dirty inodes".to_owned(), vec![Some(Estimate::exactly(1.0))]),
        ("a wb here, all clean".to_owned(), vec![Some(per_wb)]),
    ];
    report.plot(Bars { title: "Wake-ups in 5 s".to_owned(), subjects: vec!["wake-ups"], groups });
    report.target("wake-ups per wb in 5 s", Bound::AtMost(1.0), per_wb);
    let Estimate { value, low, high } = mean_estimate(&cpu_ms, options.seed);
    let [value, low, high] = [value, low, high].map(|ms| ms * f64::from(options.rounds()));
    report.target("CPU time of the flushers, ms", Bound::AtMost(CPU_MS_MAX), Estimate { value, low, high });
    Ok(report)
}

/// A volume with its share of the inodes, each read once after the volume was unmounted and mounted again.
fn read_volume(engine: &Engine, number: usize) -> Result<Arc<SuperBlock>> {
    let (name, backend) = (format!("idle-{number}"), Arc::new(MemBackend::new()));
    let files = INODES / VOLUMES;
    let volume = rig::mount(engine, &name, backend.clone())?;
    for file in 0..files {
        interrupt::check()?;
        rig::new_file(&volume, &file.to_string())?.write_at(0, &[1; FILE_BYTES])?;
    }
    volume.umount(UmountOptions::default())?;

    let volume = rig::mount(engine, &name, backend)?;
    let root = volume.root()?;
    let mut page = [0; FILE_BYTES];
    for file in 0..files {
        interrupt::check()?;
        let read = File::open(&volume.lookup(&root, file.to_string())?)?.read_at(0, &mut page)?;
        ensure!(read == FILE_BYTES, "a short read of file {file}");
    }
    drop(root);
    ensure!(volume.status().bytes_left() == 0, "something is dirty although files were only read");
    Ok(volume)
}
