//! `daemon`: the cost of a volume of `slackwater daemon` beside a thousand others, and beside some whose source hangs.
//!
//! *Many volumes*: a daemon with a thousand volumes, beside one with a single volume. Small writes go to a file of the only
//! volume, to a file of one of the thousand, and to a file of each in random order. The same with as many files in one
//! volume separates the cost of files from that of volumes. The same with mounts of a server that does nothing shows the
//! kernel's part. Then come requests over the socket, and what the idle process uses.
//!
//! *Hung neighbours*: writes and fsyncs on the only volume of a daemon, and on a volume beside nine whose source does not
//! answer. The nine have dirty data, writeback in flight, open files, and programs that waited for the source and were killed.

mod bare;
mod many;
mod process;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

pub(crate) use self::bare::{BareArguments, run_bare};
use self::process::Hung;
pub(crate) use self::process::{Daemon, Volume};
use crate::files::{make_file, writable};
use crate::fuse::slackwater;
use crate::harness::{AtMost, Options, Report, Series, Table, amounts, rounds, time_us};
use crate::scratch::Scratch;

/// Volumes beside the one that is measured.
const HUNG: usize = 9;
const CONFIG: &str = "cache = \"256MiB\"\n";
/// The size of the file that is overwritten.
const FILE_BYTES: u64 = 4 << 20;
/// The rows, in microseconds of each operation.
const WRITE: &str = "4 KiB write";
const SYNC: &str = "64 KiB and fsync";
/// The subjects.
const ALONE: &str = "alone";
const BESIDE: &str = "beside nine that hang";

