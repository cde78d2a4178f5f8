//! `reclaim`: which pages the cache keeps.
//!
//! An engine with a small arena reads traces of single pages, and is compared with policies that know each page by itself:
//! least recently used, first in first out, and S3-FIFO as published. All have as many pages as the arena has outside its
//! reserve; the engine alone keeps some of them free.

mod policies;
mod subject;
mod traces;

use anyhow::Result;
use slackwater_backends::Random;

use self::policies::NAMES;
use self::subject::Subject;
use self::traces::{Kind, Zipf};
use crate::bars::Bars;
use crate::options::Options;
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::statistics::{median, median_estimate, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};
use crate::{interrupt, rounds};

const ARENA_BYTES: u64 = 32 << 20;
/// Enough for every trace.
const FILE_PAGES: u64 = 1 << 22;
/// Reads that fill the cache before hits are counted: one of so many.
const WARM_UP: usize = 4;
/// Reads between two looks for an interrupt.
const LOOK: usize = 1 << 16;

/// Least hits by those of LRU where nothing is to be gained, and beside scans.
const BY_LRU: f64 = 0.99;
const BY_LRU_BESIDE_SCANS: f64 = 1.02;
/// Least hits of a tenant beside one that reads through four times the cache, by its hits alone.
const BESIDE_SCAN: f64 = 0.95;
/// Most that it costs to make room for a page.
const EVICTION_NS_MAX: f64 = 300.0;

/// Hits by reads, in percent, of each round.
#[derive(Default)]
struct Rates {
    engine: Vec<f64>,
    policies: [Vec<f64>; NAMES.len()],
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::new("reclaim", None, options.seed, Some(options.rounds()));
    let mut rates: [Rates; Kind::ALL.len()] = Default::default();
    rounds::run("traces", options.rounds(), Kind::ALL.len(), |round, turn| {
        measure(Kind::ALL[turn], options, round, &mut rates[turn])
    })?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    rounds::run("tenants", options.rounds(), 1, |round, _| {
        let [first, second] = tenants(options, round)?;
        alone.push(first);
        beside.push(second);
        Ok(())
    })?;
    let (mut roomy, mut tight, mut background) = (Vec::new(), Vec::new(), Vec::new());
    rounds::run("streams", options.rounds(), 3, |_, turn| {
        let (ns, times, threads) = [(&mut roomy, 5, false), (&mut tight, 1, false), (&mut background, 1, true)]
            .into_iter()
            .nth(turn)
            .expect("3");
        ns.push(stream_ns(times, threads)?);
        Ok(())
    })?;

    report.about(
        "Which pages a small cache keeps: hits on traces of single pages, beside policies that know each page by itself, and what it \
         costs to make room.",
    );
    report.plot(rates_bars(&rates));
    report.table(rates_table(&rates));
    let difference = |cost: &[f64]| cost.iter().zip(&roomy).map(|(cost, none)| cost - none).collect::<Vec<_>>();
    let (by_reader, in_background) = (difference(&tight), difference(&background));
    let mut table = Table::new(
        "Reading a stream, ns a page",
        &[("", Align::Left), ("all", Align::Right), ("eviction", Align::Right)],
    );
    for (name, all, eviction) in [
        ("into free frames", &roomy, None),
        ("evicting, by the reader", &tight, Some(&by_reader)),
        ("evicting, in the background too", &background, Some(&in_background)),
    ] {
        table.row([name.to_owned(), figure(median(all)), eviction.map_or(String::new(), |ns| figure(median(ns)))]);
    }
    report.table(table);
    for (kind, rates) in Kind::ALL.iter().zip(&rates) {
        report.figure(kind.name(), serde_json::json!({ "engine": rates.engine, "policies": rates.policies }));
        let bound = match kind {
            Kind::Zipf { .. } => BY_LRU,
            Kind::Scans { .. } => BY_LRU_BESIDE_SCANS,
            Kind::Loop { .. } | Kind::Moving { .. } => continue,
        };
        let by_lru = median_estimate(&ratios(&rates.engine, &rates.policies[0]));
        report.target(Target::new(format!("hits on {}, by LRU", kind.name()), Bound::AtLeast(bound), by_lru));
    }
    let left = median_estimate(&ratios(&beside, &alone));
    report.target(Target::new("a tenant's hits beside a scan, by its hits alone", Bound::AtLeast(BESIDE_SCAN), left));
    let cost = median_estimate(&by_reader);
    let hits = |(kind, rates): (&Kind, &Rates)| {
        format!("{} {} (LRU {})", kind.name(), figure(median(&rates.engine)), figure(median(&rates.policies[0])))
    };
    let hits: Vec<String> = Kind::ALL.iter().zip(&rates).map(hits).collect();
    let text = format!("Hits, %: {}. Making room by the reader: {} ns a page.", hits.join("; "), figure(cost.value));
    report.finding(Source::Ours, text);
    report.target(Target::new("eviction by the reader, ns a page", Bound::AtMost(EVICTION_NS_MAX), cost));
    report.figure("stream_ns", serde_json::json!({ "free": roomy, "reader": tight, "background": background }));
    Ok(report)
}

