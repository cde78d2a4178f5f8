//! A process of the experiment, as its parent sees it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::client::ClientArguments;
use crate::cgroups::Cgroup;
use crate::fuse::lab;
use crate::harness::mb_per_s;
use crate::harness::process::Process;

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
