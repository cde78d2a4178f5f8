//! Which CPUs threads run on.
//!
//! A small operation of a mount takes a few microseconds and the wake-up of the other side, which costs nothing on the same
//! CPU and some 20 us on an idle one. Left alone, the scheduler chooses one or the other by what else runs at the moment. A
//! ratio of two servers would then compare their luck, so client and server are placed.

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the client and the server of a mount run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Placement {
    /// Client and server on one CPU.
    Together,
    /// The client on one, the server on the others.
    Apart,
    /// Client and server where the scheduler puts them.
    Free,
}

/// Client and server stay where they were placed while this lives.
pub(crate) struct Placed {
    server: Option<u32>,
    /// The CPUs that both may use otherwise.
    allowed: CpuSet,
}

impl Placement {
    pub(crate) const FIXED: [Self; 2] = [Self::Together, Self::Apart];
    pub(crate) const ALL: [Self; 3] = [Self::Together, Self::Apart, Self::Free];

    /// Places the calling thread and all threads of the process `server`, if there is one.
    pub(crate) fn place(self, server: Option<u32>) -> Result<Placed> {
        let allowed = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        if self == Self::Free {
            return Ok(Placed { server: None, allowed });
        }
        let cpus = cpus();
        let (first, others) = cpus.split_at(1);
        let servers = if self == Self::Together || others.is_empty() { first } else { others };
        let placed = Placed { server, allowed };
        sched_setaffinity(None, &set_of(first)).context("cannot set the CPU affinity")?;
        placed.place_server(&set_of(servers));
        Ok(placed)
    }
}

impl Placed {
    /// A thread that ends meanwhile does not matter, and a new one starts where its parent is. The threads of a ring have
    /// placed themselves: each serves the clients of its CPU.
    fn place_server(&self, cpus: &CpuSet) {
        let Some(server) = self.server else { return };
        for thread in std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten() {
            let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            if name.strip_prefix("sw-ring-").is_some_and(|cpu| cpu.trim_end().parse::<usize>().is_ok()) {
                continue;
            }
            let number = thread.file_name().to_string_lossy().parse().ok();
            if let Some(thread) = number.and_then(Pid::from_raw) {
                let _ = sched_setaffinity(Some(thread), cpus);
            }
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.allowed);
        self.place_server(&self.allowed);
    }
}

/// The CPUs that this process may use; one at least.
pub(super) fn cpus() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return vec![0] };
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Keeps the calling thread on `cpu`, where that is permitted.
pub(super) fn pin(cpu: usize) {
    let _ = sched_setaffinity(None, &set_of(&[cpu]));
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}
