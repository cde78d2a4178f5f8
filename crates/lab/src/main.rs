//! Experiments on Slackwater, beside the running kernel.
//!
//! ```text
//! options, main    arguments            copy/    a tree of real files, there and compared
//! rounds, lanes    how it is measured   cache/   reading and writing, and flushing
//! statistics       what it means        fuse/    a mounted directory
//! series           what was measured    gate     fsync beside other tenants' streams
//! targets          what was promised    idle     ten thousand clean inodes left alone
//! table, report, machine, quantity      umount/  unmounts beside switches, in four forms
//! plot, bars, page what is drawn        isolation/  a tenant beside one that writes all the time
//! rig, scratch     what is set up       dontcache/  writers that leave nothing in the cache
//! samples          many times           shrinker/   mounts with three registries of shrinkers
//! cgroups, interrupt, sys               reclaim/    which pages the cache keeps
//! programs         that write           namespace/  thousands of volumes in one engine
//! all              one after the other  daemon/     a thousand volumes in one process, unmounts beside churn
//! ```

mod all;
mod bars;
mod cache;
mod cgroups;
mod copy;
mod daemon;
mod dontcache;
mod fuse;
mod gate;
mod idle;
mod interrupt;
mod isolation;
mod lanes;
mod machine;
mod namespace;
mod options;
mod page;
mod plot;
mod programs;
mod quantity;
mod reclaim;
mod report;
mod rig;
mod rounds;
mod samples;
mod scratch;
mod series;
mod shrinker;
mod statistics;
mod sys;
mod table;
mod targets;
mod umount;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::options::PageOptions;

const EXAMPLES: &str = "\
Examples:
  slackwater-lab copy                          copy some documentation through the cache and compare
  slackwater-lab copy ~/src /mnt/disk/src --cache 1GiB
  slackwater-lab all --quick                   every experiment, and one page of them all
  slackwater-lab cache --quick                 what a cached read and write cost, within a minute
  slackwater-lab cache --check --json a.json   all of it, against the targets
  slackwater-lab gate --dir /mnt/disk          fsync beside four streams, on that disk
  slackwater-lab fuse --quick                  a mounted directory beside others' file systems
  slackwater-lab idle --quick --check          what an idle engine costs
  slackwater-lab umount --html a.html          unmounts beside tenants that come and go, with plots
  slackwater-lab isolation --quick --check     what a tenant's writes cost another tenant
  slackwater-lab reclaim --quick --check       which pages stay, beside other policies
  slackwater-lab dontcache --job four-writers  writers that leave nothing in the cache
  slackwater-lab shrinker --quick --check      mounts beside slow scans, with three registries of shrinkers
  slackwater-lab namespace --check             thousands of volumes mounted and unmounted in one engine
  slackwater-lab daemon --quick --check        many volumes in one process, and unmounts beside churn

Exit status: 0 all is well; 1 a target is missed or a copy differs; 2 wrong arguments or a failure;
130 interrupted.";

/// Experiments on Slackwater, beside the running kernel.
#[derive(Parser, Debug)]
#[command(name = "slackwater-lab", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand, Debug)]
enum Experiment {
    /// Copy a directory tree through the cache, unmount, and compare byte for byte
    Copy(copy::Arguments),
    /// Every experiment below, one after the other, and one page of them all
    All(PageOptions),
    /// Cost of cached reads and writes of 4 KiB, and of flushing, beside memcpy and the kernel
    Cache(PageOptions),
    /// A mounted directory beside the disk, a bare FUSE server, bindfs, mergerfs and rclone
    Fuse(PageOptions),
    /// Latency of fsync beside four overwriting streams, with the device gate and without
    Gate(gate::Arguments),
    /// Wake-ups and CPU time of an engine with ten thousand clean inodes
    Idle(idle::Arguments),
    /// Unmounts beside tenants that come and go, in four forms of the wait, and the kernel's own
    Umount(PageOptions),
    /// Processes in one cgroup beside a hog in another: on a mount, on the disk, on another's mount
    Isolation(PageOptions),
    /// Hits of the cache on traces, beside LRU, FIFO and S3-FIFO, and what it costs to make room
    Reclaim(PageOptions),
    /// Writes that leave nothing in the cache, in both forms, beside ordinary ones and the kernel's own
    Dontcache(dontcache::Arguments),
    /// Mounts and unmounts in memory, with three registries of shrinkers, beside the kernel's ramfs
    Shrinker(shrinker::Arguments),
    /// Thousands of volumes mounted and unmounted by path, beside lookups, and the kernel's own tmpfs
    Namespace(PageOptions),
    /// A thousand volumes in one process, and unmounts beside tenants that come and go on other volumes
    Daemon(PageOptions),
    /// One of the processes of `isolation`
    #[command(hide = true)]
    Client(isolation::ClientArguments),
    /// One of the processes of `namespace`
    #[command(hide = true)]
    IdleVolumes(namespace::IdleVolumesArguments),
    /// The other server of `daemon`
    #[command(hide = true)]
    BareMounts(daemon::BareArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = interrupt::install().and_then(|()| run(&arguments.experiment));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(_) if interrupt::is_interrupted() => ExitCode::from(interrupt::EXIT_CODE),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs an experiment; false when a target is missed or a copy differs.
fn run(experiment: &Experiment) -> Result<bool> {
    match experiment {
        Experiment::Copy(arguments) => copy::run(arguments),
        Experiment::All(page) => all::run(page),
        Experiment::Cache(page) => cache::run(&page.options)?.publish_with_page(page),
        Experiment::Fuse(page) => fuse::run(&page.options)?.publish_with_page(page),
        Experiment::Gate(arguments) => gate::run(arguments)?.publish_with_page(&arguments.page),
        Experiment::Idle(arguments) => idle::run(arguments)?.publish_with_page(&arguments.page),
        Experiment::Umount(page) => umount::run(&page.options)?.publish_with_page(page),
        Experiment::Isolation(page) => isolation::run(&page.options)?.publish_with_page(page),
        Experiment::Reclaim(page) => reclaim::run(&page.options)?.publish_with_page(page),
        Experiment::Dontcache(arguments) => dontcache::run(arguments)?.publish_with_page(&arguments.page),
        Experiment::Shrinker(arguments) => shrinker::run(arguments)?.publish_with_page(&arguments.page),
        Experiment::Namespace(page) => namespace::run(&page.options)?.publish_with_page(page),
        Experiment::Daemon(page) => daemon::run(&page.options)?.publish_with_page(page),
        Experiment::Client(arguments) => isolation::run_client(arguments),
        Experiment::IdleVolumes(arguments) => namespace::run_idle_volumes(arguments).map(|()| true),
        Experiment::BareMounts(arguments) => daemon::run_bare(arguments).map(|()| true),
    }
}
