//! `gate`: how long a tenant's fsync takes beside others' streams on the same disk.
//!
//! Two engines that differ only in [`Tunables::gate`](slackwater::Tunables::gate) take turns. In each, four tenants
//! overwrite their files as fast as the cache accepts it, so that background writeback never ends, and a fifth writes
//! 64 KiB and syncs, again and again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slackwater::{Engine, File, SuperBlock, Tunables};

use crate::harness::threads::beside;
use crate::harness::{AtLeast, AtMost, Estimate, Options, Report, Series, Source, Table, mb_per_s, ms, rounds};
use crate::scratch::Scratch;
use crate::{interrupt, rig};

/// The subjects.
const WITH: &str = "with the gate";
const WITHOUT: &str = "without";
/// The rows.
const WHOLE: &str = "write of 64 KiB and fsync, ms";
const WRITE: &str = "write of 64 KiB, ms";
const RATE: &str = "streams, MB/s";

/// Time for the streams to fill their shares of the cache.
const WARM_UP: Duration = Duration::from_millis(700);
/// Time between two syncs.
const PAUSE: Duration = Duration::from_millis(5);
/// Tenants that stream.
const STREAMS: usize = 4;
/// Size of each stream's file.
const STREAM_BYTES: u64 = 256 << 20;
/// Size of a stream's writes.
const BLOCK_BYTES: usize = 1 << 20;
/// Size of the file that is synced, and of the write before each sync.
const SYNCED_BYTES: u64 = 64 << 20;
const SYNC_BYTES: usize = 64 << 10;
/// Size of the arena: less than the streams' files together, so that what they write has to reach the disk soon.
const ARENA_BYTES: u64 = 640 << 20;

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let time = Duration::from_millis(options.pick(4000, 1500));
    let home = Scratch::in_folder(&options.dir)?;
    let mut tenants = [Tenants::new(home.path(), WITH)?, Tenants::new(home.path(), WITHOUT)?];
    rounds::run("gate", options.rounds(), &[0, 1], |_, turn| tenants[*turn].observe(time, &mut report.series))?;

    let series = &report.series;
    let figures = |subject: &'static str| {
        let [p50, p99] = series.of(WHOLE, subject).quantiles([0.5, 0.99]);
        [("p50", p50), ("p99", p99), ("MB/s of the streams", series.median(RATE, subject))]
            .map(|(what, value)| (format!("{subject} {what}"), value))
    };
    let figures = [WITH, WITHOUT].map(figures).concat();
    report.finding(Source::Ours, "Write and fsync of 64 KiB in ms", figures);
    report.curves("Write of 64 KiB and fsync, beside four streams", "milliseconds", WHOLE, [WITHOUT, WITH]);
    let columns = " | syncs | p50 ms | p99 ms | max ms | write p99 ms | streams MB/s";
    let mut table = Table::new("Write of 64 KiB and fsync, beside four overwriting streams; all rounds", columns);
    for subject in [WITH, WITHOUT] {
        let whole = report.series.of(WHOLE, subject);
        let row = table.row(subject).text(whole.count()).figures(whole.quantiles([0.5, 0.99, 1.0]));
        row.figure(report.series.of(WRITE, subject).quantile(0.99)).figure(report.series.median(RATE, subject));
    }
    report.table(table);
    let by_rounds = |share| report.series.of(WHOLE, WITH).by_rounds(report.series.of(WHOLE, WITHOUT), share);
    let (p50, p99, rate) = (by_rounds(0.5), by_rounds(0.99), report.series.ratio(RATE, WITH, WITHOUT));
    let [p50, p99_text, rate_text] =
        [p50, p99, rate].map(|ratio| ratio.as_ref().map_or_else(String::new, Estimate::text));
    report.note(format!(
        "With the gate divided by without, medians of the rounds' ratios: p50 {p50}, p99 {p99_text}, throughput of the streams \
         {rate_text}."
    ));
    report.target("fsync p99: with the gate by without", AtMost(1.0 / 5.0), p99);
    report.target("throughput of the streams: with by without", AtLeast(0.9), rate);
    Ok(())
}

