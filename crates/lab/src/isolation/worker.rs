//! A process of the experiment, from the inside and as its parent sees it: it waits to be moved into its cgroup, works, and
//! reports what it measured.
//!
//! The protocol is lines. A first line on standard input starts the work and the end of input stops it, so the process ends
//! with its parent. On standard output each line is a JSON object: a victim prints one for each write, a hog one every 50 ms
//! with the bytes that it has written so far.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use rustix::fs::OFlags;
use serde_json::{Value, json};

use crate::cgroups::Cgroup;
use crate::fuse::lab;
use crate::harness::mb_per_s;
use crate::harness::process::Process;
use crate::harness::threads::join;

/// The size of a victim's writes, and their usual period.
const BEAT_BYTES: usize = 64 << 10;
const PERIOD_MS: u64 = 20;
/// The size of a hog's writes.
const BLOCK_BYTES: usize = 1 << 20;
/// A truncating hog empties its file at this size.
const TRUNCATED_BYTES: u64 = 64 << 20;
const MARK: Duration = Duration::from_millis(50);
/// Alignment of the memory for direct writes.
const ALIGNMENT: usize = 4096;

/// The work of a process.
#[derive(Copy, Clone, Eq, PartialEq, Debug, ValueEnum)]
pub(crate) enum Role {
    /// 64 KiB and fsync in each period.
    Sync,
    /// 64 KiB in each period.
    Write,
    /// Overwrites its whole file, again and again.
    Overwrite,
    /// The same with O_DIRECT.
    Direct,
    /// Writes a new file up to its size, removes it, and begins again.
    Extend,
    /// Writes a file, empties it, and begins again.
    Truncate,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArguments {
    #[arg(value_enum)]
    pub(crate) role: Role,
    /// The file; each of several threads appends its number to the name
    pub(crate) file: PathBuf,
    /// Size of each file
    #[arg(long)]
    pub(crate) bytes: u64,
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// The period of a victim
    #[arg(long, default_value_t = PERIOD_MS)]
    pub(crate) period_ms: u64,
}

impl ClientArguments {
    /// The arguments for one thread with the usual period.
    pub(crate) fn new(role: Role, file: PathBuf, bytes: u64) -> Self {
        Self { role, file, bytes, threads: 1, period_ms: PERIOD_MS }
    }

    /// The command line that [`run_client`] gets these arguments from.
    fn words(&self) -> Vec<OsString> {
        let Self { role, file, bytes, threads, period_ms } = self;
        let name = role.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let mut words: Vec<OsString> = vec!["client".into(), name.into(), file.into()];
        for (option, value) in [("--bytes", *bytes), ("--threads", *threads as u64), ("--period-ms", *period_ms)] {
            words.extend([option.into(), value.to_string().into()]);
        }
        words
    }
}

/// Works until standard input ends.
pub(crate) fn run_client(arguments: &ClientArguments) -> Result<()> {
    static STOP: AtomicBool = AtomicBool::new(false);
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line).context("cannot read from the parent process")? == 0 {
        return Ok(());
    }
    thread::spawn(|| {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new()); // an error also ends the work
        STOP.store(true, Ordering::Relaxed);
    });
    match arguments.role {
        Role::Sync | Role::Write => beat(arguments, &STOP),
        Role::Overwrite | Role::Direct | Role::Extend | Role::Truncate => hog(arguments, &STOP),
    }
}

fn print(line: &serde_json::Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("the parent process has closed the pipe")
}

fn beat(arguments: &ClientArguments, stop: &AtomicBool) -> Result<()> {
    let file = open(&arguments.file, false)?;
    let (bytes, mut next, mut number) = (vec![3; BEAT_BYTES], Instant::now(), 0);
    // Once at least, also if the turn is over before this process has begun.
    loop {
        let start = Instant::now();
        file.write_all_at(&bytes, number * BEAT_BYTES as u64 % arguments.bytes).context("cannot write")?;
        let written = start.elapsed();
        if arguments.role == Role::Sync {
            file.sync_all().context("cannot sync")?;
        }
        let whole = start.elapsed();
        print(&json!({ "write_ms": written.as_secs_f64() * 1e3, "whole_ms": whole.as_secs_f64() * 1e3 }))?;
        number += 1;
        next = (next + Duration::from_millis(arguments.period_ms)).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn hog(arguments: &ClientArguments, stop: &AtomicBool) -> Result<()> {
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        let (start, written) = (Instant::now(), &written);
        let one = |number: usize| {
            let path = match arguments.threads {
                1 => arguments.file.clone(),
                _ => PathBuf::from(format!("{}-{number}", arguments.file.display())),
            };
            scope.spawn(move || stream(arguments, &path, written, stop))
        };
        let threads: Vec<_> = (0..arguments.threads).map(one).collect();
        let has_ended = || stop.load(Ordering::Relaxed) || threads.iter().any(thread::ScopedJoinHandle::is_finished);
        let mut marks = 0;
        // A rate needs two, also if the turn is over before this process has begun.
        while marks < 2 || !has_ended() {
            thread::sleep(MARK);
            print(&json!({ "at_s": start.elapsed().as_secs_f64(), "bytes": written.load(Ordering::Relaxed) }))?;
            marks += 1;
        }
        threads.into_iter().try_for_each(join)
    })
}

