//! Experiments on Slackwater, beside the running kernel.
//!
//! ```text
//! harness/        what all experiments share: rounds, samples, figures, targets, tables, plots, the page
//! rig, files, scratch, cgroups, programs, proc, sys, interrupt
//!                 engines, files, cgroups and programs that experiments set up, and their removal
//! umount/ ...     one folder for each experiment
//! all             the experiments together on one page
//! ```

mod all;
mod cache;
mod cgroups;
mod daemon;
mod dontcache;
mod files;
mod fuse;
mod gate;
mod harness;
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
use clap::{Args, Command, FromArgMatches, Subcommand};

use crate::harness::{Options, Report};

const EXAMPLES: &str = "\
Examples:
  slackwater-lab all --quick                   all experiments, on one page
  slackwater-lab cache --quick                 what cached reads and writes cost
  slackwater-lab cache --check --json a.json   a full run, against the targets
  slackwater-lab gate --dir /mnt/disk          fsync beside four streams, on that disk
  slackwater-lab fuse --quick                  a mounted directory beside other file systems
  slackwater-lab object --quick                volumes in an object store beside the store
  slackwater-lab takeover --quick              the pause when the process of a mount is killed
  slackwater-lab umount --html a.html          unmounts beside tenants that come and go, with plots

Exit status: 0 success; 1 a target is missed; 2 wrong arguments or a failure; 130 interrupted.";

/// An experiment and its command.
struct Experiment {
    name: &'static str,
    run: fn(&Options, &mut Report) -> Result<()>,
    /// The question, for the help and the page.
    about: &'static str,
}

impl Experiment {
    const fn new(name: &'static str, run: fn(&Options, &mut Report) -> Result<()>, about: &'static str) -> Self {
        Self { name, run, about }
    }

    fn report(&self, options: &Options) -> Result<Report> {
        let mut report = Report::new(self.name, self.about, options);
        (self.run)(options, &mut report)?;
        Ok(report)
    }
}

/// The experiments that `all` runs, in the order of its page: first the purpose of the project, then its costs.
const EXPERIMENTS: [Experiment; 11] = [
    Experiment::new(
        "umount",
        umount::run,
        "How long an unmount takes while tenants come and go on other volumes, in the four forms that the wait \
         for switches has had in Linux, all of them in this engine.",
    ),
    Experiment::new(
        "isolation",
        isolation::run,
        "How a tenant that writes all the time affects other tenants: a process in one cgroup that writes 64 KiB \
         with fsync every 20 ms, beside a process in another cgroup that writes as fast as it can.",
    ),
    Experiment::new(
        "dontcache",
        dontcache::run,
        "Writes that leave nothing in the cache, in the two forms that Linux has had (the writer starts the \
         writeback, or kicks the flusher), beside buffered writes and the kernel's own.",
    ),
    Experiment::new(
        "shrinker",
        shrinker::run,
        "The cost of a registry of shrinkers for threads that mount and unmount: each mount registers one, while \
         another thread walks them all. Three registries that Linux has had, in this engine.",
    ),
    Experiment::new(
        "namespace",
        namespace::run,
        "Thousands of volumes in memory mounted and unmounted by path in one engine, one by one and in one call, \
         while threads look up others: what the grace period of an unmount costs, normal or expedited.",
    ),
    Experiment::new(
        "daemon",
        daemon::run,
        "The cost of a volume in a process that has a thousand others, and of a volume beside nine whose source hangs.",
    ),
    Experiment::new(
        "cache",
        cache::run,
        "The cost of writing and reading 4 KiB that are cached, and the rate at which a cache is flushed until \
         all of it is durable; beside copying in memory, tmpfs, and the file system of the disk.",
    ),
    Experiment::new(
        "fuse",
        fuse::run,
        "The cost of a mounted directory, beside the disk it is on, a FUSE server that only answers, and file \
         systems of others.",
    ),
    Experiment::new(
        "object",
        object::run,
        "Volumes in an object store whose requests take 1 ms and 30 ms, beside the store, a volume of a \
         directory, and file systems of others on the same store.",
    ),
    Experiment::new(
        "gate",
        gate::run,
        "How long an fsync takes beside four tenants that overwrite their files on the same disk: with the gate \
         that holds back their writeback while a sync is in flight, and without.",
    ),
    Experiment::new(
        "reclaim",
        reclaim::run,
        "Which pages a small cache keeps: hits on traces of single pages, beside policies that track every page, \
         and what an eviction costs.",
    ),
];

/// The experiments that run alone.
const OTHERS: [Experiment; 2] = [
    Experiment::new(
        "takeover",
        takeover::run,
        "The pause that a program sees when the process of a mount with `--keep` is killed or upgraded, beside \
         unmounting and mounting again; needs root.",
    ),
    Experiment::new(
        "node",
        node::run,
        "Twenty pods, each with a volume, a cgroup and a limit, in one daemon. Measured: fsync of nineteen of \
         them alone and beside a twentieth that writes as fast as it can, and the unmount of each. The daemon is \
         upgraded meanwhile; needs root.",
    ),
];

/// The commands that are not an experiment.
#[derive(Subcommand, Debug)]
enum Other {
    /// Run all experiments but takeover and node, and write one page with all results
    All(Options),
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

fn experiments() -> impl Iterator<Item = &'static Experiment> {
    const ALL: [&[Experiment]; 2] = [&EXPERIMENTS, &OTHERS];
    ALL.into_iter().flatten()
}

fn main() -> ExitCode {
    let command = Command::new("slackwater-lab")
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(EXAMPLES)
        .max_term_width(100)
        .subcommands(experiments().map(|each| Options::augment_args(Command::new(each.name)).about(each.about)));
    let command = Other::augment_subcommands(command).about("Experiments on Slackwater, beside the running kernel");
    let matches = command.subcommand_required(true).arg_required_else_help(true).get_matches();
    let outcome = interrupt::install().and_then(|()| run(&matches));
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

/// Runs a command; false if a target is missed.
fn run(matches: &clap::ArgMatches) -> Result<bool> {
    if let Some((name, arguments)) = matches.subcommand()
        && let Some(experiment) = experiments().find(|experiment| experiment.name == name)
    {
        let options = Options::from_arg_matches(arguments)?;
        return experiment.report(&options)?.publish(&options);
    }
    match Other::from_arg_matches(matches)? {
        Other::All(options) => return all::run(&options),
        Other::Client(arguments) => isolation::run_client(&arguments)?,
        Other::IdleVolumes(arguments) => namespace::run_idle_volumes(&arguments)?,
        Other::BareMounts(arguments) => daemon::run_bare(&arguments)?,
    }
    Ok(true)
}
