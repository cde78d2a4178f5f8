//! Victims beside nobody, and beside hogs.

use anyhow::{Context, Result};

use super::Amounts;
use super::client::{Role, VICTIM_FILE_BYTES};
use super::systems::{HOGS, SYNCED, Systems, Tenants, WRITTEN};
use super::worker::{Told, Worker};
use crate::fuse::Subject;
use crate::interrupt;
use crate::options::Options;
use crate::rounds;
use crate::statistics::quantile;

/// What the victims saw on one system beside nobody, or a hog of one kind.
pub(super) struct Cell {
    pub(super) system: &'static str,
    pub(super) hog: Option<Role>,
    pub(super) synced: Latencies,
    pub(super) written: Latencies,
    /// Of the hog, one figure a round.
    pub(super) mb_per_s: Vec<f64>,
}

/// Milliseconds of all rounds.
#[derive(Default)]
pub(super) struct Latencies {
    pub(super) all: Vec<f64>,
    /// One figure a round.
    pub(super) p99: Vec<f64>,
}

impl Latencies {
    fn add(&mut self, told: &Told) -> Result<()> {
        let seen = told.all("whole_ms");
        anyhow::ensure!(!seen.is_empty(), "a victim wrote nothing");
        self.p99.push(quantile(&seen, 0.99));
        self.all.extend(seen);
        Ok(())
    }
}

/// Every system without a hog and with each kind of hog, once a round.
pub(super) fn measure(options: &Options, amounts: Amounts, systems: &Systems, tenants: &Tenants) -> Result<Vec<Cell>> {
    let hogs: Vec<Option<Role>> = [None].into_iter().chain(amounts.kinds.iter().copied().map(Some)).collect();
    let turns: Vec<(&Subject, Option<Role>)> =
        systems.all().iter().flat_map(|subject| hogs.iter().map(move |hog| (subject, *hog))).collect();
    let empty = |(subject, hog): &(&Subject, Option<Role>)| Cell {
        system: subject.name(),
        hog: *hog,
        synced: Latencies::default(),
        written: Latencies::default(),
        mb_per_s: Vec::new(),
    };
    let mut cells: Vec<Cell> = turns.iter().map(empty).collect();
    rounds::run("victims", options.rounds(), turns.len(), |_, turn| {
        let (subject, hog) = turns[turn];
        observe(subject, hog, amounts, tenants, &mut cells[turn]).with_context(|| subject.name())
    })?;
    Ok(cells)
}

fn observe(subject: &Subject, hog: Option<Role>, amounts: Amounts, tenants: &Tenants, cell: &mut Cell) -> Result<()> {
    let own = subject.file("hog-own");
    let start_hog = |role| {
        let file = if role == Role::Overwrite { subject.file(HOGS[0]) } else { own.clone() };
        Worker::start(&tenants.hogs[0], role, &file, amounts.hog_bytes, 1)
    };
    let hog = hog.map(start_hog).transpose()?;
    interrupt::sleep(amounts.warm_up)?;
    let victim = |cgroup, role, name| Worker::start(cgroup, role, &subject.file(name), VICTIM_FILE_BYTES, 1);
    let syncing = victim(&tenants.syncing, Role::Sync, SYNCED)?;
    let writing = victim(&tenants.writing, Role::Write, WRITTEN)?;
    interrupt::sleep(amounts.time)?;
    cell.synced.add(&syncing.stop()?)?;
    cell.written.add(&writing.stop()?)?;
    if let Some(hog) = hog {
        cell.mb_per_s.push(hog.stop()?.rate(amounts.warm_up)?);
    }
    if own.exists() {
        std::fs::remove_file(&own).with_context(|| format!("cannot remove {}", own.display()))?;
    }
    subject.settle()
}
