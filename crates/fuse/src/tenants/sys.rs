//! The kernel's answer to which cgroup a thread is in, for which rustix has no call.
#![allow(unsafe_code, reason = "an ioctl is as safe as its number and its structure are right")]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `struct pidfd_info` in its first version; later kernels write no more than was asked for.
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

/// The number of the unified cgroup that the thread of a pidfd is in; 1 for the root.
///
/// # Errors
/// ESRCH: the thread is gone, and its id may mean another one. ENOTTY or EINVAL: the kernel is older than 6.13.
/// EOPNOTSUPP: it has no cgroups.
pub(super) fn pidfd_cgroup_id(pidfd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut info = PidfdInfo { mask: CGROUP_ID, cgroup_id: 0, _others: [0; 12] };
    // SAFETY: the number is made of the size of this very structure, which the kernel reads and writes and keeps no
    // pointer to; every bit pattern is a value of it.
    let update = unsafe { Updater::<GET_INFO, PidfdInfo>::new(&mut info) };
    // SAFETY: as above. Other descriptors than pidfds refuse the number.
    unsafe { ioctl(pidfd, update) }?;
    if info.mask & CGROUP_ID == 0 { Err(Errno::OPNOTSUPP) } else { Ok(info.cgroup_id) }
}
