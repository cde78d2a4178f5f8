//! A volume beside nine others whose source hangs, and one that is alone in its daemon.
//!
//! The nine have dirty data, writeback in flight, open files, and programs that waited for the source and were killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::hung::Hung;
use super::process::{Daemon, Volume};
use crate::harness::{Bound, Estimate, Options, Report, Samples, Table, rounds};
use crate::scratch::Scratch;

/// Volumes beside the one that is measured.
const HUNG: usize = 9;
/// Upper bound: p99 beside hung neighbours, divided by that of the volume that is alone.
const BY_ALONE: f64 = 1.2;
const CONFIG: &str = "cache = \"256MiB\"\n";
/// The size of the file that is overwritten.
const FILE_BYTES: u64 = 4 << 20;
const OPERATIONS: [&str; 2] = ["4 KiB write", "64 KiB and fsync"];
const SUBJECTS: [&str; 2] = ["alone", "beside nine that hang"];

/// How much of everything.
#[derive(Copy, Clone, Debug)]
pub(super) struct Amounts {
    /// On each volume whose source hangs.
    pub(super) open_files: usize,
    /// In a turn.
    pub(super) writes: usize,
    pub(super) syncs: usize,
}

impl Amounts {
    pub(super) fn of(options: &Options) -> Self {
        Self { open_files: options.pick(1000, 50), writes: options.pick(2000, 500), syncs: options.pick(100, 20) }
    }
}

/// Microseconds by operation and subject.
pub(super) type Seen = [[Samples; 2]; 2];

/// A daemon with the volume that is measured.
struct Host {
    /// Before the daemon, because it must be dropped first.
    hung: Option<Hung>,
    daemon: Daemon,
    file: File,
}

impl Host {
    fn new(program: &Path, folder: &Path, bindfs: Option<&Path>, open_files: usize) -> Result<Self> {
        let volume = Volume::make(folder, "healthy")?;
        let daemon = Daemon::start(program, &(CONFIG.to_owned() + &volume.table()), &[], "KILL")?;
        let file = File::create_new(volume.mountpoint.join("file")).context("cannot make the file that is written")?;
        file.write_all_at(&vec![1; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        let hung = bindfs.map(|bindfs| Hung::new(bindfs, &daemon, folder, (HUNG, open_files))).transpose()?;
        hung.as_ref().map_or(Ok(()), Hung::probe)?;
        Ok(Self { hung, daemon, file })
    }

    /// Microseconds of each of `count` consecutive writes of `bytes`.
    fn write(&self, count: usize, bytes: usize, is_synced: bool) -> Result<Vec<f64>> {
        let payload = vec![7; bytes];
        let one = |nth: usize| -> Result<f64> {
            let start = Instant::now();
            self.file.write_all_at(&payload, (nth * bytes) as u64 % FILE_BYTES)?;
            if is_synced {
                self.file.sync_data()?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        (0..count).map(one).collect()
    }

    fn end(self) -> Result<()> {
        let Self { hung, daemon, file } = self;
        drop(file);
        hung.map_or(Ok(()), |hung| hung.end(&daemon))?;
        daemon.end().map(drop)
    }
}

/// Starts both daemons, measures, and ends them. `programs`: ours and bindfs.
pub(super) fn measure(count: u32, amounts: Amounts, home: &Scratch, programs: (&Path, &Path)) -> Result<Seen> {
    let (ours, bindfs) = programs;
    let host = |name, bindfs| Host::new(ours, &home.subdirectory(name)?, bindfs, amounts.open_files);
    let hosts = [host("neighbours-none", None)?, host("neighbours-hung", Some(bindfs))?];
    let mut seen = Seen::default();
    rounds::run("neighbours", count, &[0, 1], |_, turn| {
        let (host, subject) = (&hosts[*turn], SUBJECTS[*turn]);
        seen[0][*turn].push_round(host.write(amounts.writes, 4 << 10, false).context(subject)?);
        seen[1][*turn].push_round(host.write(amounts.syncs, 64 << 10, true).context(subject)?);
        Ok(())
    })?;
    hosts.into_iter().try_for_each(Host::end)?;
    Ok(seen)
}

/// Puts what was seen into `report`.
pub(super) fn report(seen: &Seen, report: &mut Report) {
    let columns = " | p50 us | p99 | p50 by alone | p99 by alone";
    let mut table = Table::new("A volume alone in its daemon, and beside nine whose source hangs", columns);
    for (operation, [alone, beside]) in OPERATIONS.into_iter().zip(seen) {
        let by_alone = |share| -> Option<Estimate> { beside.quantile_by(alone, share) };
        table.row(format!("{operation}: {}", SUBJECTS[0])).figures(alone.quantiles([0.5, 0.99]));
        let row = table.row(format!("{operation}: {}", SUBJECTS[1])).figures(beside.quantiles([0.5, 0.99]));
        row.estimate(by_alone(0.5)).estimate(by_alone(0.99));
        let title = format!("{operation}: p99 beside nine that hang by alone");
        report.target(title, Bound::AtMost(BY_ALONE), by_alone(0.99));
    }
    report.table(table);
    let us_by_round = seen.each_ref().map(|subjects| subjects.each_ref().map(Samples::rounds));
    report.figure(
        "neighbours",
        serde_json::json!({ "operations": OPERATIONS, "subjects": SUBJECTS, "us_by_round": us_by_round }),
    );
}
