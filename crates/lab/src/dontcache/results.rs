//! Tables, plots and targets from the records.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::jobs::Job;
use super::running::{Figure, Outcome};
use super::site::{Cell, Place, Subject};
use crate::harness::samples::ratio;
use crate::harness::{Bound, Curve, Estimate, Marks, Plot, Report, Source, Table, listing, median, median_estimate};

/// Lower bound: throughput, divided by that of buffered writes.
const OF_BUFFERED: f64 = 0.95;
/// Upper bound: tail latency, divided by the kernel's.
const OF_KERNEL: f64 = 1.0;
/// Lower bound: tail latency of the inline form, divided by that of kicks.
const TAIL: f64 = 10.0;
/// Upper bound: peak of dirty data, divided by that of buffered writes.
const PEAK: f64 = 0.25;
/// Upper bound: growth of the cache.
const GROWTH_MB: f64 = 16.8;
/// Lower bound: throughput of the slower of two competing writers, divided by that of the faster.
const FAIR: f64 = 0.9;
/// Lower bound: writes that share a pass of the flusher.
const KICKS: f64 = 24.0;

/// The outcome of each round; none if the file system does not support the subject.
#[derive(Default)]
pub(super) struct Records(pub(super) BTreeMap<Cell, Vec<Outcome>>);

impl Records {
    fn of(&self, cell: Cell, figure: Figure) -> Vec<f64> {
        self.0.get(&cell).map_or_else(Vec::new, |outcomes| outcomes.iter().map(|outcome| outcome.of(figure)).collect())
    }

    fn median(&self, cell: Cell, figure: Figure) -> Option<f64> {
        Some(self.of(cell, figure)).filter(|samples| !samples.is_empty()).map(|samples| median(&samples))
    }

    fn estimate(&self, cell: Cell, figure: Figure) -> Option<Estimate> {
        Some(self.of(cell, figure)).filter(|samples| !samples.is_empty()).map(|samples| median_estimate(&samples))
    }

    /// Round by round; `None` if one of the cells has no outcomes.
    fn ratio(&self, top: Cell, bottom: Cell, figure: Figure) -> Option<Estimate> {
        ratio(&self.of(top, figure), &self.of(bottom, figure))
    }

    fn latencies_us(&self, cell: Cell) -> Vec<f64> {
        self.0.get(&cell).into_iter().flatten().flat_map(|outcome| outcome.latencies_us.iter().copied()).collect()
    }

    fn cells(&self, job: Job, place: Place) -> impl Iterator<Item = Cell> {
        self.0.keys().copied().filter(move |cell| (cell.job, cell.place) == (job, place))
    }

    /// All figures but the single latencies.
    fn json(&self) -> Value {
        let cells = self.0.iter().map(|(cell, outcomes)| {
            let mut value = json!({
                "job": cell.job.name(), "place": cell.place.name(), "subject": cell.subject.name(),
            });
            for figure in Figure::ALL {
                value[figure.name()] = outcomes.iter().map(|outcome| outcome.of(figure)).collect();
            }
            value
        });
        cells.collect()
    }
}

/// Figures published of the kernel before its change (with [`Subject::Inline`]) and after it (with [`Subject::Kick`]): NVMe,
/// XFS, 251 GiB of memory; sem. 12.4. MB/s, p99 and p99.9 in us, and peak of dirty data in MB, as far as published.
fn published(job: Job, subject: Subject) -> [Option<f64>; 4] {
    let speed = |mb_per_s| [Some(mb_per_s), None, None, None];
    match (job, subject) {
        (Job::Sequential, Subject::Inline) => [Some(298.0), Some(135_266.0), Some(8_925_479.0), None],
        (Job::Sequential, Subject::Kick) => [Some(897.0), Some(23_986.0), Some(28_443.0), None],
        (Job::Random, Subject::Inline) => speed(131.0),
        (Job::Random, Subject::Kick) => speed(236.0),
        (Job::FourWriters, Subject::Inline) => [Some(2529.0), Some(8553.0), Some(109_314.0), None],
        (Job::FourWriters, Subject::Kick) => [Some(4532.0), Some(1002.0), Some(1057.0), None],
        (Job::FourWriters, Subject::Buffered) => speed(4616.0),
        (Job::ManyFiles, Subject::Inline) => [Some(1548.0), Some(10_170.0), None, Some(1837.0)],
        (Job::ManyFiles, Subject::Kick) => [Some(3499.0), Some(602.0), None, Some(213.0)],
        (Job::Competing, Subject::Inline) => speed(1284.0),
        (Job::Competing, Subject::Kick) => speed(866.0),
        (Job::Competing, Subject::Buffered) => speed(863.0),
        _ => [None; 4],
    }
}

/// The same of two competing writers, in MB/s: the buffered one, and the other.
fn published_competing(subject: Subject) -> [Option<f64>; 2] {
    match subject {
        Subject::Inline => [Some(868.0), Some(415.0)],
        Subject::Kick => [Some(433.0), Some(433.0)],
        Subject::Buffered | Subject::KernelBuffered | Subject::KernelDontcache | Subject::KernelDirect => [None; 2],
    }
}