fn stream(arguments: &ClientArguments, path: &Path, written: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let (role, mut offset_bytes) = (arguments.role, 0);
    let memory = vec![2; BLOCK_BYTES + ALIGNMENT];
    let block = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..BLOCK_BYTES];
    let size = if role == Role::Truncate { TRUNCATED_BYTES } else { arguments.bytes };
    let mut file = open(path, role == Role::Direct)?;
    while !stop.load(Ordering::Relaxed) {
        file.write_all_at(block, offset_bytes).context("cannot write")?;
        written.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        offset_bytes += BLOCK_BYTES as u64;
        if offset_bytes >= size {
            offset_bytes = 0;
            match role {
                Role::Extend => {
                    std::fs::remove_file(path).context("cannot remove the file")?;
                    file = open(path, false)?;
                }
                Role::Truncate => file.set_len(0).context("cannot empty the file")?,
                Role::Sync | Role::Write | Role::Overwrite | Role::Direct => {}
            }
        }
    }
    Ok(())
}

fn open(path: &Path, direct: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    if direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    options.open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// A process in its cgroup, started before its first write. Killed when dropped.
pub(crate) struct Worker {
    process: Process,
    lines: JoinHandle<Result<Vec<Value>>>,
}

/// The lines that a process has printed.
pub(crate) struct Reported(Vec<Value>);

/// This program. It is looked for once, because that may build it.
fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    match PROGRAM.get() {
        Some(program) => Ok(program),
        None => lab().map(|program| PROGRAM.get_or_init(|| program).as_path()),
    }
}

impl Worker {
    pub(crate) fn start(cgroup: &Cgroup, work: &ClientArguments) -> Result<Self> {
        let mut command = Command::new(program()?);
        command.args(work.words());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start_with_input(&mut command)?;
        let out = process.child().stdout.take().context("its output is a pipe")?;
        let lines = std::thread::spawn(move || {
            let parse = |line: std::io::Result<String>| Ok(serde_json::from_str(&line?)?);
            BufReader::new(out).lines().map(parse).collect()
        });
        let members = cgroup.members();
        fs::write(&members, process.pid().to_string())
            .with_context(|| format!("cannot move a process to {}", members.display()))?;
        let input = process.child().stdin.as_mut().context("its input is a pipe")?;
        input.write_all(b"start\n").context("cannot start the work of a process")?;
        Ok(Self { process, lines })
    }

    /// Lets it end, and returns what it has reported.
    ///
    /// # Errors
    /// The process failed; the message is its own.
    pub(crate) fn stop(mut self) -> Result<Reported> {
        drop(self.process.child().stdin.take());
        let status = self.process.wait("a process does not end")?;
        if !status.success() {
            let mut errors = String::new();
            self.process.child().stderr.take().context("its errors go to a pipe")?.read_to_string(&mut errors)?;
            anyhow::bail!("a process failed: {}", errors.trim());
        }
        Ok(Reported(self.lines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?))
    }
}

impl Reported {
    /// A figure of every line that has it.
    pub(crate) fn all(&self, name: &str) -> Vec<f64> {
        self.0.iter().filter_map(|line| line.get(name)?.as_f64()).collect()
    }

    /// MB/s of a hog, from `warm_up` after its start until its last line.
    ///
    /// # Errors
    /// There are no two lines in this time.
    pub(crate) fn rate(&self, warm_up: Duration) -> Result<f64> {
        let (at, bytes) = (self.all("at_s"), self.all("bytes"));
        let marks: Vec<(f64, f64)> = at.into_iter().zip(bytes).collect();
        let first = marks.iter().find(|(at, _)| *at >= warm_up.as_secs_f64());
        let (Some((from, before)), Some((to, after))) = (first, marks.last()) else {
            anyhow::bail!("a hog reported nothing");
        };
        ensure!(to > from, "a hog reported too little");
        Ok(mb_per_s((after - before) as u64, Duration::from_secs_f64(to - from)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rate_begins_after_the_warm_up() {
        let mark = |at_s: f64, bytes: u64| json!({ "at_s": at_s, "bytes": bytes });
        let reported = Reported(vec![mark(0.1, 90_000_000), mark(0.5, 100_000_000), mark(1.5, 130_000_000)]);
        assert_eq!(reported.rate(Duration::from_millis(400)).unwrap(), 30.0);
        assert!(reported.rate(Duration::from_secs(1)).is_err() && reported.rate(Duration::from_secs(2)).is_err());
    }
}
