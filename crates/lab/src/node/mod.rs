//! `node`: the volumes of twenty pods in one daemon, of which one pod writes all the time.
//!
//! Each pod has a volume, a cgroup with the name that a kubelet gives it, and a limit. Nineteen pods, the *victims*, write
//! 64 KiB and fsync several times a second. The twentieth, the *hog*, overwrites a large file as fast as it can. One daemon
//! with `--keep` serves all volumes in all rounds. A round has these turns, in an order that rotates:
//!
//! ```text
//! alone            the victims write
//! beside           the hog, too
//! upgraded         the same; in the middle, another process takes the daemon over
//! unmounts alone   each victim's volume is unmounted and mounted again; no pod writes
//! unmounts beside  the same, while all other pods write
//! unmounts outside the same, while only a program outside of all volumes writes, through the kernel's page cache
//! ```

mod pods;
mod results;

use std::time::Duration;

use anyhow::{Context, Result};

use self::pods::{Node, Writers};
use crate::harness::{Cells, Options, Report, Samples, axis, rounds};
use crate::interrupt;
use crate::scratch::Scratch;

const ABOUT: &str = "Twenty pods, each with a volume, a cgroup and a limit, in one daemon. Measured: fsync of nineteen of them alone and beside \
     a twentieth that writes as fast as it can, and the unmount of each. The daemon is upgraded meanwhile.";

/// How much of everything.
#[derive(Copy, Clone, Debug)]
struct Amounts {
    pods: usize,
    cache_mib: u64,
    /// The file of the hog.
    hog_bytes: u64,
    /// From the start of the hog until the victims write.
    warm_up: Duration,
    /// How long the victims of a turn write.
    time: Duration,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        Self {
            pods: 20,
            cache_mib: 1024,
            hog_bytes: options.pick(4 << 30, 512 << 20),
            warm_up: Duration::from_millis(options.pick(1000, 300)),
            time: Duration::from_millis(options.pick(4000, 1200)),
        }
    }
}

axis! {
    /// The turns of a round.
    enum Turn {
        Alone = "victims alone",
        Beside = "beside the hog",
        Upgraded = "beside it, daemon upgraded",
        UmountsAlone = "no pod writes",
        UmountsBeside = "the other pods write",
        UmountsOutside = "a program outside writes",
    }
}

/// The records of a turn.
#[derive(Default)]
struct Seen {
    /// Of each write and fsync of a victim, or of each unmount.
    ms: Samples,
    /// MB/s of the hog.
    mb_per_s: Samples,
    /// Programs or requests that failed, each with its message.
    errors: Vec<String>,
}

type Records = Cells<Turn, Seen>;

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("node", ABOUT, options);
    let records = measure(options.rounds(), amounts, &home)?;
    results::report(&records, amounts, &mut report);
    Ok(report)
}

fn measure(count: u32, amounts: Amounts, home: &Scratch) -> Result<Records> {
    let node = Node::new(amounts, home)?;
    // The files that were just made are in the cache of the disk.
    node.settle()?;
    let mut records = Records::default();
    rounds::run("node", count, &Turn::ALL, |_, turn| {
        let seen = records.entry(*turn);
        match turn {
            Turn::Alone | Turn::Beside | Turn::Upgraded => write(&node, amounts, *turn, seen),
            Turn::UmountsAlone | Turn::UmountsBeside | Turn::UmountsOutside => unmount(&node, amounts, *turn, seen),
        }
        .with_context(|| turn.name())
    })?;
    node.end()?;
    Ok(records)
}

/// Lets the victims write, and the hog before and beside them.
fn write(node: &Node, amounts: Amounts, turn: Turn, seen: &mut Seen) -> Result<()> {
    let mut writers = Writers::default();
    if turn != Turn::Alone {
        writers.start_hog(node)?;
    }
    interrupt::sleep(amounts.warm_up)?;
    writers.start_victims(node)?;
    interrupt::sleep(amounts.time / 2)?;
    if turn == Turn::Upgraded
        && let Err(error) = node.upgrade()
    {
        seen.errors.push(format!("{error:#}"));
    }
    interrupt::sleep(amounts.time / 2)?;
    let written = writers.stop(amounts.warm_up);
    anyhow::ensure!(!written.ms.is_empty(), "no victim wrote anything: {:?}", written.errors);
    seen.ms.push_round(written.ms);
    written.mb_per_s.into_iter().for_each(|rate| seen.mb_per_s.push(rate));
    seen.errors.extend(written.errors);
    node.settle()
}

/// Unmounts the volume of each victim in turn.
fn unmount(node: &Node, amounts: Amounts, turn: Turn, seen: &mut Seen) -> Result<()> {
    let mut writers = Writers::default();
    if turn == Turn::UmountsBeside {
        writers.start_hog(node)?;
        writers.start_victims(node)?;
    }
    if turn == Turn::UmountsOutside {
        writers.start_outside(node)?;
        interrupt::sleep(amounts.warm_up)?;
    }
    let mut ms = Vec::new();
    for victim in node.victims() {
        interrupt::check()?;
        let wrote = writers.stop_victim(victim)?;
        ms.push(node.unmount_and_mount(victim)?);
        if wrote {
            writers.start_victim(node, victim)?;
        }
    }
    seen.ms.push_round(ms);
    seen.errors.extend(writers.stop(Duration::ZERO).errors);
    node.settle()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn all_turns_are_measured_without_errors_and_nothing_stays() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let time = Duration::from_millis(400);
        let amounts = Amounts { pods: 3, cache_mib: 64, hog_bytes: 64 << 20, warm_up: time, time };
        let records = measure(2, amounts, &home).unwrap();
        for turn in Turn::ALL {
            let seen = records.of(&turn).unwrap();
            assert_eq!(seen.errors, [""; 0], "{}", turn.name());
            assert!(seen.ms.count() >= 4, "{}: {}", turn.name(), seen.ms.count());
        }
        assert_eq!(records.of(&Turn::UmountsBeside).unwrap().ms.count(), 4);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&home.path().display().to_string()), "{mounts}");
        let mut report = Report::of_test("node");
        results::report(&records, amounts, &mut report);
        report.assert_page_has(&["beside it, daemon upgraded", "the other pods write", "errors of programs", "<svg"]);
    }
}
