//! A daemon with many volumes beside one with a single volume, and mounts whose server does nothing.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use slackwater_backends::Random;

use super::bare::BareServer;
use super::process::{Daemon, Volume};
use crate::harness::placement::Placement;
use crate::harness::{Options, Series, axis, quantile, rounds, time_us};
use crate::scratch::Scratch;
use crate::{interrupt, proc, rig};

const PAGE: usize = 4096;
/// Of each file.
const PAGES: u64 = 4;
/// Nothing is written back while small writes are measured, and no writer is throttled.
const CONFIG: &str = "cache = \"256MiB\"\ndirty-ratio = 75\ndirty-expire = \"1h\"\n";
/// Between two looks at the threads.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) const LIST: &str = "list over the socket, ms";
pub(super) const LS: &str = "slackwater ls, ms";
pub(super) const MOUNT: &str = "mount over the socket, ms";
pub(super) const UMOUNT: &str = "unmount over the socket, ms";
pub(super) const STATUS: &str = "status of one over the socket, ms";
pub(super) const ASKED: [&str; 5] = [LIST, LS, STATUS, MOUNT, UMOUNT];

/// The two daemons.
pub(super) const ALONE: &str = "one volume";
pub(super) const MANY: &str = "many volumes";

axis! {
    /// Which files small writes go to.
    pub(super) enum Files {
        Single = "a file of the only volume",
        /// As many of the only volume as there are volumes elsewhere.
        OfOneVolume = "many files of the only volume",
        /// While the other volumes are idle.
        OfOneOfMany = "a file of one of many volumes",
        OfAll = "a file of each of many volumes",
        BareSingle = "bare server, a file of one mount",
        BareOfAll = "bare server, a file of each of many mounts",
    }
}

impl Files {
    /// The files that they are compared with.
    pub(super) fn single(self) -> Self {
        match self {
            Self::Single | Self::OfOneVolume | Self::OfOneOfMany | Self::OfAll => Self::Single,
            Self::BareSingle | Self::BareOfAll => Self::BareSingle,
        }
    }
}

/// Client and server on one CPU, and on two; in the order of [`Placement::FIXED`].
pub(super) const WRITES: [&str; 2] = ["4 KiB write", "4 KiB write, 2 CPUs"];

pub(super) fn p50(row: &str) -> String {
    format!("{row}, p50 us")
}

pub(super) fn p99(row: &str) -> String {
    format!("{row}, p99 us")
}

/// How much of everything.
#[derive(Copy, Clone, Debug)]
pub(super) struct Amounts {
    pub(super) volumes: usize,
    /// In a turn.
    pub(super) writes: usize,
    /// A daemon is idle when its number of threads has not changed for so long.
    pub(super) settle: Duration,
    /// How long idle daemons are watched.
    pub(super) idle: Duration,
}

impl Amounts {
    pub(super) fn of(options: &Options) -> Self {
        // A thread without work ends after 10 s at most.
        let (settle, idle) = (Duration::from_secs(11), Duration::from_secs(options.pick(10, 3)));
        Self { volumes: options.pick(1000, 200), writes: options.pick(4000, 1500), settle, idle }
    }
}

/// Resources of a process with all its volumes idle.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Usage {
    pub(super) volumes: usize,
    pub(super) threads: u64,
    pub(super) descriptors: u64,
    pub(super) anonymous_bytes: u64,
    /// CPU time while it was watched, in clock ticks.
    pub(super) ticks: u64,
}

/// Everything that was seen.
#[derive(Default)]
pub(super) struct Records {
    pub(super) idle_s: u64,
    pub(super) series: Series,
    pub(super) alone: Usage,
    pub(super) many: Usage,
    /// The start with all volumes mounted, and the end, when all have dirty data.
    pub(super) start_s: [f64; 2],
    pub(super) end_s: [f64; 2],
}

/// A daemon with files that are overwritten.
struct Host {
    name: &'static str,
    daemon: Daemon,
    volumes: Vec<Volume>,
    /// All in one volume, or one in each volume.
    files: Vec<File>,
    /// A volume that is mounted and unmounted again.
    extra: Volume,
}

