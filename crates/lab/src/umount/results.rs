//! Tables, plots and targets from the records.

use slackwater::UmountForm;
use slackwater_sync::rcu::Wait;

use super::axes::{Cell, FORMS, Injected, Load, Place, Scenario, Setting, name};
use super::kernel::Kernel;
use super::target::Costs;
use super::{Records, published};
use crate::harness::{Bound, Curve, Estimate, Marks, Plot, Report, Source, Table, listing};

/// Upper bounds: quantiles under churn, divided by those under the control.
const QUIET_P50: f64 = 1.2;
const QUIET_P95: f64 = 1.5;
const OWN_WRITER_P50: f64 = 2.0;
/// Upper bound: a drain that finds nothing of its volume in flight.
const DRAIN_US: f64 = 1.0;
/// Lower bound: unmounts of each form.
const UMOUNTS: f64 = 400.0;

const QUANTILES: [f64; 4] = [0.5, 0.95, 0.99, 1.0];

/// Puts everything into `report`. `dead_uses` counts, for each engine, how often a switch used a volume that was unmounted.
pub(super) fn report(records: &Records, dead_uses: &[(Setting, u64)], report: &mut Report) {
    Scenario::ALL.into_iter().for_each(|scenario| report.table(scenario_table(records, scenario)));
    report.table(wait_table(records));
    report.table(drain_table(records, dead_uses));
    for (place, scenario) in Place::ALL.into_iter().flat_map(|place| Scenario::ALL.map(|scenario| (place, scenario))) {
        Injected::ALL.into_iter().for_each(|injected| report.plot(plot(records, place, injected, scenario)));
    }
    targets(records, dead_uses, report);
    report.finding(Source::Published, published_finding());
    report.finding(Source::Ours, our_finding(records));
    report.figure("umounts", json(records));
    report.figure("dead_uses", dead_uses.iter().map(|(_, uses)| uses).sum::<u64>());
}

/// Explains the columns; a tenant writes `blocks`.
pub(super) fn notes(blocks: u64, report: &mut Report) {
    report.note(
        "Injected: a wait of 12 ms before each normal grace period, about what a kernel with 250 ticks per second takes. The \
         milliseconds of the three older forms in these rows are two or three of these waits. The result is how many waits an unmount \
         makes, and in which order; the rows with 0 ms show the same code without the injected wait.",
    );
    report.note(
        "Waits are logged by the RCU layer for the thread that unmounts, whatever the form says about itself. A callback barrier waits \
         for all earlier callbacks, and so for the grace periods before them, one or two. The flush of the switch \
         queue is no RCU wait; the drain counts it. An unmount without waits here still pays for one expedited grace period in the \
         daemon: there volumes have paths, and Namespace::umount waits for lookups between the detach and the end of the volume \
         (engine, namespace/umount.rs, step 3). The namespace experiment measures that.",
    );
    report.note(format!(
        "A tenant writes {blocks} blocks of 4 KiB, each synced. Control: the same writers, each one tenant throughout. By control: \
         p50 of all unmounts divided by p50 of all under the control, 95 % intervals by a bootstrap of rounds. Idle: no writers. \
         Published: on 16 CPUs, 340 unmounts."
    ));
}

/// Unmounts of engines with `form`.
pub(super) fn umounts(records: &Records, form: UmountForm) -> u64 {
    records.iter().filter(|(cell, _)| cell.setting.form == form).map(|(_, seen)| seen.costs.drains).sum()
}

/// The costs of all scenarios together.
pub(super) fn costs(records: &Records, setting: Setting, load: Load) -> Costs {
    let mut costs = Costs::default();
    let cells = Scenario::ALL.map(|scenario| Cell { setting, load, scenario });
    cells.iter().filter_map(|cell| records.of(cell)).for_each(|seen| costs.add(&seen.costs));
    costs
}

/// A quantile under churn divided by the same quantile under the control.
pub(super) fn by_control(records: &Records, setting: Setting, scenario: Scenario, share: f64) -> Option<Estimate> {
    let ms = |load| Some(&records.of(&Cell { setting, load, scenario })?.ms);
    ms(Load::Churn)?.quantile_by(ms(Load::Control)?, share)
}

