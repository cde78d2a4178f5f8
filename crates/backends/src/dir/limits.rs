//! How large a file may become and how much is in flight.
//!
//! No system call tells a file system's largest file size, and the engine has to refuse what is too large
//! *before* it takes the bytes. So the large ones are known by their magic number, and anything else is
//! held to a size that all but the FAT family reach. A process limit (RLIMIT_FSIZE) counts as well.
//!
//! Eight units of 1 MiB in flight wrote no faster than four, nor four much faster than a plain loop
//! (`tests/throughput.rs` measures it). So it is four: what is in flight is what a sync waits for.

use std::os::fd::OwnedFd;

use rustix::fs::fstatfs;
use rustix::io;
use rustix::process::{Resource, getrlimit};
use slackwater::backend::{Limits, MAX_UNIT_BYTES};

const UNITS_IN_FLIGHT: u32 = 6;

const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;
const TMPFS: u64 = 0x0102_1994;
const ZFS: u64 = 0x2fc1_2fc1;
const BCACHEFS: u64 = 0xca45_1a4e;
const MSDOS: u64 = 0x4d44;

/// What ext2, the smallest of the rest, holds with blocks of 4 KiB, in round figures: 2 TiB.
const OTHERS_MAX: u64 = 1 << 41;

/// The limits of the file system that `root` is on; `device` is its number.
pub(super) fn limits_of(root: &OwnedFd, device: u64) -> io::Result<Limits> {
    let stat = fstatfs(root)?;
    let by_file_system = max_file_bytes(stat.f_type as u64, stat.f_bsize as u64);
    let by_process = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    Ok(Limits {
        max_file_bytes: by_file_system.min(by_process),
        unit_bytes: MAX_UNIT_BYTES,
        units_in_flight: UNITS_IN_FLIGHT,
        device: Some(device),
    })
}

fn max_file_bytes(magic: u64, block_bytes: u64) -> u64 {
    match magic {
        // Extents number blocks in 32 bits and keep the last number for themselves.
        EXT4 => u64::from(u32::MAX) * block_bytes.min(4096),
        XFS | BTRFS | TMPFS | ZFS | BCACHEFS => i64::MAX as u64,
        MSDOS => u64::from(u32::MAX),
        _ => OTHERS_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_stops_a_block_short_of_16_tib() {
        assert_eq!(max_file_bytes(EXT4, 4096), (16 << 40) - 4096);
        assert_eq!(max_file_bytes(EXT4, 1024), (4 << 40) - 1024);
    }

    #[test]
    fn an_unknown_file_system_is_not_trusted_with_much() {
        assert_eq!(max_file_bytes(0x6969, 1 << 20), 2 << 40);
        assert_eq!(max_file_bytes(MSDOS, 4096), (4 << 30) - 1);
    }
}
