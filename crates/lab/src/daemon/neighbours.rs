//! A volume beside nine others whose source hangs, and one that is alone in its daemon.
//!
//! The nine have unwritten data, write-back under way, open files, and programs that waited for the source and were killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use super::hung::Hung;
use super::process::{Daemon, Volume};
use crate::options::Options;
use crate::quantity::figure;
use crate::report::Report;
use crate::rounds;
use crate::scratch::Scratch;
use crate::statistics::{Estimate, quantile, quantile_ratio_estimate};
use crate::table::{Align, Table};
use crate::targets::{Bound, Target};

/// Beside the one that is measured.
const HUNG: usize = 9;
/// Most of a p99 by that of the volume alone.
const BY_ALONE: f64 = 1.2;
const CONFIG: &str = "cache = \"256MiB\"\n";
/// Of the file that is overwritten.
const FILE_BYTES: u64 = 4 << 20;
const OPERATIONS: [&str; 2] = ["4 KiB write", "64 KiB and fsync"];
const SUBJECTS: [&str; 2] = ["alone", "beside nine that hang"];

/// How much of everything.
#[derive(Copy, Clone, Debug)]
pub(super) struct Amounts {
    /// On each volume that hangs.
    pub(super) open_files: usize,
    /// Of a turn.
    pub(super) writes: usize,
    pub(super) syncs: usize,
}

impl Amounts {
    pub(super) fn of(options: &Options) -> Self {
        Self { open_files: options.pick(1000, 50), writes: options.pick(2000, 500), syncs: options.pick(100, 20) }
    }
}

/// Microseconds of each operation, by operation, subject and round.
pub(super) type Seen = [[Vec<Vec<f64>>; 2]; 2];

/// A daemon with the volume that is measured.
struct Host {
    /// Before the daemon: it goes first.
    hung: Option<Hung>,
    daemon: Daemon,
    file: File,
}

impl Host {
    fn new(program: &Path, folder: &Path, bindfs: Option<&Path>, open_files: usize) -> Result<Self> {
        let volume = Volume::make(folder, "healthy")?;
        let daemon = Daemon::start(program, &(CONFIG.to_owned() + &volume.table()), "KILL")?;
        let file = File::create_new(volume.mountpoint.join("file")).context("cannot make the file that is written")?;
        file.write_all_at(&vec![1; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        let hung = bindfs.map(|bindfs| Hung::new(bindfs, &daemon, folder, (HUNG, open_files))).transpose()?;
        hung.as_ref().map_or(Ok(()), Hung::probe)?;
        Ok(Self { hung, daemon, file })
    }

    /// Microseconds of each of `count` writes of `bytes`, one after the other through the file.
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
    rounds::run("neighbours", count, hosts.len(), |_, turn| {
        let writes = hosts[turn].write(amounts.writes, 4 << 10, false).context(SUBJECTS[turn])?;
        let syncs = hosts[turn].write(amounts.syncs, 64 << 10, true).context(SUBJECTS[turn])?;
        seen[0][turn].push(writes);
        seen[1][turn].push(syncs);
        Ok(())
    })?;
    hosts.into_iter().try_for_each(Host::end)?;
    Ok(seen)
}

fn by_alone([alone, beside]: &[Vec<Vec<f64>>; 2], share: f64) -> Estimate {
    quantile_ratio_estimate(beside, alone, share)
}

/// Puts what was seen into `report`.
pub(super) fn report(seen: &Seen, report: &mut Report) {
    let right = |name| (name, Align::Right);
    let columns = [("", Align::Left), right("p50 us"), right("p99"), right("p50 by alone"), right("p99 by alone")];
    let mut table = Table::new("A volume alone in its daemon, and beside nine whose source hangs", &columns);
    for (operation, subjects) in OPERATIONS.into_iter().zip(seen) {
        for (subject, rounds) in SUBJECTS.into_iter().zip(subjects) {
            let all = rounds.concat();
            let ratio = |share| match subject == SUBJECTS[0] {
                true => String::new(),
                false => by_alone(subjects, share).text(),
            };
            let of = |share| figure(quantile(&all, share));
            table.row([format!("{operation}: {subject}"), of(0.5), of(0.99), ratio(0.5), ratio(0.99)]);
        }
        let title = format!("{operation}: p99 beside nine that hang by alone");
        report.target(Target::new(title, Bound::AtMost(BY_ALONE), by_alone(subjects, 0.99)));
    }
    report.table(table);
    report.figure(
        "neighbours",
        serde_json::json!({ "operations": OPERATIONS, "subjects": SUBJECTS, "us_by_round": seen }),
    );
}
