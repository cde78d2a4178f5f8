//! The ioctl that returns the cgroup of a thread, for which rustix has no wrapper.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its structure are right")]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// The first version of `struct pidfd_info`; later kernels write no more than was requested.
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// Ids and credentials.
    _others: [u32; 12],
}

/// `PIDFD_INFO_CGROUPID`.
const CGROUP_ID: u64 = 1 << 2;
const GET_INFO: Opcode = opcode::read_write::<PidfdInfo>(0xFF, 11);
const _: () = assert!(size_of::<PidfdInfo>() == 64);

/// Number of the unified cgroup of a pidfd's thread; 1 for the root.
///
/// # Errors
/// ESRCH: the thread has exited, and its id may refer to another one. ENOTTY or EINVAL: the kernel is older than 6.13.
/// EOPNOTSUPP: the kernel has no cgroups.
pub(super) fn pidfd_cgroup_id(pidfd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut info = PidfdInfo { mask: CGROUP_ID, cgroup_id: 0, _others: [0; 12] };
    // SAFETY: the request number contains the size of this very structure, which the kernel reads and writes without
    // keeping a pointer to it. Every bit pattern is a value of it.
    let update = unsafe { Updater::<GET_INFO, PidfdInfo>::new(&mut info) };
    // SAFETY: as above. Descriptors other than pidfds reject the number.
    unsafe { ioctl(pidfd, update) }?;
    if info.mask & CGROUP_ID == 0 { Err(Errno::OPNOTSUPP) } else { Ok(info.cgroup_id) }
}
