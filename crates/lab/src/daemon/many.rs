//! A daemon with many volumes beside one with a single volume, and mounts whose server does nothing.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use slackwater_testkit::Random;

use super::bare::BareServer;
use super::process::{Daemon, Volume};
use crate::harness::placement::Placement;
use crate::harness::{AtMost, Report, Series, Source, Table, amounts, axis, ms, p50, p99, rounds, time_us};
use crate::scratch::Scratch;
use crate::{interrupt, proc, rig};

const PAGE: usize = 4096;
/// Pages of each file.
const PAGES: u64 = 4;
/// Nothing is written back while small writes are measured, and no writer is throttled.
const CONFIG: &str = "cache = \"256MiB\"\ndirty-ratio = 75\ndirty-expire = \"1h\"\n";
/// Time between two looks at the threads.
const PAUSE: Duration = Duration::from_millis(100);

const LIST: &str = "list over the socket, ms";
const LS: &str = "slackwater ls, ms";
const MOUNT: &str = "mount over the socket, ms";
const UMOUNT: &str = "unmount over the socket, ms";
const STATUS: &str = "status of one over the socket, ms";
/// Resources of the process with all its volumes idle, and its CPU time while it was watched.
const THREADS: &str = "threads, idle";
pub(super) const DESCRIPTORS: &str = "descriptors, idle";
const MEMORY: &str = "anonymous memory, idle, KiB";
const TICKS: &str = "CPU time, idle, ticks";
/// The start with all volumes mounted, and the end, when all have dirty data.
const START: &str = "start, s";
const END: &str = "end, s";
pub(super) const ASKED: [&str; 5] = [LIST, LS, STATUS, MOUNT, UMOUNT];

/// The two daemons.
pub(super) const ALONE: &str = "one volume";
pub(super) const MANY: &str = "many volumes";

axis! {
    /// Which files small writes go to.
    enum Files {
        Single = "a file of the only volume",
        /// Files of the only volume, as many as there are volumes elsewhere.
        OfOneVolume = "many files of the only volume",
        /// A file of one volume, while the others are idle.
        OfOneOfMany = "a file of one of many volumes",
        OfAll = "a file of each of many volumes",
        BareSingle = "bare server, a file of one mount",
        BareOfAll = "bare server, a file of each of many mounts",
    }
}

impl Files {
    /// The files that they are compared with.
    fn single(self) -> Self {
        match self {
            Self::Single | Self::OfOneVolume | Self::OfOneOfMany | Self::OfAll => Self::Single,
            Self::BareSingle | Self::BareOfAll => Self::BareSingle,
        }
    }
}

/// Client and server on one CPU, and on two; in the order of [`Placement::FIXED`].
const WRITES: [&str; 2] = ["4 KiB write", "4 KiB write, 2 CPUs"];

