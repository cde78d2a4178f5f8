//! A process of the experiment, as whoever started it sees it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::client::{ClientArguments, Role};
use crate::cgroups::Cgroup;
use crate::quantity::mb_per_s;

/// Longest wait for a process to end that was told to: what it writes may have to wait for the disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// Started and in its cgroup, where it works from the first write on. Killed when dropped.
pub(super) struct Worker {
    child: Child,
    lines: Option<JoinHandle<Result<Vec<Value>>>>,
}

/// What a process told.
pub(super) struct Told(Vec<Value>);

impl Worker {
    /// Starts it in `cgroup`.
    pub(super) fn start(cgroup: &Cgroup, role: Role, file: &Path, bytes: u64, threads: usize) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(own);
        command.args(ClientArguments::words(role, file, bytes, threads));
        // A group of its own: Ctrl-C is for this process, whose end ends it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start a process")?;
        let out = child.stdout.take().context("it has an output")?;
        let lines = std::thread::spawn(move || {
            let parse = |line: std::io::Result<String>| Ok(serde_json::from_str(&line?)?);
            BufReader::new(out).lines().map(parse).collect()
        });
        let mut worker = Self { child, lines: Some(lines) };
        let members = cgroup.members();
        fs::write(&members, worker.child.id().to_string())
            .with_context(|| format!("cannot move a process to {}", members.display()))?;
        let input = worker.child.stdin.as_mut().context("it has an input")?;
        input.write_all(b"start\n").context("cannot start a process's work")?;
        Ok(worker)
    }

    /// Ends it.
    ///
    /// # Errors
    /// It failed: the message has what it said.
    pub(super) fn stop(mut self) -> Result<Told> {
        drop(self.child.stdin.take());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(start.elapsed() < PATIENCE, "a process does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        if !status.success() {
            let mut said = String::new();
            self.child.stderr.take().context("it has an error output")?.read_to_string(&mut said)?;
            anyhow::bail!("a process failed: {}", said.trim());
        }
        let lines = self.lines.take().context("it is stopped once")?;
        Ok(Told(lines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Told {
    /// A figure of every line that has it.
    pub(super) fn all(&self, name: &str) -> Vec<f64> {
        self.0.iter().filter_map(|line| line.get(name)?.as_f64()).collect()
    }

    /// MB/s of a hog, from `warm_up` after its start until its last line.
    ///
    /// # Errors
    /// It was too short.
    pub(super) fn rate(&self, warm_up: Duration) -> Result<f64> {
        let (at, bytes) = (self.all("at_s"), self.all("bytes"));
        let marks: Vec<(f64, f64)> = at.into_iter().zip(bytes).collect();
        let first = marks.iter().find(|(at, _)| *at >= warm_up.as_secs_f64());
        let (Some((from, before)), Some((to, after))) = (first, marks.last()) else {
            anyhow::bail!("a hog told nothing");
        };
        ensure!(to > from, "a hog told too little");
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
        let told = Told(vec![mark(0.1, 90_000_000), mark(0.5, 100_000_000), mark(1.5, 130_000_000)]);
        assert_eq!(told.rate(Duration::from_millis(400)).unwrap(), 30.0);
        assert!(told.rate(Duration::from_secs(1)).is_err() && told.rate(Duration::from_secs(2)).is_err());
    }
}
