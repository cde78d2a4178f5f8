//! How much memory the process has.

use crate::rig::sys::trim_heap;

/// Memory of the process's own that it needs; what is shared is the arena. What the allocator keeps of the busiest moment
/// depends on how many threads met in it, and on what else the machine did.
pub(crate) fn bytes_in_use() -> u64 {
    trim_heap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}
