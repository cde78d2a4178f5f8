//! Tables, plots and targets, beside published figures of the four forms in the kernel: 16 virtual CPUs, ext4, milliseconds
//! of the umount command.

use slackwater::UmountForm;
use slackwater_sync::rcu::Wait;

use super::{FORMS, Injected, Load, Place, Records, Scenario, Setting, name};
use crate::harness::{AtLeast, AtMost, Curve, Estimate, Marks, Plot, Report, Series, Source, Table};

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// An idle target without any load: 50th, 95th and 99th percentile, and the longest.
const NO_PRESSURE: [f64; 4] = [4.9, 5.9, 6.3, 6.7];

/// The number of unmounts that [`published_drain_ms`] sums up.
const DRAINS: f64 = 340.0;

/// The same under churn.
fn published(scenario: Scenario, form: UmountForm) -> [f64; 4] {
    match (scenario, form) {
        (Scenario::OwnWriter, UmountForm::Base) => [99.7, 112.9, 112.9, 127.2],
        (Scenario::OwnWriter, UmountForm::Race) => [110.2, 153.8, 153.8, 160.4],
        (Scenario::OwnWriter, UmountForm::RmBarrier) => [67.6, 88.3, 88.3, 96.8],
        (Scenario::OwnWriter, UmountForm::PerSb) => [7.9, 10.0, 10.0, 10.1],
        (Scenario::Quiet, UmountForm::Base) => [92.0, 123.5, 136.5, 141.3],
        (Scenario::Quiet, UmountForm::Race) => [118.8, 154.6, 164.7, 165.3],
        (Scenario::Quiet, UmountForm::RmBarrier) => [62.7, 95.4, 108.1, 108.6],
        (Scenario::Quiet, UmountForm::PerSb) => [5.3, 6.9, 7.4, 7.4],
        (Scenario::EightQuiet, UmountForm::Base) => [137.5, 166.9, 166.9, 171.3],
        (Scenario::EightQuiet, UmountForm::Race) => [162.2, 183.9, 183.9, 217.0],
        (Scenario::EightQuiet, UmountForm::RmBarrier) => [61.3, 99.5, 99.5, 113.7],
        (Scenario::EightQuiet, UmountForm::PerSb) => [8.1, 9.1, 9.1, 9.5],
    }
}

/// Milliseconds inside the drain, summed over all unmounts of all scenarios.
fn published_drain_ms(form: UmountForm) -> f64 {
    match form {
        UmountForm::Base => 21240.0,
        UmountForm::Race => 24966.0,
        UmountForm::RmBarrier => 12371.0,
        UmountForm::PerSb => 1.37,
    }
}

/// Puts everything into `report`. `dead_uses` counts, for each engine, how often a switch used a volume that was unmounted; a
/// tenant writes `blocks`.
pub(super) fn publish(records: &Records, dead_uses: &[(Setting, u64)], blocks: u64, report: &mut Report) {
    Scenario::ALL.into_iter().for_each(|scenario| report.table(scenario_table(&report.series, scenario)));
    report.table(wait_table(records));
    report.table(drain_table(records, dead_uses));
    for (place, scenario) in Place::ALL.into_iter().flat_map(|place| Scenario::ALL.map(|scenario| (place, scenario))) {
        Injected::ALL.into_iter().for_each(|injected| report.plot(plot(&report.series, place, injected, scenario)));
    }
    targets(records, dead_uses, report);
    findings(report);
    report.figure("dead_uses", dead_uses.iter().map(|(_, uses)| uses).sum::<u64>());
    report.note(
        "Injected: a wait of 12 ms before each normal grace period, about what a kernel with 250 ticks per second takes. The \
         milliseconds of the three older forms in these rows are two or three of these waits. The result is how many waits an unmount \
         makes, and in which order; the rows with 0 ms show the same code without the injected wait.",
    );
    report.note(
        "Waits are logged by the RCU layer for the thread that unmounts, whatever the form says about itself. A callback barrier waits \
         for all earlier callbacks, and so for the grace periods before them, one or two. The flush of the switch \
         queue is no RCU wait; the drain counts it. An unmount by path also waits for one expedited grace period: Namespace::umount \
         waits for lookups between the detach and the end of the volume (engine, namespace/umount.rs, step 3). The namespace \
         experiment measures that.",
    );
    report.note(format!(
        "A tenant writes {blocks} blocks of 4 KiB, each synced. Control: the same writers, each one tenant throughout. By control: \
         p50 of all unmounts divided by p50 of all under the control, 95 % intervals by a bootstrap of rounds. Idle: no writers. \
         Published: on 16 CPUs, 340 unmounts."
    ));
}

