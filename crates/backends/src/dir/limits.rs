//! The maximum size of a file and the number of units in flight.
//!
//! A limit of the process (RLIMIT_FSIZE) applies in addition to that of the file system.
//!
//! Eight units of 1 MiB in flight wrote no faster than four, and four not much faster than a plain loop
//! (`tests/throughput.rs` measures it). A sync waits for the units in flight. So there are no more than the threads
//! that may write at once.

use rustix::process::{Resource, getrlimit};
use slackwater::backend::{Limits, MAX_UNIT_BYTES};

use super::file_system::FileSystem;
use super::{THREADS_MAX, THREADS_RESERVED};

const UNITS_IN_FLIGHT: usize = THREADS_MAX - THREADS_RESERVED;

/// The limits of a volume on `file_system`; `device` is its number.
pub(super) fn limits_of(file_system: FileSystem, device: u64) -> Limits {
    let by_process = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    Limits {
        max_file_bytes: file_system.max_file_bytes().min(by_process),
        unit_bytes: MAX_UNIT_BYTES,
        units_in_flight: UNITS_IN_FLIGHT as u32,
        device: Some(device),
        flushes: file_system.flushes_by_directory(),
        readahead_bytes: 0,
        reopens: true,
    }
}
