//! `reclaim`: which pages the cache keeps.
//!
//! An engine with a small arena reads traces of single pages. It is compared with policies that track every page: least
//! recently used, first in first out, and S3-FIFO as published. All have as many pages as the arena has frames outside its
//! reserve; only the engine keeps some of them free.

mod policies;
mod subject;
mod traces;

use anyhow::Result;
use slackwater_backends::Random;

use self::policies::NAMES;
use self::subject::Subject;
use self::traces::{Kind, Zipf};
use crate::harness::samples::ratio;
use crate::harness::{Bars, Bound, Options, Report, Samples, Series, Source, Table, figure, median_estimate, rounds};
use crate::interrupt;

const ABOUT: &str = "Which pages a small cache keeps: hits on traces of single pages, beside policies that track every page, and what an \
     eviction costs.";

const ARENA_BYTES: u64 = 32 << 20;
/// Enough for every trace.
const FILE_PAGES: u64 = 1 << 22;
/// One of so many reads of a trace fills the cache before hits are counted.
const WARM_UP: usize = 4;
/// Reads between two checks for an interrupt.
const CHECK: usize = 1 << 16;
const ENGINE: &str = "engine";
const LRU: &str = NAMES[0];

/// Lower bounds: hits divided by those of LRU, without scans, where there is nothing to gain, and with scans.
const BY_LRU: f64 = 0.99;
const BY_LRU_WITH_SCANS: f64 = 1.02;
/// Lower bound: hits of a tenant beside one that reads four times the cache, divided by its hits alone.
const BESIDE_SCAN: f64 = 0.95;
/// Upper bound: time of the eviction of a page.
const EVICTION_NS_MAX: f64 = 300.0;

/// How streams are read: the name, the arena as a multiple of [`ARENA_BYTES`], and whether threads evict in the background.
const STREAMS: [(&str, u64, bool); 3] = [
    ("into free frames", 5, false),
    ("evicting, by the reader", 1, false),
    ("evicting, in the background too", 1, true),
];

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::with("reclaim", ABOUT, None, options.seed, Some(options.rounds()));
    let mut hits = Series::default();
    rounds::run("traces", options.rounds(), &Kind::ALL, |round, kind| measure(*kind, options, round, &mut hits))?;
    let (mut alone, mut beside) = (Samples::default(), Samples::default());
    rounds::run("tenants", options.rounds(), &[()], |round, ()| {
        let [first, second] = tenants(options, round)?;
        alone.push(first);
        beside.push(second);
        Ok(())
    })?;
    let mut stream_ns: [Samples; STREAMS.len()] = Default::default();
    rounds::run("streams", options.rounds(), &[0, 1, 2], |_, number| {
        let (_, times, background) = STREAMS[*number];
        stream_ns[*number].push(read_stream(times, background)?);
        Ok(())
    })?;

    let subjects = [ENGINE].into_iter().chain(NAMES);
    let all: Vec<&'static str> = subjects.clone().collect();
    report.plot(Bars::of("Hits, %", &hits, &all, Kind::ALL.map(Kind::name), str::to_owned));
    let mut table = Table::new(
        "Hits per read of single pages, %, medians of the rounds",
        format!("| {ENGINE} | {}", NAMES.join(" | ")),
    );
    for kind in Kind::ALL.map(Kind::name) {
        table.row(&kind).figures(subjects.clone().map(|name| hits.median(&kind, name)));
    }
    report.table(table);

    let [free, by_reader, in_background] = stream_ns;
    let eviction = |ns: &Samples| -> Vec<f64> { ns.all().iter().zip(free.all()).map(|(ns, free)| ns - free).collect() };
    let cost = median_estimate(&eviction(&by_reader));
    let mut table = Table::new("Reading a stream, ns per page", " | all | eviction");
    table.row(STREAMS[0].0).figure(free.median());
    table.row(STREAMS[1].0).figures([by_reader.median(), Some(cost.value)]);
    let background = median_estimate(&eviction(&in_background)).value;
    table.row(STREAMS[2].0).figures([in_background.median(), Some(background)]);
    report.table(table);

    for kind in Kind::ALL {
        let of = |name| hits.of(&kind.name(), name).all();
        report.figure(kind.name(), serde_json::json!({ "engine": of(ENGINE), "policies": NAMES.map(of) }));
        let bound = match kind {
            Kind::Zipf { .. } => BY_LRU,
            Kind::Scans { .. } => BY_LRU_WITH_SCANS,
            Kind::Loop { .. } | Kind::Moving { .. } => continue,
        };
        let title = format!("hits on {}, by LRU", kind.name());
        report.target(title, Bound::AtLeast(bound), hits.ratio(&kind.name(), ENGINE, LRU));
    }
    let left = ratio(&beside.all(), &alone.all());
    report.target("a tenant's hits beside a scan, by its hits alone", Bound::AtLeast(BESIDE_SCAN), left);
    report.target("eviction by the reader, ns per page", Bound::AtMost(EVICTION_NS_MAX), cost);
    let one = |kind: String| {
        Some(format!("{kind} {} (LRU {})", figure(hits.median(&kind, ENGINE)?), figure(hits.median(&kind, LRU)?)))
    };
    let all: Vec<String> = Kind::ALL.map(Kind::name).into_iter().filter_map(one).collect();
    let text = format!("Hits, %: {}. Eviction by the reader: {} ns per page.", all.join("; "), figure(cost.value));
    report.finding(Source::Ours, text);
    let json = serde_json::json!({ "free": free.all(), "reader": by_reader.all(), "background": in_background.all() });
    report.figure("stream_ns", json);
    Ok(report)
}

/// One trace, by the engine and by each policy.
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
