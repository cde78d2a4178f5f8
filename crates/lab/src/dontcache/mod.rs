//! `dontcache`: writes that leave nothing in the cache, in both forms, beside buffered writes and the kernel's own.
//!
//! Five jobs, whose amounts are parts of the memory `--scale`: 16 threads that write one file in order, or at random; four
//! files; 32 files of small blocks; and a buffered writer beside a second one. The engine has an arena of that size, a new
//! one for each run. The kernel has all memory of the machine, so the jobs do not show what it does when memory is short.
//!
//! On the *disk* all subjects take turns. On a *slow* backend, with an injected 200 MB/s and 1 ms, only the engine's forms
//! do. They write a quarter of the memory at most, which may be dirty before the throttle makes writers wait. So a write
//! waits only where its form makes it wait.
//!
//! The 32 files are also written at a *pace* that the disk keeps up with, as it did where the figures were published.
//! Kicking and buffered writers that are faster than the disk leave dirty what the throttle allows.

mod engine;
mod jobs;
mod kernel;
mod results;
mod running;
mod site;

use anyhow::{Result, ensure};
use clap::Args;

use self::jobs::Job;
use self::results::Records;
use self::site::Cell;
use crate::harness::{Options, PageOptions, Report, rounds};
use crate::scratch::Scratch;

const ABOUT: &str = "Writes that leave nothing in the cache, in the two forms that Linux has had (the writer starts the writeback, or kicks \
     the flusher), beside buffered writes and the kernel's own.";

/// The memory that amounts are parts of, in a full and in a quick run.
const SCALE_BYTES: (u64, u64) = (256 << 20, 64 << 20);
/// With less there are too few of the small blocks.
const LEAST_BYTES: u64 = 32 << 20;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Memory of the engine; all amounts are parts of it [default: 256MiB, quick 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = slackwater_arena::size::parse)]
    pub(crate) scale: Option<u64>,

    /// Run only this job; may be repeated
    #[arg(long, value_enum)]
    pub(crate) job: Vec<Job>,

    #[command(flatten)]
    pub(crate) page: PageOptions,
}

/// Runs some jobs, or all of them if there are none in `chosen`.
pub(crate) fn run(options: &Options, scale: Option<u64>, chosen: &[Job]) -> Result<Report> {
    let (full, quick) = SCALE_BYTES;
    let scale_bytes = scale.unwrap_or(options.pick(full, quick)) >> 20 << 20;
    ensure!(scale_bytes >= LEAST_BYTES, "--scale must be at least {}", slackwater_arena::size::text(LEAST_BYTES));
    let jobs: Vec<_> = Job::ALL.into_iter().filter(|job| chosen.is_empty() || chosen.contains(job)).collect();
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("dontcache", ABOUT, options);
    let mut records = Records::default();
    for job in &jobs {
        rounds::run(job.name(), options.rounds(), &Cell::of(*job), |round, cell| {
            let outcome = running::run(*cell, scale_bytes, home.path(), options.seed ^ u64::from(round) << 32)?;
            records.0.entry(*cell).or_default().extend(outcome);
            Ok(())
        })?;
    }
    results::report(&jobs, scale_bytes, &records, &mut report);
    Ok(report)
}
