//! `takeover`: the pause that a program sees when the process of a kept mount is killed or upgraded, beside unmounting and
//! mounting again.
//!
//! A kept mount stays for all rounds. Before each kill, half of its cache is made dirty, or nothing is. A daemon with many
//! volumes stays too, and some data of each volume is dirty. Finally takeovers follow one another on one mount, under programs
//! that go on all the time.

mod program;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use self::program::Program;
use crate::daemon::{Daemon, Volume};
use crate::files::write_file;
use crate::fuse::{MERGERFS, Mounted, OURS, Server, arena_in, mountpoint_in, on_path, slackwater};
use crate::harness::threads::beside;
use crate::harness::{AtMost, Estimate, Options, Report, Series, Source, Table, ms, rounds};
use crate::programs;
use crate::scratch::{Scratch, make_directory};

const KILL: &str = "killed, with --keep";
const UPGRADE: &str = "upgraded";
const REMOUNT: &str = "unmount, mount";
const MERGERFS_REMOUNT: &str = "mergerfs: the same";

/// Dirty data stays dirty until the kill.
const OPTIONS: [&str; 6] = ["--dirty-ratio", "75", "--dirty-expire", "1h", "--transport", "dev"];

/// A cache, whether half of it is dirty, and whether the source is an object volume in a directory.
struct Place {
    row: &'static str,
    cache_bytes: u64,
    dirty_bytes: u64,
    is_object: bool,
}

const PLACES: [Place; 5] = [
    Place { row: "256 MiB, nothing dirty", cache_bytes: 256 << 20, dirty_bytes: 0, is_object: false },
    Place { row: "256 MiB, half dirty", cache_bytes: 256 << 20, dirty_bytes: 128 << 20, is_object: false },
    Place { row: "2 GiB, nothing dirty", cache_bytes: 2 << 30, dirty_bytes: 0, is_object: false },
    Place { row: LARGE, cache_bytes: 2 << 30, dirty_bytes: 1 << 30, is_object: false },
    Place { row: OBJECT, cache_bytes: 256 << 20, dirty_bytes: 128 << 20, is_object: true },
];
const OBJECT: &str = "256 MiB, half dirty, object volume";
const LARGE: &str = "2 GiB, half dirty";

/// The takeovers in a row: the kills and as many upgrades, in a full and in a quick run.
const IN_A_ROW: &str = "256 MiB, 100 in a row under load";
const TAKEOVERS: (u32, u32) = (100, 20);
const PROGRAMS: usize = 3;
const STREAM_BYTES: u64 = 32 << 20;

/// The daemon with many volumes.
const DAEMON: &str = "a daemon with 200 volumes, 1 MiB of each dirty";
const VOLUMES: usize = 200;
const VOLUME_DIRTY_BYTES: u64 = 1 << 20;
const CONFIG: &str = "cache = \"1GiB\"\ndirty-ratio = 75\ndirty-expire = \"1h\"\n";

/// Runs the experiment.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let home = Scratch::in_folder(&options.dir)?;
    let ours = Server::new(OURS, slackwater()?).with_options(&OPTIONS);
    let kept = ours.with_options(&[&OPTIONS[..], &["--keep"]].concat());
    let mergerfs = on_path(MERGERFS).map(|program| Server::new(MERGERFS, program));
    for (place, number) in PLACES.iter().zip(0..) {
        let folder = |name: &str| home.subdirectory(&format!("{name}-{number}"));
        let mounted = match place.is_object {
            false => Mounted::new(&kept, &folder("kept")?, place.cache_bytes)?,
            true => mount_object_volume(&kept, &folder("kept")?, place.cache_bytes)?,
        };
        let (own, other) = (folder("ours")?, folder("other")?);
        let mut turns = vec![KILL, UPGRADE];
        if !place.is_object {
            turns.push(REMOUNT);
            turns.extend(mergerfs.iter().map(|_| MERGERFS_REMOUNT));
        }
        rounds::run(place.row, options.rounds(), &turns, |_, turn| {
            let pause = match (*turn, &mergerfs) {
                (MERGERFS_REMOUNT, Some(server)) => remounted(server, &other, place)?,
                (REMOUNT, _) => remounted(&ours, &own, place)?,
                _ => {
                    make_dirty(mounted.path(), place.dirty_bytes)?;
                    let program = Program::start(mounted.path())?;
                    take_over(turn, &mounted, kept.program())?;
                    program.only_pause()?
                }
            };
            report.series.add(place.row, turn, ms(pause));
            Ok(())
        })?;
        mounted.umount().context("the kept mount")?;
    }
    let takeovers = options.pick(TAKEOVERS.0, TAKEOVERS.1);
    measure_in_a_row(takeovers, &kept, &home.subdirectory("row")?, &mut report.series)?;
    measure_daemon(options.rounds(), &home, &mut report.series)?;
    if mergerfs.is_none() {
        report.note("mergerfs is not installed.");
    }
    publish(report);
    Ok(())
}

