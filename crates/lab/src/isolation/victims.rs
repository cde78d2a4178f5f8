//! Victims on their own, and beside hogs.

use anyhow::{Context, Result};

use super::Amounts;
use super::client::{ClientArguments, Role, VICTIM_FILE_BYTES};
use super::systems::{HOGS, SYNCED, Systems, Tenants, WRITTEN};
use super::worker::Worker;
use crate::fuse::Subject;
use crate::harness::{Options, Samples, rounds};
use crate::interrupt;

/// The latencies of the victims on one system, beside a hog of one kind or none.
pub(super) struct Cell {
    pub(super) system: &'static str,
    pub(super) hog: Option<Role>,
    /// Milliseconds of write and fsync.
    pub(super) synced: Samples,
    /// Milliseconds of write alone.
    pub(super) written: Samples,
    /// MB/s of the hog.
    pub(super) mb_per_s: Samples,
}

/// Measures every system without a hog and with each kind of hog, once per round.
pub(super) fn measure(options: &Options, amounts: Amounts, systems: &Systems, tenants: &Tenants) -> Result<Vec<Cell>> {
    let hogs: Vec<Option<Role>> = [None].into_iter().chain(amounts.kinds.iter().copied().map(Some)).collect();
    let of_system = |subject| hogs.iter().map(move |hog| (subject, *hog));
    let turns: Vec<(usize, (&Subject, Option<Role>))> = systems.all().iter().flat_map(of_system).enumerate().collect();
    let empty = |(_, (subject, hog)): &(usize, (&Subject, Option<Role>))| {
        let (synced, written, mb_per_s) = Default::default();
        Cell { system: subject.name(), hog: *hog, synced, written, mb_per_s }
    };
    let mut cells: Vec<Cell> = turns.iter().map(empty).collect();
    rounds::run("victims", options.rounds(), &turns, |_, (number, (subject, hog))| {
        observe(subject, *hog, amounts, tenants, &mut cells[*number]).with_context(|| subject.name())
    })?;
    Ok(cells)
}

fn observe(subject: &Subject, hog: Option<Role>, amounts: Amounts, tenants: &Tenants, cell: &mut Cell) -> Result<()> {
    let own = subject.file("hog-own");
    let start_hog = |role| {
        let file = if role == Role::Overwrite { subject.file(HOGS[0]) } else { own.clone() };
        Worker::start(&tenants.hogs[0], &ClientArguments::new(role, file, amounts.hog_bytes))
    };
    let hog = hog.map(start_hog).transpose()?;
    interrupt::sleep(amounts.warm_up)?;
    let victim =
        |cgroup, role, name| Worker::start(cgroup, &ClientArguments::new(role, subject.file(name), VICTIM_FILE_BYTES));
    let syncing = victim(&tenants.syncing, Role::Sync, SYNCED)?;
    let writing = victim(&tenants.writing, Role::Write, WRITTEN)?;
    interrupt::sleep(amounts.time)?;
    for (victim, samples) in [(syncing, &mut cell.synced), (writing, &mut cell.written)] {
        let ms = victim.stop()?.all("whole_ms");
        anyhow::ensure!(!ms.is_empty(), "a victim wrote nothing");
        samples.push_round(ms);
    }
    if let Some(hog) = hog {
        cell.mb_per_s.push(hog.stop()?.rate(amounts.warm_up)?);
    }
    if own.exists() {
        std::fs::remove_file(&own).with_context(|| format!("cannot remove {}", own.display()))?;
    }
    subject.settle()
}
