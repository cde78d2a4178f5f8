//! Tables, plots and targets from the records.

use super::{Load, Records, Setting, Subject};
use crate::harness::{Bound, Curve, Report, Source, Table, listing};

/// Lower bound: cycles per second with the default registry, divided by those with the first one.
const KEEPS_UP: f64 = 0.95;
/// Upper bound: longest registration of a round beside scans of 50 ms, with the default registry.
const PROMPT_MS: f64 = 25.0;
/// Lower bound: cycles per second, divided by the kernel's.
const BY_KERNEL: f64 = 5.0;

const DEFAULT: Subject = Subject::RefcountRcu;

/// Published cycles per second of three registries of the kernel: nine stress-ng workers that mount a ramfs, work in it and
/// unmount it, for a minute; on 24 and on 32 CPUs; sem. 12.3 and 10.4.
const PUBLISHED: [(&str, Option<f64>, Option<f64>); 4] = [
    ("rwsem", Some(7884.12), Some(12_915.89)),
    ("srcu", None, Some(2811.08)),
    ("srcu, expedited", None, Some(11_834.18)),
    ("refcount_rcu", Some(7952.55), None),
];

/// Puts everything into `report`; `settings` are those that were measured.
pub(super) fn report(records: &Records, settings: &[Setting], report: &mut Report) {
    report.table(cycle_table(records, settings));
    report.table(registration_table(records, settings));
    let mut published =
        Table::new("Published of the kernel: nine workers, ramfs, 60 s", " | 24 CPUs, cycles/s | 32 CPUs, cycles/s");
    for (registry, one, other) in PUBLISHED {
        published.row(registry).figures([one, other]);
    }
    report.table(published);
    for setting in settings {
        let curve = |(number, subject): (usize, Subject)| {
            Some(Curve::new(subject.name(), number, records.seen.of(&(*setting, subject))?.register.all()))
        };
        let curves = Subject::ENGINES.into_iter().enumerate().filter_map(curve);
        report.curves(format!("Registration: {}", setting.name()), "microseconds of a registration", curves);
    }
    targets(records, report);
    findings(records, report);
    report.figure("shrinker", json(records));
    report.note(
        "Injected: before each SRCU grace period the engine's default waits 1 ms for others to join (rcu::Options::coalesce), and \
         an unmount waits for one grace period. The cycles with \"srcu, 1 ms injected\" are therefore limited to somewhat less than \
         1000 per second and worker; \"srcu, 0 ms injected\" is the same registry without that wait. Beside slow scans both wait for \
         the scan.",
    );
    report.note(
        "By rwsem: medians of the rounds' ratios, 95 % intervals. The kernel's cycle is mount(2), the same work in a ramfs, and \
         umount2(2), in a mount namespace of its own. Only the engine's shrinkers are walked, so the kernel has no rows beside slow \
         scans.",
    );
}

fn findings(records: &Records, report: &mut Report) {
    let published = listing(PUBLISHED.map(|(registry, cycles, _)| (registry, cycles)), ", ");
    let text = published.map(|all| format!("Nine stressors with a ramfs on 24 CPUs, cycles per s: {all}."));
    report.finding(Source::Published, text);
    let cycles = |load, subjects: &[Subject]| {
        let row = Setting { workers: 1, load }.name();
        listing(subjects.iter().map(|subject| (subject.name(), records.per_s.median(&row, subject.name()))), "; ")
    };
    let kernel = cycles(Load::Quiet, &[Subject::Kernel]);
    report.finding(Source::Kernel, kernel.map(|kernel| format!("One worker with a ramfs, cycles per s: {kernel}.")));
    let both = cycles(Load::Quiet, &Subject::ENGINES).zip(cycles(Load::SlowScans, &Subject::ENGINES));
    let text = both.map(|(quiet, slow)| format!("One worker, cycles per s: {quiet}. Beside scans of 50 ms: {slow}."));
    report.finding(Source::Ours, text);
}

/// Every setting with every subject, as far as measured, with the name of the row.
fn rows<'a>(settings: &'a [Setting]) -> impl Iterator<Item = (Setting, Subject, String)> + 'a {
    let of = |setting: &Setting| {
        let setting = *setting;
        Subject::ALL.map(|subject| (setting, subject, format!("{}: {}", setting.name(), subject.name())))
    };
    settings.iter().flat_map(of)
}

const QUANTILES: [f64; 3] = [0.5, 0.99, 1.0];

fn cycle_table(records: &Records, settings: &[Setting]) -> Table {
    let columns = " | cycles/s | by rwsem | mount p50 us | p99 | max | umount p50 us | p99 | max";
    let mut table =
        Table::new("Mounting a volume in memory, working in it, unmounting it; the kernel with a ramfs", columns);
    for (setting, subject, name) in rows(settings) {
        let Some(seen) = records.seen.of(&(setting, subject)) else { continue };
        let (per_s, row) = (&records.per_s, setting.name());
        let ratio = per_s.ratio(&row, subject.name(), Subject::Rwsem.name()).filter(|_| subject != Subject::Rwsem);
        let cells = table.row(name).figure(per_s.median(&row, subject.name())).estimate(ratio);
        cells.figures(seen.mount.quantiles(QUANTILES)).figures(seen.umount.quantiles(QUANTILES));
    }
    table
}

fn registration_table(records: &Records, settings: &[Setting]) -> Table {
    let columns =
        " | registrations | register p50 us | p99 | max | unregister p50 us | p99 | max | longest of a round, ms";
    let mut table = Table::new("Registering a shrinker without objects, and unregistering it", columns);
    for (setting, subject, name) in rows(settings).filter(|(_, subject, _)| *subject != Subject::Kernel) {
        let Some(seen) = records.seen.of(&(setting, subject)) else { continue };
        let row = table.row(name).text(seen.register.count()).figures(seen.register.quantiles(QUANTILES));
        let row = row.figures(seen.unregister.quantiles(QUANTILES));
        row.figure(records.longest_ms.median(&setting.name(), subject.name()));
    }
    table
}

fn targets(records: &Records, report: &mut Report) {
    let [quiet, slow] = Load::ALL.map(|load| Setting { workers: 1, load }.name());
    for (title, bottom, bound) in [
        ("cycles with refcount_rcu by those with rwsem, quiet", Subject::Rwsem, KEEPS_UP),
        ("cycles by those of the kernel with a ramfs", Subject::Kernel, BY_KERNEL),
    ] {
        let ratio = records.per_s.ratio(&quiet, DEFAULT.name(), bottom.name());
        report.target(title, Bound::AtLeast(bound), ratio);
    }
    let title = format!("{}: longest registration of a round beside slow scans, ms", DEFAULT.name());
    report.target(title, Bound::AtMost(PROMPT_MS), records.longest_ms.estimate(&slow, DEFAULT.name()));
}

fn json(records: &Records) -> serde_json::Value {
    let one = |((setting, subject), seen): (&(Setting, Subject), &super::Seen)| {
        serde_json::json!({
            "workers": setting.workers, "load": setting.load.name(), "subject": subject.name(),
            "mount_us": seen.mount.json(), "umount_us": seen.umount.json(),
            "register_us": seen.register.json(), "unregister_us": seen.unregister.json(),
        })
    };
    serde_json::json!({
        "times": records.seen.iter().map(one).collect::<Vec<_>>(),
        "cycles_per_s": records.per_s.json(), "longest_registration_ms": records.longest_ms.json(),
        "mount_and_umount_us": records.mount_and_umount_us.json(),
    })
}
