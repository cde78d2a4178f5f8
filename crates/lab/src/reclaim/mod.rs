//! `reclaim`: which pages the cache keeps.
//!
//! An engine with a small arena reads traces of single pages. It is compared with policies that track every page: least
//! recently used, first in first out, and S3-FIFO as published. All have as many pages as the arena has frames outside its
//! reserve; only the engine keeps some of them free.

mod policies;
mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slackwater::backend::MemBackend;
use slackwater::{Engine, File, Memcg, PAGE_BYTES, ReadRequest, SuperBlock, Tunables};
use slackwater_arena::Pool;
use slackwater_testkit::Random;

use self::policies::NAMES;
use self::traces::{Kind, Zipf};
use crate::harness::{AtLeast, AtMost, Options, Report, Series, Source, Table, median_estimate, rounds};
use crate::{interrupt, rig};

const ARENA_BYTES: u64 = 32 << 20;
/// Size of the file: enough pages for every trace.
const FILE_PAGES: u64 = 1 << 22;
/// The first part of a trace, one in so many reads, fills the cache before hits are counted.
const WARM_UP: usize = 4;
/// Reads between two checks for an interrupt.
const CHECK: usize = 1 << 16;
const ENGINE: &str = "engine";
const LRU: &str = NAMES[0];
const SUBJECTS: [&str; 4] = [ENGINE, LRU, NAMES[1], NAMES[2]];

/// The row of a tenant, and its subjects: alone, and while another tenant reads four times the cache.
const TENANT: &str = "hits of a tenant, %";
const ALONE: &str = "alone";
const BESIDE: &str = "beside a scan";

/// How streams are read: the name, the arena as a multiple of [`ARENA_BYTES`], and whether threads evict in the background.
const STREAMS: [(&str, u64, bool); 3] = [
    ("into free frames", 5, false),
    ("evicting, by the reader", 1, false),
    ("evicting, in the background too", 1, true),
];
/// The row of the streams.
const STREAM: &str = "reading a stream, ns per page";

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let series = &mut report.series;
    rounds::run("traces", options.rounds(), &Kind::ALL, |round, kind| measure(*kind, options, round, series))?;
    rounds::run("tenants", options.rounds(), &[()], |round, ()| {
        let [alone, beside] = tenants(options, round)?;
        series.add(TENANT, ALONE, alone);
        series.add(TENANT, BESIDE, beside);
        Ok(())
    })?;
    rounds::run("streams", options.rounds(), &STREAMS, |_, (name, times, background)| {
        series.add(STREAM, name, read_stream(*times, *background)?);
        Ok(())
    })?;
    publish(report);
    Ok(())
}

/// Adds the tables, plots and targets.
fn publish(report: &mut Report) {
    report.bars("Hits, %", &SUBJECTS, Kind::ALL.map(Kind::name), str::to_owned);
    report.medians("Hits per read of single pages, %, medians of the rounds", &SUBJECTS, Kind::ALL.map(Kind::name));
    let [free, by_reader, in_background] = STREAMS.map(|(name, ..)| report.series.of(STREAM, name).all());
    // The time beyond that of a stream into free frames.
    let eviction = |ns: &[f64]| median_estimate(&ns.iter().zip(&free).map(|(ns, free)| ns - free).collect::<Vec<_>>());
    let (cost, background) = (eviction(&by_reader), eviction(&in_background));
    let mut table = Table::new("Reading a stream, ns per page", " | all | eviction");
    for ((name, ..), eviction) in STREAMS.into_iter().zip([None, Some(cost.value), Some(background.value)]) {
        table.row(name).figures([report.series.median(STREAM, name), eviction]);
    }
    report.table(table);
    for kind in Kind::ALL {
        let bound = match kind {
            // There is nothing to gain without scans.
            Kind::Zipf { .. } => 0.99,
            Kind::Scans { .. } => 1.02,
            Kind::Loop { .. } | Kind::Moving { .. } => continue,
        };
        let by_lru = report.series.ratio(&kind.name(), ENGINE, LRU);
        report.target(format!("hits on {}, by LRU", kind.name()), AtLeast(bound), by_lru);
    }
    let left = report.series.ratio(TENANT, BESIDE, ALONE);
    report.target("a tenant's hits beside a scan, by its hits alone", AtLeast(0.95), left);
    report.target("eviction by the reader, ns per page", AtMost(300.0), cost);
    for subject in [ENGINE, LRU] {
        let hits = Kind::ALL.map(|kind| (kind.name(), report.series.median(&kind.name(), subject)));
        report.finding(Source::Ours, format!("Hits of {subject}, %"), hits);
    }
    report.finding(Source::Ours, "Eviction by the reader", [("ns per page", Some(cost.value))]);
}

