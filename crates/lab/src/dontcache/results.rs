//! Tables, plots and targets from the records.

use super::jobs::Job;
use super::published;
use super::records::{Figure, Records};
use super::site::{Cell, Place, Subject};
use crate::plot::{Curve, Marks, Plot};
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::statistics::median_estimate;
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Least of what ordinary writes reach.
const OF_BUFFERED: f64 = 0.95;
/// What the kernel does: least of its throughput, most of its tail.
const OF_KERNEL: f64 = 1.0;
/// Least that the inline form's tail is longer.
const TAIL: f64 = 10.0;
/// Most of what ordinary writes leave dirty.
const PEAK: f64 = 0.25;
/// Most that is left in the cache, in MB.
const GROWTH_MB: f64 = 16.8;
/// Least of the slower of two that compete.
const FAIR: f64 = 0.9;
/// Least writes that share a pass.
const KICKS: f64 = 24.0;

/// Puts everything into `report`.
pub(super) fn report(jobs: &[Job], scale_bytes: u64, records: &Records, report: &mut Report) {
    for job in jobs {
        for place in Place::ALL {
            if records.cells().iter().any(|cell| (cell.job, cell.place) == (*job, place)) {
                report.table(table(*job, place, scale_bytes, records));
                report.plot(plot(*job, place, records));
            }
        }
        if *job == Job::Competing {
            report.table(competing_table(records));
        }
    }
    targets(records).into_iter().for_each(|target| report.target(target));
    let of = |subject| published::of(Job::FourWriters, subject).mb_per_s;
    report.finding(
        Source::Published,
        speeds([Subject::Inline, Subject::Kick, Subject::Buffered], of, " on 251 GiB and NVMe"),
    );
    let of = |subject| {
        let cell = Cell { job: Job::FourWriters, place: Place::Disk, subject };
        records.median_of(cell, |outcome| outcome.mb_per_s)
    };
    let kernel = [Subject::KernelDontcache, Subject::KernelBuffered, Subject::KernelDirect];
    for (source, subjects) in
        [(Source::Kernel, kernel), (Source::Ours, [Subject::Inline, Subject::Kick, Subject::Buffered])]
    {
        if subjects.iter().any(|subject| of(*subject).is_some()) {
            report.finding(source, speeds(subjects, of, ""));
        }
    }
    report.note("On the slow backend each writer rests for 1 ms after each write, and paced for 2 ms, so MB/s say little there.");
    report.note("Medians of the rounds. Dirty: not under write-back yet. Growth: of the cache, when all is clean; of the kernel's");
    report.note("by /proc/meminfo, which others change too. A p99.9 of fewer than 1000 writes is the longest of them. Published: the");
    report.note(
        "kernel before (inline) and after (kick) its change, with 251 GiB of memory on NVMe; buffered as beside it.",
    );
}

/// What four writers reach, in a sentence.
fn speeds(subjects: [Subject; 3], mb_per_s: impl Fn(Subject) -> Option<f64>, where_: &str) -> String {
    let one = |subject: Subject| Some(format!("{} {}", subject.name(), figure(mb_per_s(subject)?)));
    let all: Vec<String> = subjects.into_iter().filter_map(one).collect();
    format!("Four writers of 1 MiB{where_}, MB/s: {}.", all.join("; "))
}

fn cells(job: Job, place: Place, records: &Records) -> Vec<Cell> {
    records.cells().into_iter().filter(|cell| (cell.job, cell.place) == (job, place)).collect()
}

fn table(job: Job, place: Place, scale_bytes: u64, records: &Records) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("MB/s"),
        right("p50 us"),
        right("p99"),
        right("p99.9"),
        right("most dirty MB"),
        right("growth MB"),
        right("kicks per pass"),
        right("published MB/s"),
        right("p99"),
        right("p99.9"),
        right("most dirty"),
    ];
    let shape = Cell { job, place, subject: Subject::Kick }.shape(scale_bytes);
    let title = format!(
        "{}, {}: {} x {}, {} of {} at once",
        job.name(),
        place.name(),
        shape.files,
        slackwater_size::text(shape.file_bytes),
        shape.files * shape.threads_per_file,
        slackwater_size::text(shape.block_bytes as u64)
    );
    let mut table = Table::new(title, &columns);
    for cell in cells(job, place, records) {
        let mut row = vec![cell.subject.name().to_owned()];
        if records.of(cell, Figure::MbPerS).is_empty() {
            row.push("not on this file system".to_owned());
            table.row(row);
            continue;
        }
        let figures = [
            Figure::MbPerS,
            Figure::P50Us,
            Figure::P99Us,
            Figure::P999Us,
            Figure::PeakDirtyMb,
            Figure::CacheGrowthMb,
            Figure::KicksPerPass,
        ];
        let kicks = |of| of != Figure::KicksPerPass || cell.subject == Subject::Kick;
        let text = |of| {
            records.median_of(cell, |outcome| outcome.of(of)).filter(|_| kicks(of)).map_or_else(String::new, figure)
        };
        row.extend(figures.map(text));
        let published = published::of(job, cell.subject);
        let published = [published.mb_per_s, published.p99_us, published.p999_us, published.peak_dirty_mb];
        row.extend(published.map(|value| value.filter(|_| place == Place::Disk).map_or_else(String::new, figure)));
        table.row(row);
    }
    table
}