amounts! {
    /// How much of everything.
    pub(super) struct Amounts {
        volumes: usize = 1000, 200;
        /// Writes in a turn.
        writes: usize = 4000, 1500;
        /// A daemon is idle when its number of threads has not changed for so long: a thread without work ends after 10 s at
        /// most.
        settle: Duration = Duration::from_secs(11), Duration::from_secs(11);
        /// How long idle daemons are watched.
        idle: Duration = Duration::from_secs(10), Duration::from_secs(3);
    }
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

    /// Makes each request once.
    fn ask(&self, series: &mut Series) -> Result<()> {
        let mut time = |row, work: &dyn Fn() -> Result<()>| -> Result<()> {
            let start = Instant::now();
            work().context(row)?;
            series.add(row, self.name, ms(start.elapsed()));
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
pub(super) fn measure(
    rounds: u32,
    seed: u64,
    amounts: Amounts,
    home: &Scratch,
    program: &Path,
    series: &mut Series,
) -> Result<()> {
    rig::raise_file_limit();
    let files = amounts.volumes;
    let mut alone = Host::new(program, home, ALONE, 1, files)?;
    let mut many = Host::new(program, home, MANY, amounts.volumes, files)?;
    for host in [&alone, &many] {
        series.add(START, host.name, host.daemon.start_time.as_secs_f64());
    }
    watch_idle([&alone, &many], amounts, series)?;
    alone.open(files)?;
    many.open(files)?;
    let bare = BareServer::start(&home.subdirectory("bare")?, amounts.volumes)?;
    write(rounds, seed, amounts, ([&alone, &many], &bare), series)?;
    drop(bare);
    // Each program that is started would close all of them, with a request for each.
    alone.files.clear();
    many.files.clear();
    let hosts = [&alone, &many];
    rounds::run("requests", rounds, &hosts, |_, host| host.ask(series))?;
    for host in [alone, many] {
        series.add(END, host.name, host.end()?);
    }
    Ok(())
}

/// Waits until threads without work have ended, and measures what the processes then use.
fn watch_idle(hosts: [&Host; 2], amounts: Amounts, series: &mut Series) -> Result<()> {
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
    for ((host, before), after) in hosts.into_iter().zip(before).zip(after) {
        let pid = host.daemon.pid();
        series.add(TICKS, host.name, (after - before) as f64);
        series.add(THREADS, host.name, proc::threads(pid)? as f64);
        series.add(DESCRIPTORS, host.name, proc::open_descriptors(pid)? as f64);
        series.add(MEMORY, host.name, proc::memory(pid, "RssAnon")? as f64 / 1024.0);
    }
    Ok(())
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
        series.add_latencies(row, files.name(), &us);
        Ok(())
    })
}

/// Puts what was seen into `report`.
pub(super) fn publish(amounts: Amounts, report: &mut Report) {
    let (series, volumes) = (&report.series, amounts.volumes);
    let rows = || WRITES.into_iter().flat_map(|row| Files::ALL.map(|files| (row, files)));
    let mut writes =
        Table::new(format!("Overwriting 4 KiB; many: {volumes}"), " | p50 us | p99 | p50 by a single mount's");
    for (row, files) in rows() {
        let ratio = series.ratio(&p50(row), files.name(), files.single().name()).filter(|_| files != files.single());
        let cells = [p50(row), p99(row)].map(|row| series.median(&row, files.name()));
        writes.row(format!("{row}: {}", files.name())).figures(cells).estimate(ratio);
    }
    let title = format!("A daemon with one volume, and one with {volumes}; watched for {} s", amounts.idle.as_secs());
    let mut process = Table::new(title, " | one volume | many | each of the others");
    for row in ASKED.into_iter().chain([THREADS, DESCRIPTORS, MEMORY, TICKS, START, END]) {
        let [alone, many] = [ALONE, MANY].map(|subject| series.median(row, subject));
        let each = many.zip(alone).map(|(many, alone)| (many - alone) / (volumes - 1) as f64);
        let is_held = [THREADS, DESCRIPTORS, MEMORY].contains(&row);
        process.row(row).figures([alone, many, each.filter(|_| is_held)]);
    }
    let us = rows().map(|(row, files)| (format!("{row}: {}", files.name()), series.median(&p50(row), files.name())));
    let us: Vec<_> = us.collect();
    let ratios = rows().filter(|(_, files)| matches!(files, Files::OfOneOfMany | Files::OfAll)).map(|(row, files)| {
        let title = format!("{row}: {}, p50 by the only volume's", files.name());
        (title, series.ratio(&p50(row), files.name(), Files::Single.name()))
    });
    let ratios: Vec<_> = ratios.collect();
    report.finding(Source::Ours, format!("p50 in us, with {volumes} as many"), us);
    report.table(writes);
    report.table(process);
    for (title, ratio) in ratios {
        report.target(title, AtMost(1.15), ratio);
    }
    report.target(format!("{LIST}, of many"), AtMost(50.0), report.series.estimate(LIST, MANY));
    let ticks = report.series.estimate(TICKS, MANY);
    report.target("ticks of CPU time of many idle volumes", AtMost(0.0), ticks);
    report.note(
        "Small writes: medians of the rounds; by a single mount's: medians of the rounds' ratios, 95 % intervals; the bare server's by \
         its own single mount. Client and server on one CPU, or on two where the row says so. Nothing is written back meanwhile. A \
         write to a file of each of many volumes makes the same system calls as any other, but on data that is in no cache of the CPU. \
         The kernel has structures for each mount, and the daemon for each volume.",
    );
}
