//! `takeover`: the pause that a program sees when the process of a kept mount is killed or upgraded, beside unmounting and
//! mounting again.
//!
//! A kept mount stays for all rounds. Before each kill, half of its cache is made dirty, or nothing is. A daemon with many
//! volumes stays too, and some data of each volume is dirty.

mod in_a_row;
mod program;
mod volumes;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use self::program::Program;
use crate::fuse::{MERGERFS, Mounted, OURS, Server, arena_in, mountpoint_in, on_path, slackwater};
use crate::harness::{Bound, Estimate, Options, Report, Series, Source, Table, rounds};
use crate::programs;
use crate::scratch::Scratch;

const ABOUT: &str = "The pause that a program sees when the process of a mount with `--keep` is killed or upgraded, beside unmounting and mounting again.";

const KILL: &str = "killed, with --keep";
const UPGRADE: &str = "upgraded";
const REMOUNT: &str = "unmount, mount";
const MERGERFS_REMOUNT: &str = "mergerfs: the same";

/// Upper bound of the pause with the larger cache and half of it dirty.
const PAUSE_MS: f64 = 1000.0;
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

/// Runs the experiment.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let home = Scratch::in_folder(&options.dir)?;
    let ours = Server::new(OURS, slackwater()?).with_options(&OPTIONS);
    let kept = ours.with_options(&[&OPTIONS[..], &["--keep"]].concat());
    let mergerfs = on_path(MERGERFS).map(|program| Server::new(MERGERFS, program));
    let mut report = Report::new("takeover", ABOUT, options);
    let mut series = Series::default();
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
                (KILL, _) => killed(&mounted, place)?,
                (UPGRADE, _) => upgraded(&mounted, kept.program(), place)?,
                (MERGERFS_REMOUNT, Some(server)) => remounted(server, &other, place)?,
                _ => remounted(&ours, &own, place)?,
            };
            series.add(place.row, turn, pause.as_secs_f64() * 1e3);
            Ok(())
        })?;
        mounted.umount().context("the kept mount")?;
    }

    in_a_row::measure(options, &kept, &home.subdirectory("row")?, &mut series)?;
    volumes::measure(options, &home, &mut series)?;

    let columns = [KILL, UPGRADE, REMOUNT, MERGERFS_REMOUNT];
    let headings = columns.map(|column| format!("{column} | longest")).join(" | ");
    let mut table = Table::new("Pause of a program, ms: median and longest", format!("| {headings}"));
    for row in PLACES.iter().map(|place| place.row).chain([in_a_row::ROW, volumes::ROW]) {
        table.row(row).figures(columns.iter().flat_map(|column| {
            let pauses = series.of(row, column);
            [pauses.median(), pauses.quantile(1.0)]
        }));
    }
    report.table(table);
    report.finding(Source::Ours, sentence(&series));
    report.note(
        "The program writes 512 bytes and looks at the file's attributes, again and again. With --keep, its longest call counts. Without, \
         calls fail: what counts is the time from the start of the unmount until the first call that succeeds after the mount. Under \
         load, three such programs run beside one that writes 32 MiB and syncs it, and the program counts that waited longest.",
    );
    if mergerfs.is_none() {
        report.note("mergerfs is not installed.");
    }
    report.figure("figures", series.json());
    let pauses = series.of(LARGE, KILL);
    report.target(format!("{LARGE}: median pause, ms"), Bound::AtMost(PAUSE_MS), pauses.estimate());
    for (row, turn, of, bound_ms) in [
        (LARGE, KILL, "", PAUSE_MS),
        (LARGE, UPGRADE, " of an upgrade", PAUSE_MS),
        (in_a_row::ROW, UPGRADE, " of an upgrade", in_a_row::PAUSE_MS),
        (volumes::ROW, KILL, "", volumes::PAUSE_MS),
    ] {
        let longest = series.of(row, turn).quantile(1.0).map(Estimate::exactly);
        report.target(format!("{row}: longest pause{of}, ms"), Bound::AtMost(bound_ms), longest);
    }
    Ok(report)
}

fn sentence(series: &Series) -> Option<String> {
    let pauses = series.of(LARGE, KILL);
    let [median, longest] = [pauses.median()?, pauses.quantile(1.0)?].map(crate::harness::figure);
    Some(format!("With {LARGE}, a kill pauses a program for {median} ms, at most {longest} ms."))
}

/// Makes an object volume in a directory below `home`, and mounts it.
fn mount_object_volume(server: &Server, home: &Path, cache_bytes: u64) -> Result<Mounted> {
    let url = format!("file://{}", home.join("objects").display());
    programs::run(Command::new(server.program()).args(["mkfs", &url]))?;
    let command = server.command(Path::new(&url), &mountpoint_in(home), cache_bytes, &arena_in(home));
    Mounted::start(server, command, home)
}

/// Writes as much as is to be dirty.
fn make_dirty(folder: &Path, bytes: u64) -> Result<()> {
    let block = vec![7; 1 << 20];
    let mut file = File::create(folder.join("dirty")).context("cannot create a file")?;
    (0..bytes >> 20).try_for_each(|_| file.write_all(&block)).context("cannot write")
}

/// The longest call around a kill.
fn killed(mounted: &Mounted, place: &Place) -> Result<Duration> {
    make_dirty(mounted.path(), place.dirty_bytes)?;
    let program = Program::start(mounted.path())?;
    kill_server(mounted.pid())?;
    program.only_pause()
}

/// The longest call around an upgrade, to the same program.
fn upgraded(mounted: &Mounted, program: &Path, place: &Place) -> Result<Duration> {
    make_dirty(mounted.path(), place.dirty_bytes)?;
    let user = Program::start(mounted.path())?;
    upgrade(mounted, program)?;
    user.only_pause()
}

/// Upgrades a mount to `program`.
fn upgrade(mounted: &Mounted, program: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["upgrade", "--program"]).arg(program).arg(mounted.path());
    let output = command.output().context("cannot start the upgrade")?;
    ensure!(output.status.success(), "the upgrade has failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Kills the process that serves for a keeper.
fn kill_server(keeper: u32) -> Result<()> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
    // Older ones have not quite ended.
    let newest = children.split_whitespace().next_back().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    kill_process(newest.context("the keeper has no child")?, Signal::KILL).context("cannot kill the server")
}

/// From the start of an unmount until a program can write again.
fn remounted(server: &Server, home: &Path, place: &Place) -> Result<Duration> {
    let mounted = Mounted::new(server, home, place.cache_bytes)?;
    make_dirty(mounted.path(), place.dirty_bytes)?;
    program::prepare(mounted.path())?;
    let start = std::time::Instant::now();
    mounted.umount()?;
    let again = Mounted::new(server, home, place.cache_bytes)?;
    program::call(again.path())?;
    let pause = start.elapsed();
    again.umount()?;
    Ok(pause)
}
