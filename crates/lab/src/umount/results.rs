//! Tables, plots and targets from the records.

use slackwater::UmountForm;

use super::axes::{Delay, FORMS, Load, Place, Scenario, Setting, name};
use super::kernel::Kernel;
use super::published;
use super::records::{Cell, Records};
use crate::plot::{Curve, Marks, Plot};
use crate::quantity::figure;
use crate::report::{Report, Source};
use crate::statistics::{Estimate, median_estimate, quantile};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Most by the control.
const QUIET_P50: f64 = 1.2;
const QUIET_P95: f64 = 1.5;
const OWN_WRITER_P50: f64 = 2.0;
/// Most for a drain that finds nothing of its volume in flight.
const DRAIN_US: f64 = 1.0;
/// Least unmounts of each form.
const UMOUNTS: f64 = 400.0;

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// Puts everything into `report`. `dead_uses` are those that switches made of a dead volume.
pub(crate) fn report(records: &Records, dead_uses: &[(Setting, u64)], report: &mut Report) {
    Scenario::ALL.into_iter().for_each(|scenario| report.table(scenario_table(records, scenario)));
    report.table(drain_table(records, dead_uses));
    for place in Place::ALL {
        for delay in Delay::ALL {
            Scenario::ALL.into_iter().for_each(|scenario| report.plot(plot(records, place, delay, scenario)));
        }
    }
    targets(records, dead_uses).into_iter().for_each(|target| report.target(target));
    report.finding(Source::Published, published_finding());
    report.finding(Source::Ours, our_finding(records));
}

/// The forms with their figures.
fn listed(ms: impl Fn(UmountForm) -> Option<f64>) -> String {
    let of = |form| Some(format!("{} {}", name(form), figure(ms(form)?)));
    FORMS.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

fn published_finding() -> String {
    let [quiet, ..] = published::NO_PRESSURE;
    format!(
        "An idle ext4 volume beside such load on 16 CPUs, p50 in ms: {}; {quiet} without load.",
        listed(|form| Some(published::umount(Scenario::Quiet, form)[0]))
    )
}

fn our_finding(records: &Records) -> String {
    let p50 = |form, load| {
        let setting = Setting { form, place: Place::Mem, delay: Delay::ThreeTicks };
        records.of(Cell { setting, load, scenario: Scenario::Quiet }).map(|seen| quantile(&seen.all_ms(), 0.5))
    };
    format!(
        "An idle volume in memory beside such load, grace periods of 12 ms, p50 in ms: {}; with the same writers and no \
         tenant that goes, {}.",
        listed(|form| p50(form, Load::Churn)),
        listed(|form| p50(form, Load::Control))
    )
}

/// The kernel's own figures in a sentence.
pub(crate) fn kernel_finding(kernel: &Kernel) -> String {
    let p50 = |load: Load| format!("{} {}", load.name(), figure(quantile(kernel.ms(load), 0.5)));
    format!("umount(2) of an idle ext4, p50 in ms: {} ({}).", Load::ALL.map(p50).join(", "), kernel.about)
}

fn millisecond_cells(of: [f64; 4]) -> [String; 4] {
    of.map(figure)
}

fn scenario_table(records: &Records, scenario: Scenario) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("umounts"),
        right("p50 ms"),
        right("p95"),
        right("p99"),
        right("max"),
        right("control p50"),
        right("by control"),
        right("idle p50"),
        right("published p50"),
        right("p95"),
        right("p99"),
        right("max"),
    ];
    let title =
        format!("({}) Unmounting {}, beside four volumes with churning tenants", scenario.letter(), scenario.title());
    let mut table = Table::new(title, &columns);
    for setting in Setting::all() {
        let of = |load| records.of(Cell { setting, load, scenario });
        let p50 = |load| of(load).map_or_else(String::new, |seen| figure(quantile(&seen.all_ms(), 0.5)));
        let Some(churn) = of(Load::Churn) else { continue };
        let all = churn.all_ms();
        let ratio = records.by_control(setting, scenario, 0.5).map_or_else(String::new, |ratio| ratio.text());
        let mut row = vec![setting.name(), all.len().to_string()];
        row.extend(millisecond_cells(QUANTILES.map(|share| quantile(&all, share))));
        row.extend([p50(Load::Control), ratio, p50(Load::Idle)]);
        row.extend(millisecond_cells(published::umount(scenario, setting.form)));
        table.row(row);
    }
    if scenario == Scenario::Quiet {
        let mut row = vec!["no pressure".to_owned()];
        row.extend(std::iter::repeat_n(String::new(), 8));
        row.extend(millisecond_cells(published::NO_PRESSURE));
        table.row(row);
    }
    table
}