fn competing_table(records: &Records) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("ordinary MB/s"),
        right("the other"),
        right("slower by faster"),
        right("published ordinary"),
        right("the other"),
    ];
    let mut table = Table::new("An ordinary writer and another one, until one of them ends", &columns);
    for cell in cells(Job::Competing, Place::Disk, records) {
        let first = records.median_of(cell, |outcome| outcome.first_mb_per_s);
        let other = records.median_of(cell, |outcome| outcome.mb_per_s - outcome.first_mb_per_s);
        let fairness = records.median_of(cell, |outcome| outcome.of(Figure::Fairness));
        let published = published::competing(cell.subject);
        let values = [first, other, fairness, published.map(|pair| pair.0), published.map(|pair| pair.1)];
        let mut row = vec![cell.subject.name().to_owned()];
        row.extend(values.map(|value| value.map_or_else(String::new, figure)));
        table.row(row);
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
        let published = published::of(job, subject);
        let points: Vec<_> = [(0.99, published.p99_us), (0.999, published.p999_us)]
            .into_iter()
            .filter_map(|(share, value)| Some((share, value?)))
            .collect();
        if place == Place::Disk && !points.is_empty() {
            marks.push(Marks { color, points });
        }
    }
    let title = format!("{}, {}", job.name(), place.name());
    Plot { title, axis: "microseconds of a write; rings: published", curves, marks }
}

fn targets(records: &Records) -> Vec<Target> {
    let disk = |job, subject| Cell { job, place: Place::Disk, subject };
    let slow = |job, subject| Cell { job, place: Place::Slow, subject };
    let four = Job::FourWriters;
    let mut targets = Vec::new();
    let mut add = |name: &str, bound, reached: Option<_>| {
        targets.extend(reached.map(|reached| Target::new(name, bound, reached)));
    };
    let by = |top, bottom, of| records.ratio(top, bottom, of);
    let estimate =
        |cell, of| Some(records.of(cell, of)).filter(|samples| !samples.is_empty()).map(|all| median_estimate(&all));

    let kick = disk(four, Subject::Kick);
    let speed = by(kick, disk(four, Subject::Buffered), Figure::MbPerS);
    add("four writers: kick by buffered, MB/s", Bound::AtLeast(OF_BUFFERED), speed);
    for (of, name) in [(Figure::P99Us, "p99"), (Figure::P999Us, "p99.9")] {
        let tail = by(kick, disk(four, Subject::KernelDontcache), of);
        add(&format!("four writers: kick by the kernel's RWF_DONTCACHE, {name}"), Bound::AtMost(OF_KERNEL), tail);
        let tail = by(slow(four, Subject::Inline), slow(four, Subject::Kick), of);
        add(&format!("four writers, slow: inline by kick, {name}"), Bound::AtLeast(TAIL), tail);
    }
    add("four writers: kicks per pass", Bound::AtLeast(KICKS), estimate(kick, Figure::KicksPerPass));
    let many = |subject| Cell { job: Job::ManyFiles, place: Place::Paced, subject };
    let peak = by(many(Subject::Kick), many(Subject::Buffered), Figure::PeakDirtyMb);
    add("32 files, paced: kick by buffered, most dirty", Bound::AtMost(PEAK), peak);
    for job in [Job::Sequential, Job::Random, four, Job::ManyFiles] {
        let growth = estimate(disk(job, Subject::Kick), Figure::CacheGrowthMb);
        add(&format!("{}: growth of the cache, MB", job.name()), Bound::AtMost(GROWTH_MB), growth);
    }
    let fair = estimate(disk(Job::Competing, Subject::Kick), Figure::Fairness);
    add("competing, buffered and kick: slower by faster", Bound::AtLeast(FAIR), fair);
    targets
}
