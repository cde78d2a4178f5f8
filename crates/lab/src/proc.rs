//! Memory, threads and CPU time of processes, from `/proc`.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::threads::beside;

/// A kind of memory of the process in bytes, by its name in `/proc/PID/status`.
pub(crate) fn memory(pid: u32, kind: &str) -> Result<u64> {
    let bytes = kib_line(&format!("/proc/{pid}/status"), kind)?;
    ensure!(bytes > 0, "process {pid} has no memory");
    Ok(bytes)
}

/// A line of `/proc/meminfo` in bytes.
pub(crate) fn meminfo(name: &str) -> Result<u64> {
    kib_line("/proc/meminfo", name)
}

/// The bytes of the line `name: N kB`.
fn kib_line(path: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.with_context(|| format!("{path} has no {name}"))? << 10)
}

/// Descriptors that the process has open.
pub(crate) fn open_descriptors(pid: u32) -> Result<u64> {
    entries(pid, "fd")
}

pub(crate) fn threads(pid: u32) -> Result<u64> {
    entries(pid, "task")
}

fn entries(pid: u32, folder: &str) -> Result<u64> {
    let list = fs::read_dir(format!("/proc/{pid}/{folder}"));
    Ok(list.with_context(|| format!("cannot list {folder} of process {pid}"))?.count() as u64)
}

/// CPU time of the process so far, in clock ticks.
pub(crate) fn ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let stat = stat.with_context(|| format!("cannot read the CPU time of process {pid}"))?;
    // The name in parentheses may contain anything. The first field after it is the state, utime is the twelfth.
    let (_, fields) = stat.rsplit_once(')').context("there is no name in it")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    Ok(number(11).context("no utime")? + number(12).context("no stime")?)
}

/// Does `work`, and returns the most that `look` has seen meanwhile.
pub(crate) fn most<T>(look: impl Fn() -> Result<u64> + Send, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    /// Time between two looks.
    const PERIOD: Duration = Duration::from_millis(20);
    let watch = move |stop: &AtomicBool| -> Result<u64> {
        let mut most = look()?;
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(PERIOD);
            most = most.max(look()?);
        }
        Ok(most)
    };
    let (done, most) = beside([watch], |_| work())?;
    Ok((done, most.into_iter().max().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn this_process_has_memory_descriptors_threads_and_cpu_time() {
        let (pid, start) = (std::process::id(), Instant::now());
        assert!(memory(pid, "VmHWM").unwrap() > 1 << 20 && open_descriptors(pid).unwrap() >= 3);
        assert!(threads(pid).unwrap() > 1);
        let before = ticks(pid).unwrap();
        while ticks(pid).unwrap() == before {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn lines_are_found_by_their_whole_name() {
        assert!(meminfo("Cached").unwrap() > 0 && meminfo("Cach").is_err());
    }
}
