//! `isolation`: what a tenant notices of another one that writes all the time.
//!
//! Tenants are cgroups, and in each is a process of its own ([`client`]). Two victims write 64 KiB every 20 ms, one of
//! them with fsync; beside them there is nobody, or a hog. That is measured on the mount of this project, on the disk
//! it is on, and on a FUSE file system of others that caches writes. On this project's mount alone: two equal hogs
//! beside what the disk takes without a cache, and how much a tenant with a limit holds.

mod client;
mod hogs;
mod limit;
mod results;
mod systems;
mod victims;
mod worker;

use std::time::Duration;

use anyhow::{Context, Result};

use self::client::Role;
pub(crate) use self::client::{ClientArguments, run_client};
use self::systems::{Systems, Tenants};
use crate::options::Options;
use crate::report::Report;
use crate::scratch::Scratch;

/// How much of everything.
#[derive(Copy, Clone, Debug)]
struct Amounts {
    /// Of the mount.
    cache_bytes: u64,
    /// File of a hog: more than is ever dirty, or it would write to memory alone.
    hog_bytes: u64,
    /// File of a direct writer.
    direct_bytes: u64,
    /// From the start of a hog until it is looked at.
    warm_up: Duration,
    /// Of the victims of a turn.
    time: Duration,
    /// Of the hogs of a turn, after the time in which the throttle has learnt what the device takes.
    hogs_warm_up: Duration,
    hogs_time: Duration,
    /// The hogs that the victims are beside.
    kinds: &'static [Role],
    /// How often a tenant's limit is tried with each number of writers, and for how long.
    limit_turns: u32,
    limit_time: Duration,
}

impl Amounts {
    fn of(options: &Options) -> Self {
        if options.quick {
            Self {
                cache_bytes: 512 << 20,
                hog_bytes: 512 << 20,
                direct_bytes: 256 << 20,
                warm_up: Duration::from_millis(120),
                time: Duration::from_millis(320),
                hogs_warm_up: Duration::from_millis(800),
                hogs_time: Duration::from_millis(400),
                kinds: &[Role::Overwrite],
                limit_turns: 1,
                limit_time: Duration::from_millis(1500),
            }
        } else {
            Self {
                cache_bytes: 1 << 30,
                hog_bytes: 4 << 30,
                direct_bytes: 1 << 30,
                warm_up: Duration::from_secs(1),
                time: Duration::from_secs(4),
                hogs_warm_up: Duration::from_secs(1),
                hogs_time: Duration::from_secs(4),
                kinds: &[Role::Overwrite, Role::Extend, Role::Truncate],
                limit_turns: 5,
                limit_time: Duration::from_secs(4),
            }
        }
    }
}

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let amounts = Amounts::of(options);
    let home = Scratch::in_folder(&options.dir)?;
    let mut report = Report::new("isolation", Some(&options.dir), options.seed, Some(options.rounds()));
    report.about(
        "What a tenant notices of another one that writes all the time: a process in one cgroup that writes 64 KiB with fsync \
         every 20 ms, beside a process in another cgroup that writes as fast as it may.",
    );
    let tenants = Tenants::new().context("each tenant needs a cgroup of its own")?;
    let systems = Systems::new(&home, amounts)?;
    let victims = victims::measure(options, amounts, &systems, &tenants)?;
    let hogs = hogs::measure(options, amounts, &systems, &tenants)?;
    let missing = systems.missing();
    systems.end()?;
    let held = limit::measure(amounts, &home, &tenants)?;
    results::report(&victims, &hogs, &held, &mut report);
    report.note(
        "Victims write 64 KiB every 20 ms, with fsync or without; a hog, blocks of 1 MiB as fast as it may. By quiet:",
    );
    report.note("medians of the rounds' ratios of p99, 95 % intervals. Every process is in a cgroup of its own.");
    report.note(format!("The disk's own kernel: {}.", tenants.about()));
    if options.quick {
        report
            .note("Quick: what the hog writes stays below what the kernel begins to write back on the disk by itself.");
    }
    if missing {
        report.note("Neither mergerfs nor rclone is installed: no file system of others is beside.");
    }
    Ok(report)
}