fn drain_table(records: &Records, dead_uses: &[(Setting, u64)]) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [
        ("", Align::Left),
        right("umounts"),
        right("grace periods"),
        right("barriers"),
        right("flushes"),
        right("own in flight"),
        right("total ms"),
        right("us per call"),
        right("published us"),
        right("busy inodes"),
        right("dead uses"),
    ];
    let mut table = Table::new("Inside the drain, under churn, A to C together; waits are per unmount", &columns);
    for setting in Setting::all() {
        let (costs, busy) = records.costs(setting, Load::Churn);
        let per_call = |count: u64| figure(count as f64 / costs.drains.max(1) as f64);
        let total_ms = costs.time.as_secs_f64() * 1e3;
        // The others do not look.
        let own = if setting.form == UmountForm::PerSb { per_call(costs.waits) } else { String::new() };
        let dead: u64 = dead_uses.iter().filter(|(other, _)| *other == setting).map(|(_, uses)| uses).sum();
        table.row([
            setting.name(),
            costs.drains.to_string(),
            per_call(costs.grace_periods),
            per_call(costs.barriers),
            per_call(costs.flushes),
            own,
            figure(total_ms),
            figure(total_ms * 1e3 / costs.drains.max(1) as f64),
            figure(published::drain(setting.form) * 1e3 / published::DRAINS),
            busy.to_string(),
            dead.to_string(),
        ]);
    }
    table
}

/// The kernel's own umount(2).
pub(crate) fn kernel_table(kernel: &Kernel) -> Table {
    let right = |name| (name, Align::Right);
    let columns = [("", Align::Left), right("umounts"), right("p50 ms"), right("p95"), right("p99"), right("max")];
    let title = format!("umount(2) of an idle ext4 loop mount, {}", kernel.about);
    let mut table = Table::new(title, &columns);
    for load in Load::ALL {
        let all = kernel.ms(load);
        let mut row = vec![load.name().to_owned(), all.len().to_string()];
        row.extend(millisecond_cells(QUANTILES.map(|share| quantile(all, share))));
        table.row(row);
    }
    table
}

fn plot(records: &Records, place: Place, delay: Delay, scenario: Scenario) -> Plot {
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    for (number, form) in FORMS.into_iter().enumerate() {
        let setting = Setting { form, place, delay };
        let cell = |load| records.of(Cell { setting, load, scenario });
        curves.extend(cell(Load::Churn).map(|seen| Curve::new(name(form), number, seen.all_ms())));
        let values = published::umount(scenario, form);
        marks.push(Marks { color: number, points: QUANTILES.into_iter().zip(values).collect() });
        if form == UmountForm::PerSb {
            curves.extend(cell(Load::Control).map(|seen| Curve::dim("per_sb, control", seen.all_ms())));
        }
    }
    let title = format!(
        "({}) {}: backend {}, grace periods {}",
        scenario.letter(),
        scenario.title(),
        place.name(),
        delay.name()
    );
    Plot { title, axis: "milliseconds of an unmount; rings: published", curves, marks }
}

fn targets(records: &Records, dead_uses: &[(Setting, u64)]) -> Vec<Target> {
    // A count is what it is.
    let exactly = |value: u64| Estimate { value: value as f64, low: value as f64, high: value as f64 };
    let mut targets = Vec::new();
    let right = Setting::all().into_iter().filter(|setting| setting.form == UmountForm::PerSb);
    for setting in right {
        let by_control = [
            (Scenario::Quiet, 0.5, "p50", QUIET_P50),
            (Scenario::Quiet, 0.95, "p95", QUIET_P95),
            (Scenario::OwnWriter, 0.5, "p50", OWN_WRITER_P50),
        ];
        for (scenario, share, quantile, bound) in by_control {
            let ratio = records.by_control(setting, scenario, share);
            let title = format!("{}: {} {quantile} by the control", setting.name(), scenario.letter());
            targets.extend(ratio.map(|ratio| Target::new(title, Bound::AtMost(bound), ratio)));
        }
        let quiet = records.of(Cell { setting, load: Load::Churn, scenario: Scenario::Quiet });
        let drain_us = quiet.filter(|seen| !seen.drain_us.is_empty()).map(|seen| median_estimate(&seen.drain_us));
        let title = format!("{}: B us in the drain, nothing in flight", setting.name());
        targets.extend(drain_us.map(|us| Target::new(title, Bound::AtMost(DRAIN_US), us)));
        let (costs, _) = records.costs(setting, Load::Churn);
        for (what, count) in
            [("grace periods", costs.grace_periods), ("barriers", costs.barriers), ("flushes", costs.flushes)]
        {
            let title = format!("{}: {what} waited for", setting.name());
            targets.push(Target::new(title, Bound::AtMost(0.0), exactly(count)));
        }
    }
    for form in FORMS {
        let title = format!("{}: unmounts", name(form));
        targets.push(Target::new(title, Bound::AtLeast(UMOUNTS), exactly(records.umounts(form))));
        if form != UmountForm::Base {
            let title = format!("{}: uses of a dead volume", name(form));
            let uses = dead_uses.iter().filter(|(setting, _)| setting.form == form).map(|(_, uses)| uses).sum();
            targets.push(Target::new(title, Bound::AtMost(0.0), exactly(uses)));
        }
    }
    targets
}
