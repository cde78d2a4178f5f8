//! `namespace`: thousands of volumes mounted and unmounted by path in one engine, beside the kernel's tmpfs.
//!
//! Volumes in memory are mounted one by one, and unmounted one by one or in one call, while no, one or two threads look up
//! volumes that stay, and files in them. Unmounts wait for expedited grace periods, or for normal ones; of the latter so few are
//! made one by one as fit into a turn. The kernel does the same with tmpfs by system calls, in a mount namespace of its own.
//!
//! Each kind of grace period has an engine of its own, and everything has a turn in each round.

mod axes;
mod kernel;
mod lookups;
mod memory;
mod published;
mod records;
mod results;
mod testbed;

use anyhow::{Context, Result};

use self::axes::{NORMAL_GRACE, Setting, Subject, Way};
use self::kernel::Kernel;
pub(crate) use self::memory::{IdleVolumesArguments, run_idle_volumes};
use self::records::Records;
use self::testbed::{STANDING, Testbed};
use crate::options::Options;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{interrupt, rounds};

/// How many volumes a turn mounts and unmounts.
#[derive(Copy, Clone)]
struct Amounts {
    volumes: usize,
    /// Where each waits for a normal grace period.
    normal: usize,
    /// Idle ones whose memory is measured.
    idle: usize,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        Self { volumes: options.pick(5000, 1500), normal: options.pick(40, 8), idle: 5000 }
    }

    fn volumes(self, setting: Setting) -> usize {
        match (setting.subject, setting.way) {
            (Subject::Normal, Way::OneByOne) => self.normal,
            _ => self.volumes,
        }
    }
}

/// Whose turn it is.
#[derive(Copy, Clone)]
enum Turn<'a> {
    Engine(&'a Testbed, Setting),
    Kernel(&'a Kernel, Setting),
    Memory,
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("namespace", None, options.seed, Some(options.rounds()));
    report.about(
        "Thousands of volumes in memory mounted and unmounted by path in one engine, one by one and in one call, while threads look \
         up others: what an unmount costs that waits for a grace period, normal or expedited.",
    );
    let kernel = match Kernel::new(&home, amounts.volumes) {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            interrupt::check()?;
            report.note(format!("No rows for the kernel's tmpfs: {error:#}."));
            None
        }
    };
    let testbeds = Testbeds::new(amounts)?;
    let mut records = Records::default();
    let turns = turns(&testbeds, kernel.as_ref());
    rounds::run("namespace", options.rounds(), turns.len(), |_, turn| {
        measure_turn(turns[turn], amounts, &mut records)
    })?;
    results::report(&records, &mut report);
    report.figure("namespace", records.json());
    report.note(format!(
        "Normal: a grace period of {} ms, as in a kernel; one by one only {} volumes each time. All: from the first to the last.",
        NORMAL_GRACE.as_millis(),
        amounts.normal
    ));
    report.note(
        "An unmount waits for a normal one that begins after its call, so for two where one is under way: that frees what was left before.",
    );
    report.note(
        "Kernel by it: medians of the rounds' ratios of p50, 95 % intervals. The kernel's are mount(2) and umount2(2) of tmpfs",
    );
    report.note(format!(
        "in a mount namespace of its own. Looked up are {STANDING} volumes that stay, and a file in each; the longest of all rounds."
    ));
    report.note(format!(
        "Memory: RssAnon of a process with {} idle volumes less that with none, by volumes; their backends are in it.",
        amounts.idle
    ));
    Ok(report)
}

/// An engine for each kind of grace period.
struct Testbeds(Vec<(Subject, Testbed)>);

impl Testbeds {
    fn new(amounts: Amounts) -> Result<Self> {
        let graces = [Subject::Expedited, Subject::Normal].into_iter();
        let testbeds = graces.filter_map(|subject| Some((subject, subject.grace()?)));
        testbeds
            .map(|(subject, grace)| Ok((subject, Testbed::new(grace, amounts.volumes)?)))
            .collect::<Result<_>>()
            .map(Self)
    }

    fn of(&self, subject: Subject) -> Option<&Testbed> {
        self.0.iter().find(|(other, _)| *other == subject).map(|(_, testbed)| testbed)
    }
}

fn turns<'a>(testbeds: &'a Testbeds, kernel: Option<&'a Kernel>) -> Vec<Turn<'a>> {
    let of_engine = |setting: Setting| Some(Turn::Engine(testbeds.of(setting.subject)?, setting));
    let mut turns: Vec<_> = Setting::of_engines().into_iter().filter_map(of_engine).collect();
    if let Some(kernel) = kernel {
        turns.extend(Setting::of_kernel().into_iter().map(|setting| Turn::Kernel(kernel, setting)));
    }
    turns.push(Turn::Memory);
    turns
}

fn measure_turn(turn: Turn<'_>, amounts: Amounts, records: &mut Records) -> Result<()> {
    let (setting, cycle) = match turn {
        Turn::Engine(testbed, setting) => {
            (setting, testbed.run(setting.way, amounts.volumes(setting), setting.lookers))
        }
        Turn::Kernel(kernel, setting) => (setting, kernel.run(amounts.volumes(setting), setting.lookers)),
        Turn::Memory => {
            records.bytes.push(memory::ask(amounts.idle)?);
            return Ok(());
        }
    };
    let cycle = cycle.with_context(|| setting.name())?;
    records.add(setting, amounts.volumes(setting), &cycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Amounts = Amounts { volumes: 20, normal: 2, idle: 20 };
    const THREE: Amounts = Amounts { volumes: 3, ..FEW };

    #[test]
    fn every_setting_mounts_unmounts_and_is_on_the_page() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let testbeds = Testbeds::new(FEW).unwrap();
        let mut records = Records::default();
        for turn in turns(&testbeds, None) {
            if !matches!(turn, Turn::Memory) {
                measure_turn(turn, FEW, &mut records).unwrap();
            }
        }
        records.bytes.push(memory::bytes_per_volume(FEW.idle).unwrap());
        for setting in Setting::of_engines() {
            let wanted = match setting.way {
                Way::OneByOne => FEW.volumes(setting),
                Way::AtOnce => 1,
            };
            assert_eq!(records.of(setting).unwrap().grace_periods, [wanted as f64], "{}", setting.name());
        }

        let mut report = Report::new("namespace", None, 1, Some(1));
        results::report(&records, &mut report);
        let path = home.path().join("page.html");
        report.write_page(&path).unwrap();
        let page = std::fs::read_to_string(path).unwrap();
        for part in [
            "2 threads look up: normal, at once: grace periods",
            "1 thread looks up: normal: p99.9 of lookups beside",
            "4 CPUs, expedited",
            "Unmount: nobody looks up",
            "<svg",
            "Memory of an idle volume",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn the_kernels_tmpfs_is_seen_by_nobody_else() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        // Not root: there is nothing to see.
        let Ok(kernel) = Kernel::new(&home, 3) else { return };
        let mut records = Records::default();
        for setting in Setting::of_kernel() {
            measure_turn(Turn::Kernel(&kernel, setting), THREE, &mut records).unwrap();
            let seen = records.of(setting).unwrap();
            assert_eq!((seen.mount.count(), seen.umount.count()), (3, 3));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&home.path().display().to_string()), "{mounts}");
    }
}
