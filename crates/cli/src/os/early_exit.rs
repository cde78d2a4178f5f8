//! The end of a process whose sources may hang.
//!
//! A process that exits closes its descriptors, and the close of a file on a network file system or a FUSE mount waits for
//! its server: the process would stay for as long as that hangs. So it leaves its table of descriptors to a child, which waits
//! until the process has no thread any more and then closes them.
//!
//! # Invariants
//! A1. Locks on sources, arena and entries in the registry go after the last thread: a thread that the kernel cannot
//!     interrupt may still write to a source. They go before anything whose close may wait.
//! A2. Connections of `/dev/fuse`, sockets, pipes and the terminal wait for no such thread, since programs and the shell wait for
//!     these.

use std::os::fd::RawFd;
use std::process::exit;

use rustix::fs::FileType;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::exit::Reason;
use crate::os::sys;

/// Ends the process, whose sources are on the devices `sources`. Arena and entries in the registry stay, for the next process.
pub(crate) fn exit_now(reason: Reason, sources: &[u64]) -> ! {
    let (others, locks) = descriptors(sources);
    // Where this is not to be had the process waits for its sources.
    if let Ok(this_process) = pidfd_open(getpid(), PidfdFlags::empty()) {
        sys::leave_descriptors(this_process, &others, &locks);
    }
    exit(i32::from(reason.status()))
}

/// The descriptors whose close waits for nothing: those of A2, and what may be locked (A1).
fn descriptors(sources: &[u64]) -> (Vec<RawFd>, Vec<RawFd>) {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let (mut others, mut locks) = (Vec::new(), Vec::new());
    for number in numbers {
        match sys::kind_of(number) {
            // A close of a directory sends nothing that is waited for.
            Some((FileType::Directory, _)) => locks.push(number),
            Some((FileType::RegularFile, device)) if sources.contains(&device) => {}
            Some((FileType::RegularFile, _)) => locks.push(number),
            Some(_) => others.push(number),
            None => {}
        }
    }
    (others, locks)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn files_of_a_source_are_closed_last() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let (directory, nothing) = (File::open("/proc").unwrap(), File::open("/dev/null").unwrap());
        let device = file.metadata().unwrap().dev();
        let (others, locks) = descriptors(&[device]);
        assert!(!others.contains(&file.as_raw_fd()) && !locks.contains(&file.as_raw_fd()));
        assert!(locks.contains(&directory.as_raw_fd()) && others.contains(&nothing.as_raw_fd()));
        assert!(descriptors(&[]).1.contains(&file.as_raw_fd()));
    }
}