/// Adds the table and the targets.
fn publish(report: &mut Report) {
    let columns = [KILL, UPGRADE, REMOUNT, MERGERFS_REMOUNT];
    let headings = columns.map(|column| format!("{column} | longest")).join(" | ");
    let mut table = Table::new("Pause of a program, ms: median and longest", format!("| {headings}"));
    let longest = |series: &Series, row, column| series.of(row, column).quantile(1.0);
    for row in PLACES.iter().map(|place| place.row).chain([IN_A_ROW, DAEMON]) {
        let pauses = |column| [report.series.median(row, column), longest(&report.series, row, column)];
        table.row(row).figures(columns.map(pauses).concat());
    }
    report.table(table);
    let (median, most) = (report.series.median(LARGE, KILL), longest(&report.series, LARGE, KILL));
    report.finding(Source::Ours, format!("Pause by a kill, {LARGE}, ms"), [("median", median), ("longest", most)]);
    let estimate = report.series.estimate(LARGE, KILL);
    report.target(format!("{LARGE}: median pause, ms"), AtMost(1000.0), estimate);
    for (row, turn, of, bound_ms) in [
        (LARGE, KILL, "", 1000.0),
        (LARGE, UPGRADE, " of an upgrade", 1000.0),
        (IN_A_ROW, UPGRADE, " of an upgrade", 1000.0),
        (DAEMON, KILL, "", 2000.0),
    ] {
        let longest = longest(&report.series, row, turn).map(Estimate::exactly);
        report.target(format!("{row}: longest pause{of}, ms"), AtMost(bound_ms), longest);
    }
    report.note(
        "The program writes 512 bytes and looks at the file's attributes, again and again. With --keep, its longest call counts. Without, \
         calls fail: what counts is the time from the start of the unmount until the first call that succeeds after the mount. Under \
         load, three such programs run beside one that writes 32 MiB and syncs it, and the program counts that waited longest.",
    );
}

/// Makes an object volume in a directory below `home`, and mounts it.
fn mount_object_volume(server: &Server, home: &Path, cache_bytes: u64) -> Result<Mounted> {
    let url = format!("file://{}", home.join("objects").display());
    programs::run(Command::new(server.program()).args(["mkfs", &url]))?;
    let command = server.command(Path::new(&url), &mountpoint_in(home), cache_bytes, &arena_in(home));
    Mounted::start(server, command, home)
}

/// Makes a file of so many bytes, which are dirty.
fn make_dirty(folder: &Path, bytes: u64) -> Result<File> {
    write_file(&folder.join("dirty"), bytes)
}

/// Kills or upgrades a kept mount, to the same program.
fn take_over(turn: &str, mounted: &Mounted, program: &Path) -> Result<()> {
    if turn == KILL {
        return kill_server(mounted.pid());
    }
    programs::run(Command::new(program).args(["upgrade", "--program"]).arg(program).arg(mounted.path()))
}