/// One trace, by the engine and by each policy.
fn measure(kind: Kind, options: &Options, round: u32, rates: &mut Rates) -> Result<()> {
    let mut subject = Subject::new(ARENA_BYTES, FILE_PAGES, false)?;
    let capacity = subject.capacity();
    let count = options.pick(800_000, 300_000);
    let trace = kind.trace(capacity, count, options.seed + u64::from(round));
    let payer = subject.engine.root_memcg().clone();
    rates.engine.push(hit_rate(&trace, |page| subject.access(&payer, page))?);
    for (mut policy, rates) in policies::all(capacity as usize).into_iter().zip(&mut rates.policies) {
        rates.push(hit_rate(&trace, |page| Ok(policy.access(page)))?);
    }
    subject.end()
}

fn hit_rate(trace: &[u64], mut access: impl FnMut(u64) -> Result<bool>) -> Result<f64> {
    let (warm_up, mut hits) = (trace.len() / WARM_UP, 0_u64);
    for (nth, page) in trace.iter().enumerate() {
        if nth % LOOK == 0 {
            interrupt::check()?;
        }
        let hit = access(*page)?;
        hits += u64::from(hit && nth >= warm_up);
    }
    Ok(hits as f64 / (trace.len() - warm_up) as f64 * 100.0)
}

/// Hits of a tenant that reads pages of its own: alone, and while another reads through four times the cache.
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

/// Reads four times the cache of [`ARENA_BYTES`], in an arena of so many times as much; the time for a page.
fn stream_ns(times: u64, background: bool) -> Result<f64> {
    let pages = 4 * ARENA_BYTES / slackwater::PAGE_BYTES;
    let subject = Subject::new(times * ARENA_BYTES, FILE_PAGES, background)?;
    let time = subject.stream(pages)?;
    subject.end()?;
    Ok(time.as_nanos() as f64)
}

fn rates_bars(rates: &[Rates]) -> Bars {
    let group = |(kind, rates): (&Kind, &Rates)| {
        let all = [&rates.engine].into_iter().chain(&rates.policies);
        (kind.name(), all.map(|rates| Some(median(rates))).collect())
    };
    let subjects = ["engine"].into_iter().chain(NAMES).collect();
    Bars { title: "Hits, %".to_owned(), subjects, groups: Kind::ALL.iter().zip(rates).map(group).collect() }
}

fn rates_table(rates: &[Rates]) -> Table {
    let mut columns = vec![("", Align::Left), ("engine", Align::Right)];
    columns.extend(NAMES.map(|name| (name, Align::Right)));
    let mut table = Table::new("Hits by reads of single pages, %, medians of the rounds", &columns);
    for (kind, rates) in Kind::ALL.iter().zip(rates) {
        let cells = [&rates.engine].into_iter().chain(&rates.policies).map(|rates| figure(median(rates)));
        table.row([kind.name()].into_iter().chain(cells));
    }
    table
}
