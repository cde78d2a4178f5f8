//! Experiments on Slackwater, beside the running kernel.
//!
//! ```text
//! harness/        what all experiments share: rounds, samples, figures, targets, tables, plots, the page
//! rig, scratch, cgroups, programs, proc, sys, interrupt
//!                 engines, directories, cgroups and programs that experiments set up, and their removal
//! umount/         unmounts beside tenants that come and go, in four forms
//! isolation/      a tenant beside another that writes all the time
//! dontcache/      writes that leave nothing in the cache
//! shrinker/       mounts with three registries of shrinkers
//! namespace/      thousands of volumes in one engine
//! daemon/         a thousand volumes in one process, and unmounts there
//! node/           a daemon with twenty pods, of which one is a hog
//! cache/          reads and writes of cached pages, and flushing
//! fuse/           a mounted directory
//! takeover/       the pause when the process of a mount is killed
//! gate/           fsync beside other tenants' streams
//! reclaim/        which pages the cache keeps
//! object/         volumes in an object store
//! idle/           ten thousand clean inodes left alone
//! copy/           a tree of real files, copied and compared
//! all             all experiments but copy, takeover and node, on one page
//! ```

mod all;
mod cache;
mod cgroups;
mod copy;
mod daemon;
mod dontcache;
mod fuse;
mod gate;
mod harness;
mod idle;
mod interrupt;
mod isolation;
mod namespace;
mod node;
mod object;
mod proc;
mod programs;
mod reclaim;
mod rig;
mod scratch;
mod shrinker;
mod sys;
mod takeover;
mod umount;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::harness::PageOptions;

const EXAMPLES: &str = "\
Examples:
  slackwater-lab copy                          copy some documentation through the cache and compare
  slackwater-lab copy ~/src /mnt/disk/src --cache 1GiB
  slackwater-lab all --quick                   every experiment, on one page
  slackwater-lab cache --quick                 what cached reads and writes cost
  slackwater-lab cache --check --json a.json   a full run, against the targets
  slackwater-lab gate --dir /mnt/disk          fsync beside four streams, on that disk
  slackwater-lab fuse --quick                  a mounted directory beside other file systems
  slackwater-lab object --quick                volumes in an object store beside the store
  slackwater-lab takeover --quick              the pause when the process of a mount is killed
  slackwater-lab umount --html a.html          unmounts beside tenants that come and go, with plots
  slackwater-lab dontcache --job four-writers  one job of dontcache

Exit status: 0 success; 1 a target is missed or a copy differs; 2 wrong arguments or a failure;
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
    /// Run every experiment below and write one page with all results
    All(PageOptions),
    /// Cached reads and writes of 4 KiB, and flushing, beside memcpy and the kernel
    Cache(PageOptions),
    /// A mounted directory, beside the disk, a bare FUSE server, bindfs, mergerfs and rclone
    Fuse(PageOptions),
    /// Latency of fsync beside four overwriting streams, with and without the device gate
    Gate(gate::Arguments),
    /// The pause when the process of a kept mount is killed, beside unmounting and mounting again; needs root
    Takeover(PageOptions),
    /// Wake-ups and CPU time of an engine with ten thousand clean inodes
    Idle(idle::Arguments),
    /// Unmounts beside tenants that come and go, with four forms of the wait, and the kernel's own
    Umount(PageOptions),
    /// A process in one cgroup beside a hog in another: on our mount, the disk and another FUSE mount
    Isolation(PageOptions),
    /// Cache hits on traces, beside LRU, FIFO and S3-FIFO, and the cost of an eviction
    Reclaim(PageOptions),
    /// Writes that leave nothing in the cache, in two forms, beside buffered writes and the kernel's own
    Dontcache(dontcache::Arguments),
    /// Mounts and unmounts in memory with three registries of shrinkers, beside the kernel's ramfs
    Shrinker(shrinker::Arguments),
    /// Thousands of volumes mounted and unmounted by path, with lookups, beside the kernel's tmpfs
    Namespace(PageOptions),
    /// A thousand volumes in one process, and unmounts beside tenants that come and go
    Daemon(PageOptions),
    /// A daemon with twenty pods and their volumes, one of them a hog: fsync, unmounts, upgrades; needs root
    Node(PageOptions),
    /// Volumes in an object store with 1 ms and 30 ms per request, beside the store, rclone and s3fs
    Object(PageOptions),
    /// A process of `isolation`
    #[command(hide = true)]
    Client(isolation::ClientArguments),
    /// A process of `namespace`
    #[command(hide = true)]
    IdleVolumes(namespace::IdleVolumesArguments),
    /// The bare server of `daemon`
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

/// Runs an experiment; false if a target is missed or a copy differs.
fn run(experiment: &Experiment) -> Result<bool> {
    let (report, page) = match experiment {
        Experiment::Copy(arguments) => return copy::run(arguments),
        Experiment::All(page) => return all::run(page),
        Experiment::Client(arguments) => return isolation::run_client(arguments),
        Experiment::IdleVolumes(arguments) => return namespace::run_idle_volumes(arguments).map(|()| true),
        Experiment::BareMounts(arguments) => return daemon::run_bare(arguments).map(|()| true),
        Experiment::Cache(page) => (cache::run(&page.options), page),
        Experiment::Fuse(page) => (fuse::run(&page.options), page),
        Experiment::Takeover(page) => (takeover::run(&page.options), page),
        Experiment::Umount(page) => (umount::run(&page.options), page),
        Experiment::Isolation(page) => (isolation::run(&page.options), page),
        Experiment::Reclaim(page) => (reclaim::run(&page.options), page),
        Experiment::Namespace(page) => (namespace::run(&page.options), page),
        Experiment::Daemon(page) => (daemon::run(&page.options), page),
        Experiment::Node(page) => (node::run(&page.options), page),
        Experiment::Object(page) => (object::run(&page.options), page),
        Experiment::Gate(gate::Arguments { pause_ms, page }) => (gate::run(&page.options, *pause_ms), page),
        Experiment::Idle(idle::Arguments { seconds, page }) => (idle::run(&page.options, *seconds), page),
        Experiment::Dontcache(dontcache::Arguments { scale, job, page }) => {
            (dontcache::run(&page.options, *scale, job), page)
        }
        Experiment::Shrinker(shrinker::Arguments { workers, page }) => (shrinker::run(&page.options, *workers), page),
    };
    report?.publish_with_page(page)
}
