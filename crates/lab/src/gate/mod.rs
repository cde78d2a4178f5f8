//! `gate`: how long a tenant's fsync takes beside others' streams on the same disk.
//!
//! Two engines that differ only in [`Tunables::gate`](slackwater::Tunables::gate) take turns. In each, four tenants
//! overwrite their files as fast as the cache accepts it, so that background writeback never ends, and a fifth writes
//! 64 KiB and syncs, again and again.

mod streams;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use self::streams::{Latencies, Seen, Tenants};
use crate::harness::samples::of_histogram;
use crate::harness::{
    Bound, Curve, Estimate, Options, PageOptions, Report, Samples, Source, Table, figure, mb_per_s, rounds,
};
use crate::scratch::Scratch;

const ABOUT: &str = "How long an fsync takes beside four tenants that overwrite their files on the same disk: with the gate that holds back \
     their writeback while a sync is in flight, and without.";

/// Upper bound: p99 of fsync with the gate, divided by that without.
const LATENCY_LEFT: f64 = 1.0 / 5.0;
/// Lower bound: throughput of the streams with the gate, divided by that without.
const THROUGHPUT_LEFT: f64 = 0.9;
const PAUSE_MS: u64 = 5;
/// Time for the streams to fill their shares of the cache.
const WARM_UP: Duration = Duration::from_millis(700);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Pause between two syncs [default: 5]
    #[arg(long, value_name = "MS")]
    pub(crate) pause_ms: Option<u64>,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

/// All rounds of one engine. Each has its figures, and `all` the latencies of all rounds.
struct Side {
    name: &'static str,
    all: Latencies,
    p50_us: Samples,
    p99_us: Samples,
    max_us: Samples,
    mb_per_s: Samples,
}

impl Side {
    fn new(name: &'static str) -> Result<Self> {
        let (p50_us, p99_us, max_us, mb_per_s) = Default::default();
        Ok(Self { name, all: Latencies::new()?, p50_us, p99_us, max_us, mb_per_s })
    }

    fn add(&mut self, seen: &Seen) -> Result<()> {
        let at = |quantile| seen.latencies.whole.value_at_quantile(quantile) as f64 / 1e3;
        self.p50_us.push(at(0.5));
        self.p99_us.push(at(0.99));
        self.max_us.push(at(1.0));
        self.mb_per_s.push(mb_per_s(seen.stream_bytes, seen.time));
        self.all.whole.add(&seen.latencies.whole)?;
        Ok(self.all.write.add(&seen.latencies.write)?)
    }

    /// Milliseconds of write and fsync together.
    fn whole_ms<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        shares.map(|share| self.all.whole.value_at_quantile(share) as f64 / 1e6)
    }

    fn sentence(&self) -> String {
        let [p50, p99] = self.whole_ms([0.5, 0.99]).map(figure);
        let rate = self.mb_per_s.median().map_or_else(String::new, figure);
        format!("{} p50 {p50}, p99 {p99}, the four streams {rate} MB/s", self.name)
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "syncs": self.all.whole.len(), "p50_us": self.p50_us.all(), "p99_us": self.p99_us.all(),
            "max_us": self.max_us.all(), "stream_mb_per_s": self.mb_per_s.all(),
        })
    }
}

/// Runs the experiment; `None` is the default.
pub(crate) fn run(options: &Options, pause_ms: Option<u64>) -> Result<Report> {
    let pause = Duration::from_millis(pause_ms.unwrap_or(PAUSE_MS));
    let time = Duration::from_millis(options.pick(4000, 1500));
    let home = Scratch::in_folder(&options.dir)?;
    let mut tenants = [Tenants::new(home.path(), true)?, Tenants::new(home.path(), false)?];
    let mut report = Report::new("gate", ABOUT, options);
    let mut sides = [Side::new("with the gate")?, Side::new("without")?];
    rounds::run("gate", options.rounds(), &[0, 1], |_, side| {
        let seen = tenants[*side].observe(WARM_UP, time, pause)?;
        sides[*side].add(&seen)
    })?;

    let [gated, ungated] = &sides;
    let text = format!("Write and fsync of 64 KiB in ms: {}; {}.", gated.sentence(), ungated.sentence());
    report.finding(Source::Ours, text);
    let curve = |(color, side): (usize, &Side)| Curve::new(side.name, color, of_histogram(&side.all.whole, 1e6));
    let title = "Write of 64 KiB and fsync, beside four streams";
    report.curves(title, "milliseconds", [ungated, gated].into_iter().enumerate().map(curve));

    let columns = " | syncs | p50 ms | p99 ms | max ms | write p99 ms | streams MB/s";
    let mut table = Table::new("Write of 64 KiB and fsync, beside four overwriting streams; all rounds", columns);
    for side in &sides {
        let row = table.row(side.name).text(side.all.whole.len()).figures(side.whole_ms([0.5, 0.99, 1.0]));
        row.figure(side.all.write.value_at_quantile(0.99) as f64 / 1e6).figure(side.mb_per_s.median());
    }
    report.table(table);
    let [p50, p99, rate] =
        [gated.p50_us.by(&ungated.p50_us), gated.p99_us.by(&ungated.p99_us), gated.mb_per_s.by(&ungated.mb_per_s)];
    let text = |ratio: Option<Estimate>| ratio.map_or_else(String::new, |ratio| ratio.text());
    report.note(format!(
        "With the gate divided by without, medians of the rounds' ratios: p50 {}, p99 {}, throughput of the streams {}.",
        text(p50),
        text(p99),
        text(rate)
    ));
    report.figure("gated", gated.json());
    report.figure("ungated", ungated.json());
    report.target("fsync p99: with the gate by without", Bound::AtMost(LATENCY_LEFT), p99);
    report.target("throughput of the streams: with by without", Bound::AtLeast(THROUGHPUT_LEFT), rate);
    Ok(report)
}
