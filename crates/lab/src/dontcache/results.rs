//! Tables, plots and targets.

use slackwater_host::size;

use super::running::{FAIRNESS, FIRST, GROWTH, KICKS, LATENCY, OTHER, PEAK, RATE};
use super::{Cell, Job, Place, Subject};
use crate::harness::{AtLeast, AtMost, Bound, Curve, Estimate, Marks, Plot, Report, Samples, Series, Source, Table};

/// Figures published of the kernel before its change (with [`Subject::Inline`]) and after it (with [`Subject::Kick`]): NVMe,
/// XFS, 251 GiB of memory. MB/s, p99 and p99.9 in us, and peak of dirty data in MB, as far as published.
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

fn of<'s>(series: &'s Series, cell: Cell, figure: &str) -> &'s Samples {
    series.of(&cell.row(figure), cell.subject.name())
}

/// Puts everything into `report`.
pub(super) fn publish(scale_bytes: u64, report: &mut Report) {
    for (job, place) in Job::ALL.into_iter().flat_map(|job| Place::ALL.map(|place| (job, place))) {
        report.table(table(job, place, scale_bytes, &report.series));
        if !report
            .series
            .of(&Cell { job, place, subject: Subject::Kick }.row(RATE), Subject::Kick.name())
            .all()
            .is_empty()
        {
            report.plot(plot(job, place, &report.series));
        }
    }
    report.table(pace_table(&report.series));
    report.table(competing_table(&report.series));
    targets(report);
    findings(report);
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
    let kernel = Cell { job: Job::FourWriters, place: Place::Disk, subject: Subject::KernelDontcache };
    if of(&report.series, kernel, RATE).count() == 0 {
        report.note("The file system of --dir does not support RWF_DONTCACHE: nothing to compare with.");
    }
}

/// The throughput of four writers.
fn findings(report: &mut Report) {
    let ours = [Subject::Inline, Subject::Kick, Subject::Buffered];
    let kernel = [Subject::KernelDontcache, Subject::KernelBuffered, Subject::KernelDirect];
    let (job, place) = (Job::FourWriters, Place::Disk);
    let published = ours.map(|subject| (subject.name(), published(job, subject)[0]));
    report.finding(Source::Published, "Four writers of 1 MiB on 251 GiB and NVMe, MB/s", published);
    for (source, subjects) in [(Source::Kernel, kernel), (Source::Ours, ours)] {
        let rate = |subject: Subject| of(&report.series, Cell { job, place, subject }, RATE).median();
        let rates = subjects.map(|subject| (subject.name(), rate(subject)));
        report.finding(source, "Four writers of 1 MiB, MB/s", rates);
    }
}

fn table(job: Job, place: Place, scale_bytes: u64, series: &Series) -> Table {
    let columns = " | MB/s | p50 us | p99 | p99.9 | most dirty MB | growth MB | kicks per pass | published MB/s | p99 | p99.9 | most dirty";
    let shape = Cell { job, place, subject: Subject::Kick }.shape(scale_bytes);
    let title = format!(
        "{}, {}: {} x {}, {} of {} at once",
        job.name(),
        place.name(),
        shape.files,
        size::text(shape.file_bytes),
        shape.files * shape.threads_per_file,
        size::text(shape.block_bytes as u64)
    );
    let mut table = Table::new(title, columns);
    for cell in Cell::of(job).into_iter().filter(|cell| cell.place == place) {
        let row = table.row(cell.subject.name());
        if of(series, cell, RATE).count() == 0 {
            row.text("not on this file system");
            continue;
        }
        let latency = |share| of(series, cell, LATENCY).of_rounds(share).median();
        let median = |figure| of(series, cell, figure).median();
        let row = row.figure(median(RATE)).figures([0.5, 0.99, 0.999].map(latency)).figures([PEAK, GROWTH].map(median));
        let row = row.figure(median(KICKS).filter(|_| cell.subject == Subject::Kick));
        row.figures(published(job, cell.subject).map(|value| value.filter(|_| place == Place::Disk)));
    }
    table
}

/// The many files with and without a pace, side by side.
fn pace_table(series: &Series) -> Table {
    let columns = " | unpaced MB/s | most dirty MB | p99 us | paced MB/s | most dirty MB | p99 us";
    let mut table = Table::new("32 files of 64 KiB blocks, unpaced beside paced to 1 GB/s", columns);
    for cell in Cell::of(Job::ManyFiles).into_iter().filter(|cell| cell.place == Place::Paced) {
        if of(series, cell, RATE).count() != 0 {
            let figures = |place| {
                let cell = Cell { place, ..cell };
                let p99 = of(series, cell, LATENCY).of_rounds(0.99).median();
                [of(series, cell, RATE).median(), of(series, cell, PEAK).median(), p99]
            };
            table.row(cell.subject.name()).figures(figures(Place::Disk)).figures(figures(Place::Paced));
        }
    }
    table
}

