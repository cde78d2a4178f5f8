//! fsync of a new small file by one thread and by 64, beside one request that stores as many bytes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::testbed::{Cell, Testbed};
use crate::harness::threads::at_once;
use crate::harness::{Options, median};

pub(super) const SYNC: &str = "fsync of a 4 KiB file, ms";
pub(super) const PUTS: &str = "PUTs of one fsync";
pub(super) const PUTS_OF_ALL: &str = "PUTs of 64 threads in fsync";
pub(super) const TIME_OF_ALL: &str = "64 threads in fsync, ms";

const BYTES: usize = 4096;
const THREADS: usize = 64;

pub(super) fn measure(testbed: &mut Testbed, options: &Options) -> Result<()> {
    let syncs = options.pick(20, 10);
    testbed.rounds(
        "fsync",
        options.rounds(),
        |bare, cell| {
            let times =
                (0..syncs).map(|_| Ok(bare.put_small(BYTES)?.as_secs_f64() * 1e3)).collect::<Result<Vec<_>>>()?;
            cell.add(SYNC, median(&times));
            Ok(())
        },
        |subject, cell| {
            let directory = subject.path().join(format!("synced-{}", cell.round));
            fs::create_dir(&directory)?;
            subject.settle()?;
            let (mut times, mut puts) = (Vec::new(), Vec::new());
            for number in 0..syncs {
                let file = written(&directory.join(format!("one-{number}")))?;
                let (before, start) = (cell.requests(), Instant::now());
                file.sync_all()?;
                times.push(start.elapsed().as_secs_f64() * 1e3);
                puts.push((cell.requests() - before).puts as f64);
            }
            // An fsync that sends nothing to the store has made nothing durable.
            if subject.delay().is_none() || median(&puts) > 0.0 {
                cell.add(SYNC, median(&times));
            }
            if subject.delay().is_some() {
                cell.add(PUTS, median(&puts));
            }
            if subject.delay().is_some() && !subject.is_peer() {
                of_all(cell, &directory)?;
            }
            Ok(())
        },
    )
}

/// All threads call fsync at once, each for its own file.
fn of_all(cell: &mut Cell<'_>, directory: &Path) -> Result<()> {
    let paths = (0..THREADS).map(|thread| directory.join(format!("of-{thread}")));
    let files = paths.map(|path| written(&path)).collect::<Result<Vec<_>>>()?;
    let (before, start) = (cell.requests(), Instant::now());
    at_once(files, |_, file| file.sync_all()).into_iter().collect::<Result<(), _>>()?;
    cell.add(TIME_OF_ALL, start.elapsed().as_secs_f64() * 1e3);
    cell.add(PUTS_OF_ALL, (cell.requests() - before).puts as f64);
    Ok(())
}

fn written(path: &Path) -> Result<File> {
    let file = File::create_new(path)?;
    file.write_all_at(&[9; BYTES], 0)?;
    Ok(file)
}
