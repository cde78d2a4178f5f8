//! `gate`: how long a tenant's fsync takes beside others' streams on the same disk.
//!
//! Two engines that differ in [`Tunables::gate`](slackwater::Tunables::gate) alone take turns. In each, four
//! tenants overwrite their files as fast as the cache takes it, so that background write-back never ends,
//! and a fifth writes 64 KiB and syncs, again and again.

mod streams;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use self::streams::{Latencies, Seen, Tenants};
use crate::options::PageOptions;
use crate::plot::{Curve, Plot};
use crate::quantity::{figure, mb_per_s};
use crate::report::{Report, Source};
use crate::rounds;
use crate::samples::of_histogram;
use crate::scratch::Scratch;
use crate::statistics::{median, median_estimate, ratios};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Most of the ungated 99th percentile that is left with the gate.
const LATENCY_LEFT: f64 = 1.0 / 3.0;
/// Least of the streams' throughput that is left with it.
const THROUGHPUT_LEFT: f64 = 0.9;
/// Between two syncs, unless told otherwise.
const PAUSE_MS: u64 = 5;
/// Time for the streams to fill their shares.
const WARM_UP: Duration = Duration::from_millis(700);

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Pause between two syncs
    #[arg(long, value_name = "MS", default_value_t = PAUSE_MS)]
    pause_ms: u64,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

impl Arguments {
    /// Without any of its own.
    pub(crate) fn usual(page: PageOptions) -> Self {
        Self { pause_ms: PAUSE_MS, page }
    }
}

/// What is kept of all rounds with one setting of the gate.
struct Side {
    name: &'static str,
    all: Latencies,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    max_us: Vec<f64>,
    mb_per_s: Vec<f64>,
}

impl Side {
    fn new(name: &'static str) -> Result<Self> {
        let all = Latencies::new()?;
        let (p50_us, p99_us, max_us, mb_per_s) = Default::default();
        Ok(Self { name, all, p50_us, p99_us, max_us, mb_per_s })
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

    fn row(&self) -> [String; 7] {
        let whole = |quantile| figure(self.all.whole.value_at_quantile(quantile) as f64 / 1e6);
        let write = figure(self.all.write.value_at_quantile(0.99) as f64 / 1e6);
        let (count, rate) = (self.all.whole.len().to_string(), figure(median(&self.mb_per_s)));
        [self.name.to_owned(), count, whole(0.5), whole(0.99), whole(1.0), write, rate]
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "syncs": self.all.whole.len(), "p50_us": self.p50_us, "p99_us": self.p99_us, "max_us": self.max_us,
            "stream_mb_per_s": self.mb_per_s,
        })
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<Report> {
    let options = &arguments.page.options;
    let (time, pause) = (Duration::from_millis(options.pick(4000, 1500)), Duration::from_millis(arguments.pause_ms));
    let home = Scratch::in_folder(&options.dir)?;
    let mut tenants = [Tenants::new(home.path(), true)?, Tenants::new(home.path(), false)?];
    let mut report = Report::new("gate", Some(&options.dir), options.seed, Some(options.rounds()));
    let mut sides = [Side::new("with the gate")?, Side::new("without")?];
    rounds::run("gate", options.rounds(), 2, |_, turn| {
        let seen = tenants[turn].observe(WARM_UP, time, pause)?;
        sides[turn].add(&seen)
    })?;

    report.about(
        "How long an fsync takes beside four tenants that overwrite their files on the same disk, with the gate that holds their \
         write-back while a sync is in flight, and without.",
    );
    let [gated, ungated] = &sides;
    let p50_and_p99 = |side: &Side| {
        let ms = |share| figure(side.all.whole.value_at_quantile(share) as f64 / 1e6);
        format!("{} p50 {}, p99 {}, the four {} MB/s", side.name, ms(0.5), ms(0.99), figure(median(&side.mb_per_s)))
    };
    let text = format!("Write and fsync of 64 KiB in ms: {}; {}.", p50_and_p99(gated), p50_and_p99(ungated));
    report.finding(Source::Ours, text);
    let curve = |(color, side): (usize, &Side)| Curve::new(side.name, color, of_histogram(&side.all.whole, 1e6));
    let curves = [ungated, gated].into_iter().enumerate().map(curve).collect();
    let title = "Write of 64 KiB and fsync, beside four streams".to_owned();
    report.plot(Plot { title, axis: "milliseconds", curves, marks: Vec::new() });
    report.table(table(&sides));
    let p99 = median_estimate(&ratios(&gated.p99_us, &ungated.p99_us));
    let p50 = median_estimate(&ratios(&gated.p50_us, &ungated.p50_us));
    let rate = median_estimate(&ratios(&gated.mb_per_s, &ungated.mb_per_s));
    report.note(format!(
        "With the gate by without, medians of the rounds' ratios: p50 {}, p99 {},",
        p50.text(),
        p99.text()
    ));
    report.note(format!("throughput of the streams {}.", rate.text()));
    report.figure("gated", gated.json());
    report.figure("ungated", ungated.json());
    report.target(Target::new("fsync p99: with the gate by without", Bound::AtMost(LATENCY_LEFT), p99));
    report.target(Target::new("throughput of the streams: with by without", Bound::AtLeast(THROUGHPUT_LEFT), rate));
    Ok(report)
}

fn table(sides: &[Side]) -> Table {
    let columns = [
        ("", Align::Left),
        ("syncs", Align::Right),
        ("p50 ms", Align::Right),
        ("p99 ms", Align::Right),
        ("max ms", Align::Right),
        ("write p99 ms", Align::Right),
        ("streams MB/s", Align::Right),
    ];
    let mut table = Table::new("Write of 64 KiB and fsync, beside four overwriting streams; all rounds", &columns);
    sides.iter().for_each(|side| table.row(side.row()));
    table
}