/// Measures one trace, by the engine and by each policy.
fn measure(kind: Kind, options: &Options, round: u32, hits: &mut Series) -> Result<()> {
    let mut subject = Subject::new(ARENA_BYTES, FILE_PAGES, false)?;
    let capacity = subject.capacity();
    let count = options.pick(800_000, 300_000);
    let trace = kind.trace(capacity, count, options.seed + u64::from(round));
    let payer = subject.engine.root_memcg().clone();
    hits.add(&kind.name(), ENGINE, hit_rate(&trace, |page| subject.access(&payer, page))?);
    for (mut policy, name) in policies::all(capacity as usize).into_iter().zip(NAMES) {
        hits.add(&kind.name(), name, hit_rate(&trace, |page| Ok(policy.access(page)))?);
    }
    subject.end()
}

/// Hits in percent of the reads after the warm-up.
fn hit_rate(trace: &[u64], mut access: impl FnMut(u64) -> Result<bool>) -> Result<f64> {
    let (warm_up, mut hits) = (trace.len() / WARM_UP, 0_u64);
    for (nth, page) in trace.iter().enumerate() {
        if nth % CHECK == 0 {
            interrupt::check()?;
        }
        let hit = access(*page)?;
        hits += u64::from(hit && nth >= warm_up);
    }
    Ok(hits as f64 / (trace.len() - warm_up) as f64 * 100.0)
}

/// Hits of a tenant that reads pages of its own, in percent: alone, and while another tenant reads four times the cache.
fn tenants(options: &Options, round: u32) -> Result<[f64; 2]> {
    let mut subject = Subject::new(ARENA_BYTES, FILE_PAGES, false)?;
    let capacity = subject.capacity();
    let [reader, scanner] = ["reader", "scanner"].map(|name| subject.engine.memcg_create(name, None, None));
    let zipf = Zipf::new(capacity, 0.8);
    let mut random = Random::new(options.seed + u64::from(round));
    let mut rate = |scan: bool, subject: &mut Subject| -> Result<f64> {
        let (count, mut hits) = (4 * capacity, 0_u64);
        for nth in 0..count {
            if scan {
                subject.access(&scanner, capacity + nth)?;
            }
            hits += u64::from(subject.access(&reader, zipf.draw(&mut random) / 2)?);
        }
        Ok(hits as f64 / count as f64 * 100.0)
    };
    rate(false, &mut subject)?;
    let rates = [rate(false, &mut subject)?, rate(true, &mut subject)?];
    subject.end()?;
    Ok(rates)
}

/// Reads four times [`ARENA_BYTES`] in an arena of so many times as much, and returns the time per page.
fn read_stream(times: u64, background: bool) -> Result<f64> {
    let pages = 4 * ARENA_BYTES / slackwater::PAGE_BYTES;
    let subject = Subject::new(times * ARENA_BYTES, FILE_PAGES, background)?;
    let time = subject.stream(pages)?;
    subject.end()?;
    Ok(time.as_nanos() as f64)
}

/// Bytes of a read of [`Subject::stream`].
const STREAM_BYTES: usize = 1 << 20;

struct Subject {
    engine: Engine,
    volume: Arc<SuperBlock>,
    file: File,
    page: Vec<u8>,
}

impl Subject {
    /// An arena of `arena_bytes`, and a sparse file of `pages` pages. With `background`, threads free frames.
    fn new(arena_bytes: u64, pages: u64, background: bool) -> Result<Self> {
        let flusher_threads = if background { Tunables::default().flusher_threads } else { 0 };
        // Without readahead, so that only the pages of the trace are read.
        let tunables = Tunables { flusher_threads, readahead_pages: 0, ..Tunables::default() };
        let engine = rig::engine(arena_bytes, tunables)?;
        let volume = rig::mount(&engine, "reclaim", Arc::new(MemBackend::new()))?;
        let file = rig::new_file(&volume, "pages")?;
        file.set_len(pages * PAGE_BYTES)?;
        Ok(Self { engine, volume, file, page: vec![0; PAGE_BYTES as usize] })
    }

    /// Pages that fit into the cache: the frames outside the reserve.
    fn capacity(&self) -> u64 {
        self.engine.arena().free_frames_in(Pool::Normal)
    }

    /// Reads a page, charged to `payer`, and returns whether it was cached.
    fn access(&mut self, payer: &Arc<Memcg>, page: u64) -> Result<bool> {
        let offset_bytes = page * PAGE_BYTES;
        if self.file.peek(ReadRequest::at(offset_bytes), self.page.len(), |_| ()).is_some() {
            return Ok(true);
        }
        let read = self.file.read(ReadRequest::at(offset_bytes).memcg(payer), &mut self.page)?;
        ensure!(read == self.page.len(), "a short read of page {page}");
        Ok(false)
    }

    /// Reads the first `pages` in order, in large pieces, and returns the time per page.
    fn stream(&self, pages: u64) -> Result<Duration> {
        let mut piece = vec![0; STREAM_BYTES];
        let start = Instant::now();
        for offset_bytes in (0..pages * PAGE_BYTES).step_by(STREAM_BYTES) {
            self.file.read_at(offset_bytes, &mut piece)?;
        }
        let time = start.elapsed();
        let pages = u32::try_from(pages).context("too many pages to stream")?;
        Ok(time / pages)
    }

    fn end(self) -> Result<()> {
        drop(self.file);
        rig::discard(&self.volume)
    }
}