impl Host {
    /// A daemon with so many volumes, and `files` files in total.
    fn new(program: &Path, home: &Scratch, name: &'static str, volumes: usize, files: usize) -> Result<Self> {
        let folder = home.subdirectory(&name.replace(' ', "-"))?;
        let make = |number| Volume::make(&folder, format!("volume-{number}"));
        let volumes = (0..volumes).map(make).collect::<Result<Vec<_>>>()?;
        for number in 0..files {
            let path = volumes[number % volumes.len()].source.join(format!("file-{number}"));
            fs::write(&path, [1; PAGES as usize * PAGE]).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let tables = volumes.iter().map(Volume::table);
        let config = [CONFIG.to_owned()].into_iter().chain(tables).collect::<String>();
        let daemon = Daemon::start(program, &config, &[], "TERM")?;
        let listed = daemon.list()?;
        ensure!(listed == volumes.len(), "the daemon has mounted {listed} of {} volumes", volumes.len());
        let extra = Volume::make(&folder, "extra")?;
        Ok(Self { name, daemon, volumes, files: Vec::new(), extra })
    }

    /// Opens `count` files and writes them, so that they are in the cache.
    fn open(&mut self, count: usize) -> Result<()> {
        for number in 0..count {
            let volume = &self.volumes[number % self.volumes.len()];
            let path = volume.mountpoint.join(format!("file-{number}"));
            let file = OpenOptions::new().write(true).open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            file.write_all_at(&[2; PAGES as usize * PAGE], 0)?;
            self.files.push(file);
        }
        Ok(())
    }

    fn usage(&self) -> Result<Usage> {
        let pid = self.daemon.pid();
        Ok(Usage {
            volumes: self.volumes.len(),
            threads: proc::threads(pid)?,
            descriptors: proc::open_descriptors(pid)?,
            anonymous_bytes: proc::memory(pid, "RssAnon")?,
            ticks: 0,
        })
    }

    /// Makes each request once.
    fn ask(&self, series: &mut Series) -> Result<()> {
        let mut time = |row, work: &dyn Fn() -> Result<()>| -> Result<()> {
            let start = Instant::now();
            work().context(row)?;
            series.add(row, self.name, start.elapsed().as_secs_f64() * 1e3);
            Ok(())
        };
        time(LIST, &|| self.daemon.list().map(drop))?;
        time(LS, &|| {
            let status = self.daemon.ls().stdout(Stdio::null()).status()?;
            ensure!(status.success(), "{status}");
            Ok(())
        })?;
        let first = self.volumes.first().map(|volume| volume.name.as_str());
        time(STATUS, &|| self.daemon.ask(first, json!({ "request": "status" })).map(drop))?;
        time(MOUNT, &|| self.daemon.mount(&self.extra))?;
        time(UMOUNT, &|| self.daemon.umount(&self.extra))
    }

    fn end(self) -> Result<f64> {
        drop(self.files);
        Ok(self.daemon.end()?.as_secs_f64())
    }
}

/// Overwrites pages of `files` at random, which `server` serves, and returns the microseconds of each write.
fn overwrite(files: &[File], server: u32, placement: Placement, count: usize, seed: u64) -> Result<Vec<f64>> {
    let (mut random, page) = (Random::new(seed), [7; PAGE]);
    let _placed = placement.place(Some(server))?;
    let mut us = Vec::with_capacity(count);
    for _ in 0..count {
        let file = &files[random.below(files.len() as u64) as usize];
        let offset = random.below(PAGES) * PAGE as u64;
        time_us(&mut us, || file.write_all_at(&page, offset))?;
    }
    Ok(us)
}

/// Starts all servers, measures everything, and ends them.
pub(super) fn measure(rounds: u32, seed: u64, amounts: Amounts, home: &Scratch, program: &Path) -> Result<Records> {
    rig::raise_file_limit();
    let files = amounts.volumes;
    let mut alone = Host::new(program, home, ALONE, 1, files)?;
    let mut many = Host::new(program, home, MANY, amounts.volumes, files)?;
    let mut records = Records { idle_s: amounts.idle.as_secs(), ..Records::default() };
    records.start_s = [&alone, &many].map(|host| host.daemon.start_time.as_secs_f64());
    [records.alone, records.many] = watch_idle([&alone, &many], amounts)?;
    alone.open(files)?;
    many.open(files)?;
    let bare = BareServer::start(&home.subdirectory("bare")?, amounts.volumes)?;
    write(rounds, seed, amounts, ([&alone, &many], &bare), &mut records.series)?;
    drop(bare);
    // Each program that is started would close all of them, with a request for each.
    alone.files.clear();
    many.files.clear();
    let hosts = [&alone, &many];
    rounds::run("requests", rounds, &hosts, |_, host| host.ask(&mut records.series))?;
    records.end_s = [alone.end()?, many.end()?];
    Ok(records)
}

/// Waits until threads without work have ended, and measures what the processes then use.
fn watch_idle(hosts: [&Host; 2], amounts: Amounts) -> Result<[Usage; 2]> {
    let of_each = |what: fn(u32) -> Result<u64>| -> Result<Vec<u64>> {
        hosts.iter().map(|host| what(host.daemon.pid())).collect()
    };
    let Amounts { settle, idle, .. } = amounts;
    let bar = rounds::bar("idle", settle.as_secs());
    let (mut before, mut since) = (of_each(proc::threads)?, Instant::now());
    while since.elapsed() < settle {
        interrupt::sleep(PAUSE)?;
        bar.set_position(since.elapsed().as_secs());
        let now = of_each(proc::threads)?;
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    let before = of_each(proc::ticks)?;
    interrupt::sleep(idle)?;
    let after = of_each(proc::ticks)?;
    bar.finish_and_clear();
    let mut usages = [hosts[0].usage()?, hosts[1].usage()?];
    for (usage, (before, after)) in usages.iter_mut().zip(before.into_iter().zip(after)) {
        usage.ticks = after - before;
    }
    Ok(usages)
}

fn write(
    rounds: u32,
    seed: u64,
    amounts: Amounts,
    ([alone, many], bare): ([&Host; 2], &BareServer),
    series: &mut Series,
) -> Result<()> {
    let turns: Vec<(&str, Placement, Files)> = WRITES
        .into_iter()
        .zip(Placement::FIXED)
        .flat_map(|(row, placement)| Files::ALL.map(|files| (row, placement, files)))
        .collect();
    rounds::run("many", rounds, &turns, |round, (row, placement, files)| {
        let seed = seed.wrapping_add(u64::from(round));
        let one = Random::new(seed).below(amounts.volumes as u64) as usize;
        let (server, chosen) = match files {
            Files::Single => (alone.daemon.pid(), &alone.files[one..=one]),
            Files::OfOneVolume => (alone.daemon.pid(), &alone.files[..]),
            Files::OfOneOfMany => (many.daemon.pid(), &many.files[one..=one]),
            Files::OfAll => (many.daemon.pid(), &many.files[..]),
            Files::BareSingle => (bare.pid(), &bare.files[one..=one]),
            Files::BareOfAll => (bare.pid(), &bare.files[..]),
        };
        let us = overwrite(chosen, server, *placement, amounts.writes, seed).with_context(|| files.name())?;
        series.add(&p50(row), files.name(), quantile(&us, 0.5));
        series.add(&p99(row), files.name(), quantile(&us, 0.99));
        Ok(())
    })
}
