//! Which CPUs a client and the server of its mount run on.
//!
//! A small operation is a few microseconds of work and the waking of the other side, which takes none on the same CPU
//! and some 20 on an idle one. Left to itself the scheduler does now this, now that, by what else runs at the moment:
//! a ratio of two servers is then that of their luck.

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::lanes;

/// Where the two run.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Placement {
    /// On one CPU.
    Together,
    /// The client on one, the server on the others.
    Apart,
}

/// Client and server stay where they were placed while this lives.
pub(crate) struct Placed {
    server: Option<u32>,
    /// What the calling thread and the server's may use otherwise.
    allowed: CpuSet,
}

impl Placement {
    pub(crate) const ALL: [Self; 2] = [Self::Together, Self::Apart];

    /// Places the calling thread and all threads of the process `server`, if there is one.
    pub(crate) fn place(self, server: Option<u32>) -> Result<Placed> {
        let allowed = sched_getaffinity(None).context("cannot ask which CPUs there are")?;
        let cpus = lanes::cpus();
        let (first, others) = cpus.split_first().context("there is no CPU")?;
        let servers = if self == Self::Together || others.is_empty() { std::slice::from_ref(first) } else { others };
        let placed = Placed { server, allowed };
        sched_setaffinity(None, &set_of(std::slice::from_ref(first))).context("cannot stay on a CPU")?;
        placed.keep_server(&set_of(servers));
        Ok(placed)
    }
}

impl Placed {
    /// A thread that ends meanwhile is no matter, and one that begins is where its parent is.
    fn keep_server(&self, cpus: &CpuSet) {
        let Some(server) = self.server else { return };
        for thread in std::fs::read_dir(format!("/proc/{server}/task")).into_iter().flatten().flatten() {
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
        self.keep_server(&self.allowed);
    }
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}