/// A quantile under churn divided by the same quantile under the control.
pub(super) fn by_control(series: &Series, setting: Setting, scenario: Scenario, share: f64) -> Option<Estimate> {
    let ms = |load: Load| series.of(&setting.umounts(scenario), load.name());
    ms(Load::Churn).quantile_by(ms(Load::Control), share)
}

fn findings(report: &mut Report) {
    let scenario = Scenario::Quiet;
    let published = FORMS.map(|form| (name(form), Some(published(scenario, form)[0])));
    let what = format!("An idle ext4 volume beside such load on 16 CPUs, p50 in ms ({} without load)", NO_PRESSURE[0]);
    report.finding(Source::Published, what, published);
    let (none, ticks) = (Injected::Nothing, Injected::ThreeTicks);
    for (injected, load) in [(none, Load::Churn), (ticks, Load::Churn), (ticks, Load::Control)] {
        let row = |form| Setting { form, place: Place::Mem, injected }.umounts(scenario);
        let p50 = FORMS.map(|form| (name(form), report.series.of(&row(form), load.name()).quantile(0.5)));
        let what = format!("An idle volume in memory, p50 in ms, {}, {}", injected.name(), load.name());
        report.finding(Source::Ours, what, p50);
    }
}

fn scenario_table(series: &Series, scenario: Scenario) -> Table {
    let columns =
        " | umounts | p50 ms | p95 | p99 | max | control p50 | by control | idle p50 | published p50 | p95 | p99 | max";
    let (letter, title) = (scenario.name(), scenario.title());
    let mut table =
        Table::new(format!("({letter}) Unmounting {title}, beside four volumes with churning tenants"), columns);
    for setting in Setting::all() {
        let ms = |load: Load| series.of(&setting.umounts(scenario), load.name());
        let churn = ms(Load::Churn);
        if churn.count() != 0 {
            let row = table.row(setting.name()).text(churn.count()).figures(churn.quantiles(QUANTILES));
            let row = row.figure(ms(Load::Control).quantile(0.5)).estimate(by_control(series, setting, scenario, 0.5));
            row.figure(ms(Load::Idle).quantile(0.5)).figures(published(scenario, setting.form));
        }
    }
    if scenario == Scenario::Quiet {
        table.row("no load").skip(8).figures(NO_PRESSURE);
    }
    table
}

/// The waits of the unmounting thread.
fn wait_table(records: &Records) -> Table {
    let columns = " | umounts | normal grace periods | expedited | callback barriers | <in this order, with the share of unmounts";
    let title = "Per unmount, under churn, A to C together: waits logged by the RCU layer";
    let mut table = Table::new(title, columns);
    for setting in Setting::all() {
        let costs = records.costs(setting, Load::Churn);
        let umounts: u64 = costs.orders.values().sum();
        if umounts == 0 {
            continue;
        }
        let mut orders: Vec<_> = costs.orders.iter().collect();
        orders.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let order = |(order, count): (&Vec<Wait>, &u64)| {
            format!("{} {:.0} %", order_text(order), 100.0 * *count as f64 / umounts as f64)
        };
        let per_umount = |kind| costs.rcu_waits(kind) as f64 / umounts as f64;
        let row = table.row(setting.name()).text(umounts);
        let row = row.figures([Wait::Normal, Wait::Expedited, Wait::Barrier].map(per_umount));
        row.text(orders.into_iter().map(order).collect::<Vec<_>>().join("; "));
    }
    table
}

