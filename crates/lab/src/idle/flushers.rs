//! The activity of the flusher threads, as the kernel counts it.

use std::fs;
use std::ops::Sub;

use anyhow::{Context, Result, ensure};

/// The prefix of the names of flusher threads.
const NAME_PREFIX: &str = "sw-flush-";

/// Sums over all flusher threads of this process.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub(crate) struct Activity {
    pub(crate) threads: u64,
    /// Voluntary context switches: each wake-up ends with one.
    pub(crate) wake_ups: u64,
    /// Time on a CPU.
    pub(crate) cpu_ns: u64,
}

impl Activity {
    /// The sums until now.
    ///
    /// # Errors
    /// `/proc` cannot be read, or there is no flusher thread.
    pub(crate) fn now() -> Result<Self> {
        let mut sum = Self::default();
        for task in fs::read_dir("/proc/self/task").context("cannot list /proc/self/task")? {
            let task = task?.path();
            let read = |name: &str| fs::read_to_string(task.join(name));
            // A thread may end at any time, and its files with it.
            let Ok(name) = read("comm") else { continue };
            if !name.starts_with(NAME_PREFIX) {
                continue;
            }
            sum.threads += 1;
            sum.wake_ups += wake_ups(&read("status")?).context("no context switches in /proc status")?;
            sum.cpu_ns += cpu_ns(&read("schedstat")?).context("/proc schedstat is empty")?;
        }
        ensure!(sum.threads != 0, "there is no thread named {NAME_PREFIX}N");
        Ok(sum)
    }
}

impl Sub for Activity {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            threads: self.threads,
            wake_ups: self.wake_ups.saturating_sub(earlier.wake_ups),
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
        }
    }
}

fn wake_ups(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

fn cpu_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_proc_are_parsed() {
        let status = "Name:\tsw-flush-0\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(wake_ups(status), Some(17));
        assert_eq!(cpu_ns("123456 789 4\n"), Some(123_456));
    }
}
