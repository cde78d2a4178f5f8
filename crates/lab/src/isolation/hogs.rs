//! Two equal hogs on the mount, and two direct writers on the disk.

use anyhow::{Context, Result};

use super::Amounts;
use super::client::{ClientArguments, Role};
use super::systems::{DIRECT, HOGS, Systems, Tenants};
use super::worker::Worker;
use crate::fuse::{DISK, OURS, Subject};
use crate::harness::{Options, rounds};
use crate::interrupt;

/// MB/s of each of the two, one pair per round.
#[derive(Default)]
pub(super) struct Hogs {
    pub(super) cached: Vec<[f64; 2]>,
    pub(super) direct: Vec<[f64; 2]>,
}

impl Hogs {
    /// The slower by the faster, round by round.
    pub(super) fn evenness(&self) -> Vec<f64> {
        self.cached.iter().map(|[one, other]| one.min(*other) / one.max(*other)).collect()
    }

    /// Both together by both direct writers, round by round.
    pub(super) fn of_device(&self) -> Vec<f64> {
        let total = |[one, other]: &[f64; 2]| one + other;
        self.cached.iter().zip(&self.direct).map(|(cached, direct)| total(cached) / total(direct)).collect()
    }
}

/// Gives each pair its turn in every round.
pub(super) fn measure(options: &Options, amounts: Amounts, systems: &Systems, tenants: &Tenants) -> Result<Hogs> {
    let (ours, disk) = (systems.named(OURS)?, systems.named(DISK)?);
    let mut hogs = Hogs::default();
    rounds::run("hogs", options.rounds(), &[Role::Overwrite, Role::Direct], |_, role| {
        if *role == Role::Overwrite {
            hogs.cached.push(pair(ours, Role::Overwrite, HOGS, amounts.hog_bytes, amounts, tenants)?);
        } else {
            hogs.direct.push(pair(disk, Role::Direct, DIRECT, amounts.direct_bytes, amounts, tenants)?);
        }
        Ok(())
    })?;
    Ok(hogs)
}

fn pair(
    subject: &Subject,
    role: Role,
    files: [&str; 2],
    bytes: u64,
    amounts: Amounts,
    tenants: &Tenants,
) -> Result<[f64; 2]> {
    let start =
        |(cgroup, file): (_, &&str)| Worker::start(cgroup, &ClientArguments::new(role, subject.file(file), bytes));
    let workers = tenants.hogs.iter().zip(&files).map(start).collect::<Result<Vec<_>>>()?;
    interrupt::sleep(amounts.hogs_warm_up + amounts.hogs_time)?;
    let rate = |worker: Worker| worker.stop()?.rate(amounts.hogs_warm_up);
    let rates = workers.into_iter().map(rate).collect::<Result<Vec<_>>>()?;
    subject.settle()?;
    rates.try_into().ok().context("a pair has two rates")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let hogs = Hogs { cached: vec![[1.0, 2.0], [3.0, 3.0]], direct: vec![[2.0, 2.0], [1.0, 2.0]] };
        assert_eq!((hogs.evenness(), hogs.of_device()), (vec![0.5, 1.0], vec![0.75, 2.0]));
    }
}
