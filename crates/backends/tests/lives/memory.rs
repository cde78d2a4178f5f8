//! How much memory the process has.
#![allow(unsafe_code, reason = "the C library's allocator is asked to give back what it does not need")]

/// Memory of the process's own that it needs; what is shared is the arena. What the allocator keeps of the busiest moment
/// depends on how many threads met in it, and on what else the machine did.
pub(crate) fn bytes_in_use() -> u64 {
    // SAFETY: it has no preconditions.
    unsafe { libc::malloc_trim(0) };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}