fn p50(records: &Records, cell: Cell) -> Option<f64> {
    records.of(&cell)?.ms.quantile(0.5)
}

/// The forms with their figures.
fn listed(ms: impl Fn(UmountForm) -> Option<f64>) -> String {
    listing(FORMS.map(|form| (name(form), ms(form))), ", ").unwrap_or_default()
}

fn published_finding() -> String {
    let [quiet, ..] = published::NO_PRESSURE;
    let p50 = listed(|form| Some(published::umount(Scenario::Quiet, form)[0]));
    format!("An idle ext4 volume beside such load on 16 CPUs, p50 in ms: {p50}; {quiet} without load.")
}

fn our_finding(records: &Records) -> String {
    let scenario = Scenario::Quiet;
    let all = |injected, load| {
        listed(|form| p50(records, Cell { setting: Setting { form, place: Place::Mem, injected }, load, scenario }))
    };
    format!(
        "An idle volume in memory beside such load, p50 in ms: {}; with a wait of 12 ms injected before each normal grace period: {}; \
         the same with writers whose tenants stay: {}.",
        all(Injected::Nothing, Load::Churn),
        all(Injected::ThreeTicks, Load::Churn),
        all(Injected::ThreeTicks, Load::Control)
    )
}

/// The kernel's own figures in a sentence.
pub(super) fn kernel_finding(kernel: &Kernel) -> String {
    let p50 = listing(Load::ALL.map(|load| (load.name(), kernel.ms(load).quantile(0.5))), ", ").unwrap_or_default();
    format!("umount(2) of an idle ext4, p50 in ms: {p50} ({}).", kernel.about)
}

fn scenario_table(records: &Records, scenario: Scenario) -> Table {
    let columns =
        " | umounts | p50 ms | p95 | p99 | max | control p50 | by control | idle p50 | published p50 | p95 | p99 | max";
    let (letter, title) = (scenario.name(), scenario.title());
    let mut table =
        Table::new(format!("({letter}) Unmounting {title}, beside four volumes with churning tenants"), columns);
    for setting in Setting::all() {
        let cell = |load| Cell { setting, load, scenario };
        let Some(churn) = records.of(&cell(Load::Churn)) else { continue };
        let row = table.row(setting.name()).text(churn.ms.count()).figures(churn.ms.quantiles(QUANTILES));
        let row = row.figure(p50(records, cell(Load::Control))).estimate(by_control(records, setting, scenario, 0.5));
        row.figure(p50(records, cell(Load::Idle))).figures(published::umount(scenario, setting.form));
    }
    if scenario == Scenario::Quiet {
        table.row("no load").skip(8).figures(published::NO_PRESSURE);
    }
    table
}

/// The waits of the unmounting thread.
fn wait_table(records: &Records) -> Table {
    let columns = " | umounts | normal grace periods | expedited | callback barriers | <in this order, with the share of unmounts";
    let title = "Per unmount, under churn, A to C together: waits logged by the RCU layer";
    let mut table = Table::new(title, columns);
    for setting in Setting::all() {
        let costs = costs(records, setting, Load::Churn);
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
        let costs = costs(records, setting, Load::Churn);
        let per_call = |count: f64| count / costs.drains.max(1) as f64;
        let total_ms = costs.time.as_secs_f64() * 1e3;
        // The other forms do not look.
        let own = (setting.form == UmountForm::PerSb).then(|| per_call(costs.waits as f64));
        let dead: u64 = dead_uses.iter().filter(|(other, _)| *other == setting).map(|(_, uses)| uses).sum();
        let row = table.row(setting.name()).text(costs.drains).figure(per_call(costs.flushes as f64)).figure(own);
        let row = row.figure(total_ms).figure(per_call(total_ms * 1e3));
        row.figure(published::drain(setting.form) * 1e3 / published::DRAINS).text(costs.busy).text(dead);
    }
    table
}