amounts! {
    /// How much of everything beside volumes whose source hangs.
    struct Amounts {
        /// Open files on each volume whose source hangs.
        open_files: usize = 1000, 50;
        /// Writes in a turn.
        writes: usize = 2000, 500;
        syncs: usize = 100, 20;
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let program = slackwater()?;
    let home = Scratch::in_folder(&options.dir)?;
    let amounts = many::Amounts::of(options);
    many::measure(options.rounds(), options.seed, amounts, &home, &program, &mut report.series)?;
    many::publish(amounts, report);
    if let Some(bindfs) = Hung::program() {
        let amounts = Amounts::of(options);
        measure_neighbours(options.rounds(), amounts, &home, (&program, &bindfs), &mut report.series)?;
        publish_neighbours(report);
    } else {
        report.note("bindfs is not installed: no rows beside a source that hangs.");
    }
    Ok(())
}

/// A daemon with the volume that is measured.
struct Host {
    /// The hung source, before the daemon because it must be dropped first.
    hung: Option<Hung>,
    daemon: Daemon,
    file: File,
}

impl Host {
    fn new(program: &Path, folder: &Path, bindfs: Option<&Path>, open_files: usize) -> Result<Self> {
        let volume = Volume::make(folder, "healthy")?;
        let daemon = Daemon::start(program, &(CONFIG.to_owned() + &volume.table()), &[], "KILL")?;
        let path = volume.mountpoint.join("file");
        make_file(&path, FILE_BYTES)?;
        let file = writable(&path)?;
        let hung = bindfs.map(|bindfs| Hung::new(bindfs, &daemon, folder, (HUNG, open_files))).transpose()?;
        hung.as_ref().map_or(Ok(()), Hung::probe)?;
        Ok(Self { hung, daemon, file })
    }

    /// Microseconds of each of `count` consecutive writes of `bytes`.
    fn write(&self, count: usize, bytes: usize, is_synced: bool) -> Result<Vec<f64>> {
        let (payload, mut us) = (vec![7; bytes], Vec::with_capacity(count));
        for number in 0..count {
            time_us(&mut us, || {
                self.file.write_all_at(&payload, (number * bytes) as u64 % FILE_BYTES)?;
                if is_synced { self.file.sync_data() } else { Ok(()) }
            })?;
        }
        Ok(us)
    }

    fn end(self) -> Result<()> {
        let Self { hung, daemon, file } = self;
        drop(file);
        hung.map_or(Ok(()), |hung| hung.end(&daemon))?;
        daemon.end().map(drop)
    }
}

/// Starts both daemons, measures, and ends them. `programs`: ours and bindfs.
fn measure_neighbours(
    count: u32,
    amounts: Amounts,
    home: &Scratch,
    (ours, bindfs): (&Path, &Path),
    series: &mut Series,
) -> Result<()> {
    let host = |name, bindfs| Host::new(ours, &home.subdirectory(name)?, bindfs, amounts.open_files);
    let hosts = [(ALONE, host("neighbours-none", None)?), (BESIDE, host("neighbours-hung", Some(bindfs))?)];
    rounds::run("neighbours", count, &hosts, |_, (subject, host)| {
        series.add_round(WRITE, subject, host.write(amounts.writes, 4 << 10, false).context(*subject)?);
        series.add_round(SYNC, subject, host.write(amounts.syncs, 64 << 10, true).context(*subject)?);
        Ok(())
    })?;
    hosts.into_iter().try_for_each(|(_, host)| host.end())
}

fn publish_neighbours(report: &mut Report) {
    let columns = " | p50 us | p99 | p50 by alone | p99 by alone";
    let mut table = Table::new("A volume alone in its daemon, and beside nine whose source hangs", columns);
    for row in [WRITE, SYNC] {
        let [alone, beside] = [ALONE, BESIDE].map(|subject| report.series.of(row, subject));
        let [p50, p99] = [0.5, 0.99].map(|share| beside.quantile_by(alone, share));
        table.row(format!("{row}: {ALONE}")).figures(alone.quantiles([0.5, 0.99]));
        let cells = table.row(format!("{row}: {BESIDE}")).figures(beside.quantiles([0.5, 0.99]));
        cells.estimate(p50).estimate(p99);
        report.target(format!("{row}: p99 beside nine that hang by alone"), AtMost(1.2), p99);
    }
    report.table(table);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn writes_and_requests_are_measured_and_nothing_stays_mounted() {
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let program = slackwater().unwrap();
        let amounts = many::Amounts { volumes: 3, writes: 20, settle: Duration::ZERO, idle: Duration::ZERO };
        let mut report = Report::of_test("daemon");
        many::measure(2, 1, amounts, &home, &program, &mut report.series).unwrap();
        let [alone, many] = [many::ALONE, many::MANY].map(|name| report.series.median(many::DESCRIPTORS, name));
        assert!(many > alone);
        assert!(many::ASKED.iter().all(|row| report.series.of(row, many::MANY).count() == 2));
        home.assert_nothing_is_mounted();
        // Everything was written back.
        for number in 0..3 {
            let file = home.path().join(format!("many-volumes/volume-{number}/source/file-{number}"));
            let bytes = fs::read(file).unwrap();
            assert!(bytes.len() == 4 * 4096 && bytes.iter().all(|byte| [2, 7].contains(byte)), "{number}");
        }
        many::publish(amounts, &mut report);
        report.assert_page_has(&[
            "2 CPUs: bare server, a file of each",
            "descriptors, idle",
            "list over the socket, ms, of many",
        ]);
    }

    #[test]
    fn a_volume_is_measured_beside_others_that_hang() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let amounts = Amounts { open_files: 2, writes: 3, syncs: 2 };
        let mut report = Report::of_test("daemon");
        let programs = (&*slackwater().unwrap(), &*bindfs);
        measure_neighbours(2, amounts, &home, programs, &mut report.series).unwrap();
        home.assert_nothing_is_mounted();
        publish_neighbours(&mut report);
        report.assert_page_has(&["beside nine that hang", "64 KiB and fsync", "p99 by alone"]);
    }

    /// Nothing is ended in order after an interrupt, so dropping must suffice.
    #[test]
    fn dropping_a_hung_source_removes_everything() {
        let Some(bindfs) = Hung::program() else { return };
        let home = Scratch::in_folder(&std::env::temp_dir()).unwrap();
        let config = "cache = \"64MiB\"\ndirty-expire = \"1s\"\n";
        let daemon = Daemon::start(&slackwater().unwrap(), config, &[], "KILL").unwrap();
        let hung = Hung::new(&bindfs, &daemon, home.path(), (2, 1)).unwrap();
        hung.probe().unwrap();
        drop(hung);
        drop(daemon);
        let path = home.path().to_path_buf();
        drop(home);
        assert!(!path.exists());
    }
}