fn order_text(order: &[Wait]) -> String {
    let name = |wait: &Wait| match wait {
        Wait::Normal => "normal",
        Wait::Expedited => "expedited",
        Wait::Barrier => "barrier",
    };
    if order.is_empty() { "none".to_owned() } else { order.iter().map(name).collect::<Vec<_>>().join(" + ") }
}

fn drain_table(records: &Records, dead_uses: &[(Setting, u64)]) -> Table {
    let columns =
        " | umounts | flushes | own in flight | total ms | us per call | published us | busy inodes | dead uses";
    let mut table = Table::new("Inside the drain, under churn, A to C together; flushes are per unmount", columns);
    for setting in Setting::all() {
        let costs = records.costs(setting, Load::Churn);
        let per_call = |count: f64| count / costs.drains.max(1) as f64;
        let total_ms = costs.time.as_secs_f64() * 1e3;
        // The other forms do not look.
        let own = (setting.form == UmountForm::PerSb).then(|| per_call(costs.waits as f64));
        let dead: u64 = dead_uses.iter().filter(|(other, _)| *other == setting).map(|(_, uses)| uses).sum();
        let row = table.row(setting.name()).text(costs.drains).figure(per_call(costs.flushes as f64)).figure(own);
        let row = row.figure(total_ms).figure(per_call(total_ms * 1e3));
        row.figure(published_drain_ms(setting.form) * 1e3 / DRAINS).text(costs.busy).text(dead);
    }
    table
}

fn plot(series: &Series, place: Place, injected: Injected, scenario: Scenario) -> Plot {
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    for (color, form) in FORMS.into_iter().enumerate() {
        let row = Setting { form, place, injected }.umounts(scenario);
        let ms = |load: Load| series.of(&row, load.name()).all();
        curves.push(Curve::new(name(form), color, ms(Load::Churn)));
        if form == UmountForm::PerSb {
            curves.push(Curve::dim("per_sb, control", ms(Load::Control)));
        }
        marks.push(Marks { color, points: QUANTILES.into_iter().zip(published(scenario, form)).collect() });
    }
    let title = format!("({}) {}: {}, {}", scenario.name(), scenario.title(), place.name(), injected.name());
    curves.retain(|curve| !curve.is_empty());
    Plot { title, axis: "milliseconds of an unmount; rings: published", curves, marks }
}

fn targets(records: &Records, dead_uses: &[(Setting, u64)], report: &mut Report) {
    let exactly = |value: u64| Estimate::exactly(value as f64);
    for setting in Setting::all().into_iter().filter(|setting| setting.form == UmountForm::PerSb) {
        for (scenario, share, quantile, bound) in [
            (Scenario::Quiet, 0.5, "p50", 1.2),
            (Scenario::Quiet, 0.95, "p95", 1.5),
            (Scenario::OwnWriter, 0.5, "p50", 2.0),
        ] {
            let title = format!("{}: {} {quantile} by the control", setting.name(), scenario.name());
            report.target(title, AtMost(bound), by_control(&report.series, setting, scenario, share));
        }
        let drain_us = report.series.estimate(&setting.drains(Scenario::Quiet), Load::Churn.name());
        report.target(format!("{}: B us in the drain, nothing in flight", setting.name()), AtMost(1.0), drain_us);
        let waits = records.costs(setting, Load::Churn).all_rcu_waits();
        let title = format!("{}: grace periods and barriers, as the RCU layer logs them", setting.name());
        report.target(title, AtMost(0.0), exactly(waits));
    }
    for form in FORMS {
        report.target(format!("{}: unmounts", name(form)), AtLeast(400.0), exactly(records.umounts(form)));
        if form != UmountForm::Base {
            let uses = dead_uses.iter().filter(|(setting, _)| setting.form == form).map(|(_, uses)| uses).sum();
            report.target(format!("{}: uses of a dead volume", name(form)), AtMost(0.0), exactly(uses));
        }
    }
}