fn competing_table(series: &Series) -> Table {
    let columns = " | buffered MB/s | the other | slower by faster | published buffered | the other";
    let mut table = Table::new("A buffered writer and a second writer, until one of them ends", columns);
    for cell in Cell::of(Job::Competing) {
        let figures = [FIRST, OTHER, FAIRNESS].map(|figure| of(series, cell, figure).median());
        table.row(cell.subject.name()).figures(figures).figures(published_competing(cell.subject));
    }
    table
}

fn plot(job: Job, place: Place, series: &Series) -> Plot {
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    let subjects = [Subject::Inline, Subject::KernelDontcache, Subject::Buffered, Subject::Kick];
    for (color, subject) in subjects.into_iter().enumerate() {
        curves.push(Curve::new(subject.name(), color, of(series, Cell { job, place, subject }, LATENCY).all()));
        let [_, p99, p999, _] = published(job, subject).map(|value| value.filter(|_| place == Place::Disk));
        let points = [(0.99, p99), (0.999, p999)].into_iter().filter_map(|(share, value)| Some((share, value?)));
        marks.push(Marks { color, points: points.collect() });
    }
    curves.retain(|curve| !curve.is_empty());
    let title = format!("{}, {}", job.name(), place.name());
    Plot { title, axis: "microseconds of a write; rings: published", curves, marks }
}

fn targets(report: &mut Report) {
    let four = Job::FourWriters;
    let disk = |job, subject| Cell { job, place: Place::Disk, subject };
    let [kick, kernel] = [Subject::Kick, Subject::KernelDontcache].map(|subject| disk(four, subject));
    let slow = |subject| Cell { job: four, place: Place::Slow, subject };
    let many = |subject| Cell { job: Job::ManyFiles, place: Place::Paced, subject };
    let mut add = |title: String, bound: Bound, reached: &dyn Fn(&Series) -> Option<Estimate>| {
        let reached = reached(&report.series);
        report.target(title, bound, reached);
    };
    add("four writers: kick by buffered, MB/s".to_owned(), AtLeast(0.95), &|series| {
        of(series, kick, RATE).by(of(series, disk(four, Subject::Buffered), RATE))
    });
    for (share, name) in [(0.99, "p99"), (0.999, "p99.9")] {
        add(format!("four writers: kick by the kernel's RWF_DONTCACHE, {name}"), AtMost(1.0), &|series| {
            of(series, kick, LATENCY).by_rounds(of(series, kernel, LATENCY), share)
        });
        add(format!("four writers, slow: inline by kick, {name}"), AtLeast(10.0), &|series| {
            let [inline, kick] = [Subject::Inline, Subject::Kick].map(|subject| of(series, slow(subject), LATENCY));
            inline.by_rounds(kick, share)
        });
    }
    add("four writers: kicks per pass".to_owned(), AtLeast(24.0), &|series| of(series, kick, KICKS).estimate());
    add("32 files, paced: kick by buffered, most dirty".to_owned(), AtMost(0.25), &|series| {
        of(series, many(Subject::Kick), PEAK).by(of(series, many(Subject::Buffered), PEAK))
    });
    for job in [Job::Sequential, Job::Random, four, Job::ManyFiles] {
        add(format!("{}: growth of the cache, MB", job.name()), AtMost(16.8), &|series| {
            of(series, disk(job, Subject::Kick), GROWTH).estimate()
        });
    }
    add("competing, buffered and kick: slower by faster".to_owned(), AtLeast(0.9), &|series| {
        of(series, disk(Job::Competing, Subject::Kick), FAIRNESS).estimate()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_subject_has_no_ratio() {
        let cell = |subject| Cell { job: Job::Random, place: Place::Disk, subject };
        let mut series = Series::default();
        for (subject, rate) in [(Subject::Kick, 4.0), (Subject::Buffered, 2.0)] {
            series.add(&cell(subject).row(RATE), subject.name(), rate);
            series.add_round(&cell(subject).row(LATENCY), subject.name(), (1..=1000).map(f64::from).collect());
        }
        let ratio = |other| {
            let [top, bottom] = [Subject::Kick, other].map(|subject| of(&series, cell(subject), RATE));
            top.by(bottom).map(|ratio| ratio.value)
        };
        assert_eq!((ratio(Subject::Buffered), ratio(Subject::KernelDontcache)), (Some(2.0), None));
        let table = table(Job::Random, Place::Disk, 64 << 20, &series).to_string();
        assert!(table.contains("500  990    999") && table.contains("not on this file system"), "{table}");
    }
}