/// Puts everything into `report`.
pub(super) fn report(jobs: &[Job], scale_bytes: u64, records: &Records, report: &mut Report) {
    for job in jobs {
        for place in Place::ALL.into_iter().filter(|place| records.cells(*job, *place).next().is_some()) {
            report.table(table(*job, place, scale_bytes, records));
            report.plot(plot(*job, place, records));
        }
    }
    report.table(pace_table(records));
    report.table(competing_table(records));
    targets(records, report);
    findings(records, report);
    report.figure("scale_bytes", scale_bytes);
    report.figure("cells", records.json());
    report.note(
        "Medians of the rounds. Dirty: not yet under writeback. Growth: of the cache when all is clean; that of the kernel is from \
         /proc/meminfo, which other processes change too. A p99.9 of fewer than 1000 writes is the longest of them. On the slow \
         backend each writer pauses for 1 ms after each write, and when paced for 2 ms, so MB/s mean little there. Published: the \
         kernel before (inline) and after (kick) its change, with 251 GiB of memory on NVMe; buffered: measured beside it.",
    );
    report.note(
        "32 files: unpaced, kicking and buffered writers are faster than the disk and leave dirty as much as the throttle allows, so \
         their peaks differ little. An inline writer starts the writeback of each write itself and leaves little dirty at any pace. \
         Paced to 1 GB/s the disk keeps up, as it did where the figures were published; only then does the peak show what kicking \
         leaves dirty. The target is for the paced row.",
    );
    if records
        .latencies_us(Cell { job: Job::FourWriters, place: Place::Disk, subject: Subject::KernelDontcache })
        .is_empty()
        && jobs.contains(&Job::FourWriters)
    {
        report.note("The file system of --dir does not support RWF_DONTCACHE: nothing to compare with.");
    }
}

fn findings(records: &Records, report: &mut Report) {
    let ours = [Subject::Inline, Subject::Kick, Subject::Buffered];
    let kernel = [Subject::KernelDontcache, Subject::KernelBuffered, Subject::KernelDirect];
    let four = Job::FourWriters;
    let here = |subject| records.median(Cell { job: four, place: Place::Disk, subject }, Figure::MbPerS);
    report.finding(Source::Published, speeds(ours, |subject| published(four, subject)[0], " on 251 GiB and NVMe"));
    report.finding(Source::Kernel, speeds(kernel, here, ""));
    report.finding(Source::Ours, speeds(ours, here, ""));
}

/// The throughput of four writers, in a sentence.
fn speeds(subjects: [Subject; 3], mb_per_s: impl Fn(Subject) -> Option<f64>, on: &str) -> Option<String> {
    let all = listing(subjects.map(|subject| (subject.name(), mb_per_s(subject))), "; ");
    all.map(|all| format!("Four writers of 1 MiB{on}, MB/s: {all}."))
}

fn table(job: Job, place: Place, scale_bytes: u64, records: &Records) -> Table {
    const FIGURES: [Figure; 6] =
        [Figure::MbPerS, Figure::P50Us, Figure::P99Us, Figure::P999Us, Figure::PeakDirtyMb, Figure::CacheGrowthMb];
    let columns = " | MB/s | p50 us | p99 | p99.9 | most dirty MB | growth MB | kicks per pass | published MB/s | p99 | p99.9 | most dirty";
    let shape = Cell { job, place, subject: Subject::Kick }.shape(scale_bytes);
    let title = format!(
        "{}, {}: {} x {}, {} of {} at once",
        job.name(),
        place.name(),
        shape.files,
        slackwater_arena::size::text(shape.file_bytes),
        shape.files * shape.threads_per_file,
        slackwater_arena::size::text(shape.block_bytes as u64)
    );
    let mut table = Table::new(title, columns);
    for cell in records.cells(job, place) {
        let row = table.row(cell.subject.name());
        if records.of(cell, Figure::MbPerS).is_empty() {
            row.text("not on this file system");
            continue;
        }
        let kicks = records.median(cell, Figure::KicksPerPass).filter(|_| cell.subject == Subject::Kick);
        let published = published(job, cell.subject).map(|value| value.filter(|_| place == Place::Disk));
        row.figures(FIGURES.map(|figure| records.median(cell, figure))).figure(kicks).figures(published);
    }
    table
}

/// The many files with and without a pace, side by side.
fn pace_table(records: &Records) -> Table {
    let columns = " | unpaced MB/s | most dirty MB | p99 us | paced MB/s | most dirty MB | p99 us";
    let mut table = Table::new("32 files of 64 KiB blocks, unpaced beside paced to 1 GB/s", columns);
    for cell in
        records.cells(Job::ManyFiles, Place::Paced).filter(|cell| records.median(*cell, Figure::MbPerS).is_some())
    {
        let figures = [Figure::MbPerS, Figure::PeakDirtyMb, Figure::P99Us];
        let of = |place| figures.map(|figure| records.median(Cell { place, ..cell }, figure));
        table.row(cell.subject.name()).figures(of(Place::Disk)).figures(of(Place::Paced));
    }
    table
}

