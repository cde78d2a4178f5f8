//! Memory used by the process.

use crate::rig::sys::trim_heap;

/// Private memory of the process; the shared memory is the arena. How much the allocator keeps of the busiest moment
/// depends on how many threads met in it, and on the load of the machine.
pub(crate) fn bytes_in_use() -> u64 {
    trim_heap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}
