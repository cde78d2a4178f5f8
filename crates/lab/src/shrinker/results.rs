//! Tables, plots and targets from the records.

use slackwater::shrink::ShrinkerForm;

use super::axes::{FORMS, KERNEL, Load, Setting, name};
use super::published::{PUBLISHED, Published};
use super::records::{Records, Seen};
use crate::plot::{Curve, Plot};
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::samples::Microseconds;
use crate::statistics::median_estimate;
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

const RWSEM: &str = "rwsem";
/// Cycles with the default registry by those with the first one, at least.
const KEEPS_UP: f64 = 0.95;
/// Cycles with the first registry by those with SRCU, at least.
const SRCU_COSTS: f64 = 1.5;
/// Longest registration of a round beside scans of 50 ms: with the default at most, with the first at least.
const PROMPT_MS: f64 = 25.0;
const STALLED_MS: f64 = 40.0;
/// Cycles by those of the kernel, at least.
const BY_KERNEL: f64 = 5.0;

/// Puts everything into `report`; `settings` are what was measured.
pub(crate) fn report(records: &Records, settings: &[Setting], report: &mut Report) {
    report.table(cycle_table(records, settings));
    report.table(registration_table(records, settings));
    report.table(published_table());
    for setting in settings {
        plot(records, *setting).into_iter().for_each(|plot| report.plot(plot));
    }
    targets(records).into_iter().for_each(|target| report.target(target));
    let one = |published: &Published| Some(format!("{} {}", published.registry, figure(published.comparison?)));
    let [before, .., after] = &PUBLISHED;
    let both: Vec<String> = [before, after].into_iter().filter_map(one).collect();
    let text = format!("Nine stressors with a ramfs on 24 CPUs, cycles per s: {}.", both.join(", "));
    report.finding(Source::Published, text);
    let cycles = |load, subjects: &[&'static str]| {
        let row = Setting { workers: 1, load }.name();
        let one = |subject: &&'static str| Some(format!("{subject} {}", figure(records.per_s.median(&row, subject)?)));
        let all: Vec<String> = subjects.iter().filter_map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    if let Some(kernel) = cycles(Load::Quiet, &[KERNEL]) {
        report.finding(Source::Kernel, format!("One worker with a ramfs, cycles per s: {kernel}."));
    }
    let forms = FORMS.map(name);
    if let (Some(quiet), Some(slow)) = (cycles(Load::Quiet, &forms), cycles(Load::SlowScans, &forms)) {
        let text = format!("One worker, cycles per s: {quiet}; beside scans of 50 ms: {slow}.");
        report.finding(Source::Ours, text);
    }
}

fn subjects() -> impl Iterator<Item = &'static str> {
    FORMS.into_iter().map(name).chain([KERNEL])
}

fn quantile_cells(samples: &Microseconds) -> impl Iterator<Item = String> {
    [0.5, 0.99, 1.0].into_iter().map(|share| samples.quantile(share).map_or_else(String::new, figure))
}

fn cycle_table(records: &Records, settings: &[Setting]) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("cycles/s"),
        right("by rwsem"),
        right("mount p50 us"),
        right("p99"),
        right("max"),
        right("umount p50 us"),
        right("p99"),
        right("max"),
    ];
    let title = "Mounting a volume in memory, working in it, unmounting it; the kernel with a ramfs";
    let mut table = Table::new(title, &columns);
    for setting in settings {
        let row_name = setting.name();
        for subject in subjects() {
            let (Some(seen), Some(per_s)) = (records.of(*setting, subject), records.per_s.median(&row_name, subject))
            else {
                continue;
            };
            let ratio = || records.per_s.ratio(&row_name, subject, RWSEM).text();
            let by_rwsem = if subject == RWSEM { String::new() } else { ratio() };
            let mut row = vec![format!("{row_name}: {subject}"), figure(per_s), by_rwsem];
            row.extend(quantile_cells(&seen.mount).chain(quantile_cells(&seen.umount)));
            table.row(row);
        }
    }
    table
}

fn registration_table(records: &Records, settings: &[Setting]) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("registrations"),
        right("register p50 us"),
        right("p99"),
        right("max"),
        right("unregister p50 us"),
        right("p99"),
        right("max"),
        right("longest of a round, ms"),
    ];
    let mut table = Table::new("Registering a shrinker that has nothing, and unregistering it", &columns);
    for setting in settings {
        for subject in FORMS.map(name) {
            let Some(seen) = records.of(*setting, subject) else { continue };
            let longest = records.longest_ms.median(&setting.name(), subject).map_or_else(String::new, figure);
            let mut row = vec![format!("{}: {subject}", setting.name()), seen.register.count().to_string()];
            row.extend(quantile_cells(&seen.register).chain(quantile_cells(&seen.unregister)).chain([longest]));
            table.row(row);
        }
    }
    table
}

fn published_table() -> Table {
    let columns = [("", Align::Left), ("24 CPUs, cycles/s", Align::Right), ("32 CPUs, cycles/s", Align::Right)];
    let mut table = Table::new("Published of the kernel: nine workers, ramfs, 60 s", &columns);
    for published in PUBLISHED {
        let cell = |per_s: Option<f64>| per_s.map_or_else(String::new, figure);
        table.row([published.registry.to_owned(), cell(published.comparison), cell(published.reproduction)]);
    }
    table
}

fn plot(records: &Records, setting: Setting) -> Option<Plot> {
    let curve = |(number, form): (usize, ShrinkerForm)| {
        let seen: &Seen = records.of(setting, name(form))?;
        let samples = seen.register.all();
        (!samples.is_empty()).then(|| Curve::new(name(form), number, samples))
    };
    let curves: Vec<_> = FORMS.into_iter().enumerate().filter_map(curve).collect();
    let title = format!("Registration: {}", setting.name());
    (!curves.is_empty()).then(|| Plot { title, axis: "microseconds of a registration", curves, marks: Vec::new() })
}

fn targets(records: &Records) -> Vec<Target> {
    let [quiet, slow] = Load::ALL.map(|load| Setting { workers: 1, load }.name());
    let default = name(ShrinkerForm::default());
    let mut targets = Vec::new();
    let mut ratio_target = |title: &str, series: &crate::series::Series, (top, bottom), bound| {
        if !series.of(&quiet, top).is_empty() && !series.of(&quiet, bottom).is_empty() {
            targets.push(Target::new(title, Bound::AtLeast(bound), series.ratio(&quiet, top, bottom)));
        }
    };
    let srcu = name(ShrinkerForm::Srcu);
    ratio_target("cycles with refcount_rcu by those with rwsem, quiet", &records.per_s, (default, RWSEM), KEEPS_UP);
    ratio_target("cycles with rwsem by those with srcu, quiet", &records.per_s, (RWSEM, srcu), SRCU_COSTS);
    ratio_target("cycles by those of the kernel with a ramfs", &records.per_s, (default, KERNEL), BY_KERNEL);
    for (subject, bound) in [(default, Bound::AtMost(PROMPT_MS)), (RWSEM, Bound::AtLeast(STALLED_MS))] {
        let longest = records.longest_ms.of(&slow, subject);
        if !longest.is_empty() {
            let title = format!("{subject}: longest registration of a round beside slow scans, ms");
            targets.push(Target::new(title, bound, median_estimate(longest)));
        }
    }
    targets
}