/// An engine with its tenants, all in directories on one file system.
struct Tenants {
    subject: &'static str,
    /// The last one is synced.
    files: Vec<File>,
    volumes: Vec<Arc<SuperBlock>>,
    next_sync: u64,
    _engine: Engine,
    _scratch: Scratch,
}

impl Tenants {
    /// Makes volumes and files in `folder`; all blocks of the files are allocated.
    fn new(folder: &Path, subject: &'static str) -> Result<Self> {
        let scratch = Scratch::in_folder(folder)?;
        // Writeback never ends, and no tenant can take another's frames: the arena has five shares.
        let (dirty_background_percent, volume_share_percent, gate) = (5, 20, subject == WITH);
        let tunables = Tunables { dirty_background_percent, volume_share_percent, gate, ..Tunables::default() };
        let engine = rig::engine(ARENA_BYTES, tunables)?;
        let (mut files, mut volumes) = (Vec::new(), Vec::new());
        for number in 0..=STREAMS {
            let name = format!("tenant-{number}");
            let (volume, _) = rig::mount_dir(&engine, &name, &scratch.subdirectory(&name)?)?;
            let file = rig::new_file(&volume, "file")?;
            let bytes = if number < STREAMS { STREAM_BYTES } else { SYNCED_BYTES };
            overwrite(&file, (0..bytes).step_by(BLOCK_BYTES))
                .with_context(|| format!("cannot fill the file of {name}"))?;
            file.fsync()?;
            volumes.push(volume);
            files.push(file);
        }
        Ok(Self { subject, files, volumes, next_sync: 0, _engine: engine, _scratch: scratch })
    }

    /// Runs the streams. After the warm-up, writes and syncs for `time`, and measures that.
    fn observe(&mut self, time: Duration, series: &mut Series) -> Result<()> {
        let Self { subject, files, volumes, next_sync, .. } = self;
        let (synced, streams) = files.split_last().context("there are files")?;
        let written = || volumes[..STREAMS].iter().map(|volume| volume.bdi().written_bytes()).sum::<u64>();
        let stream = |file| {
            move |stop: &AtomicBool| {
                let goes_on = |_: &u64| !stop.load(Ordering::Relaxed) && !interrupt::is_interrupted();
                overwrite(file, (0..STREAM_BYTES).step_by(BLOCK_BYTES).cycle().take_while(goes_on))
            }
        };
        let (mut write_ms, mut whole_ms) = (Vec::new(), Vec::new());
        let (rate, _) = beside(streams.iter().map(stream), |_| {
            std::thread::sleep(WARM_UP);
            let (before, start, bytes) = (written(), Instant::now(), vec![3; SYNC_BYTES]);
            while start.elapsed() < time {
                interrupt::check()?;
                let start = Instant::now();
                synced.write_at(*next_sync * SYNC_BYTES as u64 % SYNCED_BYTES, &bytes)?;
                write_ms.push(ms(start.elapsed()));
                synced.fsync()?;
                whole_ms.push(ms(start.elapsed()));
                *next_sync += 1;
                std::thread::sleep(PAUSE);
            }
            Ok(mb_per_s(written() - before, start.elapsed()))
        })?;
        series.add_round(WRITE, subject, write_ms);
        series.add_round(WHOLE, subject, whole_ms);
        series.add(RATE, subject, rate);
        // The other engine's turn begins with nothing to write back.
        volumes.iter().try_for_each(|volume| Ok(volume.sync()?))
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.files.clear();
        self.volumes.iter().for_each(rig::discard_or_say);
    }
}

/// Writes a block at each of `offsets`.
fn overwrite(file: &File, offsets: impl Iterator<Item = u64>) -> Result<()> {
    let block = vec![2; BLOCK_BYTES];
    for offset_bytes in offsets {
        interrupt::check()?;
        file.write_at(offset_bytes, &block)?;
    }
    Ok(())
}
