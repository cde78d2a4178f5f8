//! `isolation`: how a tenant that writes all the time affects other tenants.
//!
//! Tenants are cgroups, each with one process ([`client`]). Two victims write 64 KiB every 20 ms, one of them with fsync,
//! alone or beside a hog. That is measured on this project's mount, on the disk it is on, and on another FUSE file system
//! that caches writes. On this project's mount only: two equal hogs, beside two direct writers on the disk, and how much a
//! tenant with a limit holds.

mod client;
mod hogs;
mod limit;
mod results;
mod systems;
mod victims;
mod worker;

use std::time::Duration;

use anyhow::{Context, Result};

pub(crate) use self::client::{ClientArguments, Role, run_client};
pub(crate) use self::systems::make_file;
use self::systems::{Systems, Tenants};
pub(crate) use self::worker::Worker;
use crate::harness::{Options, Report};
use crate::scratch::Scratch;

const ABOUT: &str = "How a tenant that writes all the time affects other tenants: a process in one cgroup that writes 64 KiB with fsync \
     every 20 ms, beside a process in another cgroup that writes as fast as it can.";

/// How much of everything.
#[derive(Copy, Clone, Debug)]
struct Amounts {
    /// Cache of a mount.
    cache_bytes: u64,
    /// File of a hog: more than is ever dirty, or it would only write to memory.
    hog_bytes: u64,
    /// File of a direct writer.
    direct_bytes: u64,
    /// From the start of a hog until it is measured.
    warm_up: Duration,
    /// How long the victims of a turn write.
    time: Duration,
    /// How long two hogs write in a turn, after the time in which the throttle learns the bandwidth of the device.
    hogs_warm_up: Duration,
    hogs_time: Duration,
    /// The kinds of hogs beside the victims.
    kinds: &'static [Role],
    /// How often a tenant's limit is tested with each number of writers, and for how long.
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
    let mut report = Report::new("isolation", ABOUT, options);
    let tenants = Tenants::new().context("each tenant needs a cgroup of its own")?;
    let systems = Systems::new(&home, amounts)?;
    let victims = victims::measure(options, amounts, &systems, &tenants)?;
    let hogs = hogs::measure(options, amounts, &systems, &tenants)?;
    let lacks_peer = systems.lacks_peer();
    systems.end()?;
    let held = limit::measure(amounts, &home, &tenants)?;
    results::report(&victims, &hogs, &held, &mut report);
    report.note(
        "Victims write 64 KiB every 20 ms, with fsync or without; a hog writes blocks of 1 MiB as fast as it can. By quiet: medians of \
         the rounds' ratios of p99, 95 % intervals. Every process is in a cgroup of its own.",
    );
    report.note(format!("The kernel on the disk: {}.", tenants.about()));
    if options.quick {
        report.note("Quick: the hog writes less than what makes the kernel start writeback on the disk.");
    }
    if lacks_peer {
        report.note("Neither mergerfs nor rclone is installed, so there are no rows of another FUSE file system.");
    }
    Ok(report)
}