/// Kills the process that serves for a keeper.
fn kill_server(keeper: u32) -> Result<()> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    // Older ones have not quite ended.
    let newest = children.split_whitespace().next_back().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    kill_process(newest.context("the keeper has no child")?, Signal::KILL).context("cannot kill the server")
}

/// Measures the time from the start of an unmount until a program can write again.
fn remounted(server: &Server, home: &Path, place: &Place) -> Result<Duration> {
    let mounted = Mounted::new(server, home, place.cache_bytes)?;
    make_dirty(mounted.path(), place.dirty_bytes)?;
    program::prepare(mounted.path())?;
    let start = Instant::now();
    mounted.umount()?;
    let again = Mounted::new(server, home, place.cache_bytes)?;
    program::call(again.path())?;
    let pause = start.elapsed();
    again.umount()?;
    Ok(pause)
}

/// Adds the pauses of takeovers in a row: each is that of the program that waited longest.
fn measure_in_a_row(count: u32, kept: &Server, home: &Path, series: &mut Series) -> Result<()> {
    let mounted = Mounted::new(kept, home, PLACES[0].cache_bytes)?;
    let folders = (0..PROGRAMS).map(|number| mounted.path().join(number.to_string())).collect::<Vec<PathBuf>>();
    let programs = folders.iter().map(|folder| {
        make_directory(folder)?;
        Program::start(folder)
    });
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let stream = |stop: &AtomicBool| -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            make_dirty(mounted.path(), STREAM_BYTES)?.sync_all().context("cannot sync")?;
        }
        Ok(())
    };
    beside([stream], |_| {
        for turn in (0..count).flat_map(|_| [KILL, UPGRADE]) {
            take_over(turn, &mounted, kept.program())?;
            let pauses = programs.iter().map(Program::pause).collect::<Result<Vec<_>>>()?;
            series.add(IN_A_ROW, turn, ms(pauses.into_iter().max().unwrap_or_default()));
        }
        programs.into_iter().try_for_each(Program::end)
    })?;
    mounted.umount().context("the mount of many takeovers").map(drop)
}

/// Adds the pauses of a daemon with many volumes.
fn measure_daemon(count: u32, home: &Scratch, series: &mut Series) -> Result<()> {
    let program = slackwater()?;
    let folder = home.subdirectory("volumes")?;
    let volumes =
        (0..2 * VOLUMES).map(|number| Volume::make(&folder, format!("v{number}"))).collect::<Result<Vec<_>>>()?;
    let (of_kept, of_other) = volumes.split_at(VOLUMES);
    let config =
        |volumes: &[Volume]| volumes.iter().map(Volume::table).fold(CONFIG.to_owned(), |config, table| config + &table);
    let kept = Daemon::start(&program, &config(of_kept), &["--keep"], "TERM")?;
    rounds::run(DAEMON, count, &[KILL, REMOUNT], |_, turn| {
        let pause = if *turn == KILL {
            let program = Program::start(make_all_dirty(of_kept)?)?;
            kill_server(kept.pid())?;
            program.only_pause()?
        } else {
            // From the end of a daemon until a program can write again.
            let daemon = Daemon::start(&program, &config(of_other), &[], "TERM")?;
            let last = make_all_dirty(of_other)?;
            program::prepare(last)?;
            let start = Instant::now();
            daemon.end()?;
            let again = Daemon::start(&program, &config(of_other), &[], "TERM")?;
            program::call(last)?;
            let pause = start.elapsed();
            again.end()?;
            pause
        };
        series.add(DAEMON, turn, ms(pause));
        Ok(())
    })?;
    kept.end().context("the kept daemon").map(drop)
}

/// Makes some data of each volume dirty, and returns the mount point of the last one.
fn make_all_dirty(volumes: &[Volume]) -> Result<&Path> {
    volumes.iter().try_for_each(|volume| make_dirty(&volume.mountpoint, VOLUME_DIRTY_BYTES).map(drop))?;
    Ok(&volumes.last().context("there are no volumes")?.mountpoint)
}