fn competing_table(records: &Records) -> Table {
    let columns = " | buffered MB/s | the other | slower by faster | published buffered | the other";
    let mut table = Table::new("A buffered writer and a second writer, until one of them ends", columns);
    for cell in records.cells(Job::Competing, Place::Disk) {
        let figures = [Figure::FirstMbPerS, Figure::OtherMbPerS, Figure::Fairness];
        let row = table.row(cell.subject.name()).figures(figures.map(|figure| records.median(cell, figure)));
        row.figures(published_competing(cell.subject));
    }
    table
}

fn plot(job: Job, place: Place, records: &Records) -> Plot {
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    let subjects = [Subject::Inline, Subject::KernelDontcache, Subject::Buffered, Subject::Kick];
    for (color, subject) in subjects.into_iter().enumerate() {
        let samples = records.latencies_us(Cell { job, place, subject });
        if !samples.is_empty() {
            curves.push(Curve::new(subject.name(), color, samples));
        }
        let [_, p99, p999, _] = published(job, subject);
        let points: Vec<_> = [(0.99, p99), (0.999, p999)]
            .into_iter()
            .filter_map(|(share, value)| Some((share, value.filter(|_| place == Place::Disk)?)))
            .collect();
        if !points.is_empty() {
            marks.push(Marks { color, points });
        }
    }
    let title = format!("{}, {}", job.name(), place.name());
    Plot { title, axis: "microseconds of a write; rings: published", curves, marks }
}

fn targets(records: &Records, report: &mut Report) {
    let disk = |job, subject| Cell { job, place: Place::Disk, subject };
    let slow = |job, subject| Cell { job, place: Place::Slow, subject };
    let four = Job::FourWriters;
    let kick = disk(four, Subject::Kick);
    let speed = records.ratio(kick, disk(four, Subject::Buffered), Figure::MbPerS);
    report.target("four writers: kick by buffered, MB/s", Bound::AtLeast(OF_BUFFERED), speed);
    for (figure, name) in [(Figure::P99Us, "p99"), (Figure::P999Us, "p99.9")] {
        let tail = records.ratio(kick, disk(four, Subject::KernelDontcache), figure);
        let title = format!("four writers: kick by the kernel's RWF_DONTCACHE, {name}");
        report.target(title, Bound::AtMost(OF_KERNEL), tail);
        let tail = records.ratio(slow(four, Subject::Inline), slow(four, Subject::Kick), figure);
        report.target(format!("four writers, slow: inline by kick, {name}"), Bound::AtLeast(TAIL), tail);
    }
    let kicks = records.estimate(kick, Figure::KicksPerPass);
    report.target("four writers: kicks per pass", Bound::AtLeast(KICKS), kicks);
    let many = |subject| Cell { job: Job::ManyFiles, place: Place::Paced, subject };
    let peak = records.ratio(many(Subject::Kick), many(Subject::Buffered), Figure::PeakDirtyMb);
    report.target("32 files, paced: kick by buffered, most dirty", Bound::AtMost(PEAK), peak);
    for job in [Job::Sequential, Job::Random, four, Job::ManyFiles] {
        let growth = records.estimate(disk(job, Subject::Kick), Figure::CacheGrowthMb);
        report.target(format!("{}: growth of the cache, MB", job.name()), Bound::AtMost(GROWTH_MB), growth);
    }
    let fair = records.estimate(disk(Job::Competing, Subject::Kick), Figure::Fairness);
    report.target("competing, buffered and kick: slower by faster", Bound::AtLeast(FAIR), fair);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mb_per_s: f64, first_mb_per_s: f64) -> Outcome {
        let latencies_us = (1..=1000).map(f64::from).collect();
        Outcome { mb_per_s, first_mb_per_s, latencies_us, peak_dirty_bytes: 0, cache_growth_bytes: 0, passes: 4 }
    }

    #[test]
    fn figures_are_those_of_a_run() {
        let run = outcome(90.0, 50.0);
        let figures = [Figure::P50Us, Figure::P99Us, Figure::P999Us, Figure::KicksPerPass, Figure::Fairness];
        assert_eq!(figures.map(|figure| run.of(figure)), [500.0, 990.0, 999.0, 250.0, 0.8]);
    }

    #[test]
    fn an_unsupported_subject_has_no_ratio() {
        let cell = |subject| Cell { job: Job::Random, place: Place::Disk, subject };
        let mut records = Records::default();
        records.0.insert(cell(Subject::Kick), vec![outcome(4.0, 1.0)]);
        records.0.insert(cell(Subject::KernelDontcache), Vec::new());
        records.0.insert(cell(Subject::Buffered), vec![outcome(2.0, 1.0)]);
        let ratio = |other| records.ratio(cell(Subject::Kick), cell(other), Figure::MbPerS).map(|ratio| ratio.value);
        assert_eq!((ratio(Subject::Buffered), ratio(Subject::KernelDontcache)), (Some(2.0), None));
        assert_eq!(table(Job::Random, Place::Disk, 64 << 20, &records).to_string().lines().count(), 6);
    }
}