/// The kernel's own umount(2).
pub(super) fn kernel_table(kernel: &Kernel) -> Table {
    let title = format!("umount(2) of an idle ext4 loop mount, {}", kernel.about);
    let mut table = Table::new(title, " | umounts | p50 ms | p95 | p99 | max");
    for load in Load::ALL {
        table.row(load.name()).text(kernel.ms(load).count()).figures(kernel.ms(load).quantiles(QUANTILES));
    }
    table
}

fn plot(records: &Records, place: Place, injected: Injected, scenario: Scenario) -> Plot {
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    for (number, form) in FORMS.into_iter().enumerate() {
        let setting = Setting { form, place, injected };
        let ms = |load| Some(records.of(&Cell { setting, load, scenario })?.ms.all());
        curves.extend(ms(Load::Churn).map(|ms| Curve::new(name(form), number, ms)));
        let values = published::umount(scenario, form);
        marks.push(Marks { color: number, points: QUANTILES.into_iter().zip(values).collect() });
        if form == UmountForm::PerSb {
            curves.extend(ms(Load::Control).map(|ms| Curve::dim("per_sb, control", ms)));
        }
    }
    let title = format!("({}) {}: {}, {}", scenario.name(), scenario.title(), place.name(), injected.name());
    Plot { title, axis: "milliseconds of an unmount; rings: published", curves, marks }
}

fn targets(records: &Records, dead_uses: &[(Setting, u64)], report: &mut Report) {
    let exactly = |value: u64| Estimate::exactly(value as f64);
    for setting in Setting::all().into_iter().filter(|setting| setting.form == UmountForm::PerSb) {
        let by_control_most = [
            (Scenario::Quiet, 0.5, "p50", QUIET_P50),
            (Scenario::Quiet, 0.95, "p95", QUIET_P95),
            (Scenario::OwnWriter, 0.5, "p50", OWN_WRITER_P50),
        ];
        for (scenario, share, quantile, bound) in by_control_most {
            let title = format!("{}: {} {quantile} by the control", setting.name(), scenario.name());
            report.target(title, Bound::AtMost(bound), by_control(records, setting, scenario, share));
        }
        let quiet = records.of(&Cell { setting, load: Load::Churn, scenario: Scenario::Quiet });
        let title = format!("{}: B us in the drain, nothing in flight", setting.name());
        report.target(title, Bound::AtMost(DRAIN_US), quiet.and_then(|seen| seen.drain_us.estimate()));
        let waits = costs(records, setting, Load::Churn).all_rcu_waits();
        let title = format!("{}: grace periods and barriers, as the RCU layer logs them", setting.name());
        report.target(title, Bound::AtMost(0.0), exactly(waits));
    }
    for form in FORMS {
        let title = format!("{}: unmounts", name(form));
        report.target(title, Bound::AtLeast(UMOUNTS), exactly(umounts(records, form)));
        if form != UmountForm::Base {
            let uses = dead_uses.iter().filter(|(setting, _)| setting.form == form).map(|(_, uses)| uses).sum();
            report.target(format!("{}: uses of a dead volume", name(form)), Bound::AtMost(0.0), exactly(uses));
        }
    }
}

fn json(records: &Records) -> serde_json::Value {
    let one = |(cell, seen): (&Cell, &super::Seen)| {
        let Costs { orders, busy, drains, flushes, waits, time } = &seen.costs;
        let orders = orders.iter().map(|(order, count)| (order_text(order), (*count).into()));
        serde_json::json!({
            "form": name(cell.setting.form), "backend": cell.setting.place.name(),
            "grace_period_delay_ms": cell.setting.injected.time().as_millis() as u64,
            "load": cell.load.name(), "scenario": cell.scenario.name(), "drains": drains,
            "grace_periods": seen.costs.rcu_waits(Wait::Normal), "barriers": seen.costs.rcu_waits(Wait::Barrier),
            "expedited_grace_periods": seen.costs.rcu_waits(Wait::Expedited), "flushes": flushes, "waits": waits,
            "rcu_waits_in_order": orders.collect::<serde_json::Map<_, _>>(),
            "drain_total_ms": time.as_secs_f64() * 1e3, "busy": busy, "ms_by_round": seen.ms.rounds(),
        })
    };
    records.iter().map(one).collect()
}
