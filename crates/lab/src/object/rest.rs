//! A volume at rest, and the memory of its process beside the arena.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::server::{Delay, Requests};
use super::subject::Subject;
use super::testbed::Testbed;
use crate::fuse::OURS;
use crate::harness::threads::beside;
use crate::harness::{Options, rounds};
use crate::{interrupt, proc};

/// Longer than the age at which changes are committed, and than the pauses of the compactor.
const SETTLING: Duration = Duration::from_secs(12);
/// Anonymous memory: the arena is a shared mapping.
const ANONYMOUS: &str = "RssAnon";
/// Between two looks at it.
const PERIOD: Duration = Duration::from_millis(20);
const BYTES: usize = 4096;
const FILES_OF_DIRECTORY: usize = 1000;

/// Requests per second of the volume at each delay, while nothing uses it.
pub(super) fn idle(testbed: &Testbed, options: &Options) -> Result<Vec<(Delay, f64)>> {
    let time = Duration::from_secs(options.pick(60, 20));
    let counts = || Delay::ALL.map(|delay| testbed.s3.requests(delay));
    interrupt::sleep(SETTLING)?;
    let before = counts();
    interrupt::sleep(time)?;
    let per_s = |(now, before): (Requests, Requests)| (now - before).all as f64 / time.as_secs_f64();
    Ok(Delay::ALL.into_iter().zip(counts().into_iter().zip(before).map(per_s)).collect())
}

/// Peaks of anonymous memory, in bytes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Peak {
    pub(super) files: usize,
    pub(super) object_volume: u64,
    pub(super) dir_volume: u64,
}

/// Creates files in fresh mounts, and returns the peaks at a few counts of files.
pub(super) fn memory(testbed: &mut Testbed, options: &Options) -> Result<Vec<Peak>> {
    let counts = options.pick([100_000, 1_000_000], [10_000, 100_000]);
    let chosen = |subject: &&mut Subject| !subject.is_peer() && subject.delay() != Some(Delay::Long);
    let (mut ours, mut dir) = (Vec::new(), Vec::new());
    for subject in testbed.subjects.iter_mut().filter(chosen) {
        subject.remount()?;
        let peaks = if subject.column() == OURS { &mut ours } else { &mut dir };
        let mut made = 0;
        for count in counts {
            let folder = subject.path().join(format!("files-{count}"));
            let peak = peak_of(subject, || make(&folder, count - made).and_then(|()| subject.settle()));
            peaks.push(peak.with_context(|| format!("{count} files on {}", subject.column()))?);
            made = count;
        }
    }
    let peak = |(files, (object_volume, dir_volume))| Peak { files, object_volume, dir_volume };
    Ok(counts.into_iter().zip(ours.into_iter().zip(dir)).map(peak).collect())
}

/// The most anonymous memory of the subject's process during `work`.
fn peak_of(subject: &Subject, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let pid = subject.pid()?;
    let watch = |stop: &AtomicBool| -> Result<u64> {
        let mut most = proc::memory(pid, ANONYMOUS)?;
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(PERIOD);
            most = most.max(proc::memory(pid, ANONYMOUS)?);
        }
        Ok(most)
    };
    let ((), peaks) = beside([watch], |_| work())?;
    Ok(peaks.into_iter().max().unwrap_or(0))
}

fn make(folder: &Path, files: usize) -> Result<()> {
    let bar = rounds::bar("memory", files as u64);
    fs::create_dir(folder)?;
    for number in 0..files {
        let directory = folder.join(format!("{}", number / FILES_OF_DIRECTORY));
        if number % FILES_OF_DIRECTORY == 0 {
            interrupt::check()?;
            fs::create_dir(&directory)?;
        }
        File::create_new(directory.join(format!("{number}")))?.write_all_at(&[4; BYTES], 0)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}
