//! The exit of a process whose sources may hang.
//!
//! An exiting process closes its descriptors, and closing a file on a network file system or a FUSE mount waits for the
//! server: if the server hangs, the process stays. Therefore the process leaves its descriptor table to a child, which
//! waits until the process has no threads and then closes the descriptors.
//!
//! # Invariants
//! A1. Locks on sources, the arena and registry entries are released after the last thread has ended, because a thread
//!     that the kernel cannot interrupt may still write to a source. They are released before any descriptor whose
//!     close may wait.
//! A2. `/dev/fuse` connections, sockets, pipes and the terminal are closed without waiting for such a thread, because
//!     programs and the shell wait for them.

use std::os::fd::RawFd;
use std::process::exit;

use rustix::fs::FileType;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use slackwater_control::exit::Reason;

use crate::os::sys;

/// Exits the process, whose sources are on the devices `sources`. The arena and the registry entries stay for the next
/// process.
pub(crate) fn exit_now(reason: Reason, sources: &[u64]) -> ! {
    let (others, locks) = descriptors(sources);
    // Where pidfds are not available, the process waits for its sources.
    if let Ok(this_process) = pidfd_open(getpid(), PidfdFlags::empty()) {
        sys::leave_descriptors(this_process, &others, &locks);
    }
    exit(i32::from(reason.status()))
}

/// The descriptors whose close does not wait: those of A2, and those that may be locked (A1).
fn descriptors(sources: &[u64]) -> (Vec<RawFd>, Vec<RawFd>) {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let (mut others, mut locks) = (Vec::new(), Vec::new());
    for number in numbers {
        match sys::kind_of(number) {
            // Closing a directory sends nothing to wait for.
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
