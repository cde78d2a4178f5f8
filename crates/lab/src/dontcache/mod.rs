//! `dontcache`: writers whose data is not to stay in the cache, in both forms, beside ordinary ones and the kernel's own.
//!
//! Five jobs, each of amounts in parts of a memory of `--scale`: one file by 16 threads at once in a row, and at random; four
//! files; 32 files of small blocks; and two writers of which one is an ordinary one. The engine has an arena of that size, a
//! new one for each run. The kernel has all the memory of the machine, so what it does when it runs out of that is not seen.
//!
//! On the *disk* all take their turn. On a *slow* backend, of 200 MB/s and 1 ms, only the engine's forms do, with a quarter of
//! the memory at most: what may be dirty before writers are made to wait. So a write waits only where the form wants it.
//!
//! The many files are also written at a *pace* that the disk keeps up with, as it did where the figures were published: faster
//! writers leave dirty what they may, whichever way they write.

mod block;
mod engine;
mod jobs;
mod kernel;
mod published;
mod records;
mod results;
mod running;
mod site;

use anyhow::{Result, ensure};
use clap::Args;

use self::jobs::Job;
use self::records::Records;
use self::site::{Cell, Place, Subject};
use crate::options::PageOptions;
use crate::report::Report;
use crate::rounds;
use crate::scratch::Scratch;

/// The memory that amounts are parts of.
const SCALE_BYTES: (u64, u64) = (256 << 20, 64 << 20);
/// Below it the small blocks are too few.
const LEAST_BYTES: u64 = 32 << 20;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Memory of the engine, of which amounts are parts [default: 256MiB, quick 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = slackwater_size::parse)]
    scale: Option<u64>,

    /// This job only; may be given again
    #[arg(long, value_enum)]
    job: Vec<Job>,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

impl Arguments {
    /// Without any of its own.
    pub(crate) fn usual(page: PageOptions) -> Self {
        Self { scale: None, job: Vec::new(), page }
    }
}

/// Runs the experiment.
pub(crate) fn run(arguments: &Arguments) -> Result<Report> {
    let options = &arguments.page.options;
    let (full, quick) = SCALE_BYTES;
    let scale_bytes = arguments.scale.unwrap_or(options.pick(full, quick)) >> 20 << 20;
    ensure!(scale_bytes >= LEAST_BYTES, "--scale is {} at least", slackwater_size::text(LEAST_BYTES));
    let jobs: Vec<_> =
        Job::ALL.into_iter().filter(|job| arguments.job.is_empty() || arguments.job.contains(job)).collect();
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("dontcache", Some(&options.dir), options.seed, Some(options.rounds()));
    report.about(
        "Writes that are to leave nothing in the cache, in the two forms that Linux has had (the writer starts the write-back, or \
         kicks the flusher), beside ordinary ones and the kernel's own.",
    );
    let mut records = Records::default();
    for job in &jobs {
        let cells = Cell::of(*job);
        rounds::run(job.name(), options.rounds(), cells.len(), |round, turn| {
            let seed = options.seed ^ u64::from(round) << 32;
            running::run(cells[turn], scale_bytes, home.path(), seed).map(|outcome| records.add(cells[turn], outcome))
        })?;
    }
    results::report(&jobs, scale_bytes, &records, &mut report);
    report.figure("scale_bytes", scale_bytes);
    report.figure("cells", records.json());
    if !records.has(Subject::KernelDontcache, Place::Disk) {
        report.note("The file system of --dir has no RWF_DONTCACHE: nothing to compare with.");
    }
    Ok(report)
}
