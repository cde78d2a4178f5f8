//! The kernel's calls on project quotas, for which rustix and the C library have no wrappers: the attributes of
//! linux/fs.h, and quotactl_fd(2) with the structures of linux/quota.h and linux/dqblk_xfs.h.
//!
//! XFS understands the generic commands too, so that both file systems are served by the same calls.
#![allow(unsafe_code, reason = "ioctls and quotactl_fd(2)")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, c_long, c_ulong, dqblk};

const GET_ATTRIBUTES: c_ulong = libc::_IOR::<Attributes>(b'X' as u32, 31) as c_ulong;
const SET_ATTRIBUTES: c_ulong = libc::_IOW::<Attributes>(b'X' as u32, 32) as c_ulong;

/// The type of quota: of projects.
const PROJECT: c_int = 2;
const GET_QUOTA: c_int = 0x80_0007;
const SET_QUOTA: c_int = 0x80_0008;
/// `Q_XGETQSTATV`, which ext4 answers as well.
const GET_STATE: c_int = ((b'X' as c_int) << 8) + 8;
const STATE_VERSION: i8 = 1;

/// Bits of [`State::flags`]: what projects use is counted, and limited.
pub(super) const COUNTED: u16 = 1 << 4;
pub(super) const LIMITED: u16 = 1 << 5;

/// The bit of [`Attributes::flags`] by which new files in the directory are of its project.
pub(super) const INHERITED: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Attributes {
    pub(super) flags: u32,
    _extents: [u32; 2],
    pub(super) project: u32,
    _more: [u32; 3],
}

/// `struct fs_quota_statv`.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    _padding: u8,
    flags: u16,
    _in_memory: u32,
    _files: [[u64; 3]; 3],
    _times_and_warnings: [u32; 6],
    _more: [u64; 7],
}

const _: () = assert!(size_of::<Attributes>() == 28 && size_of::<State>() == 160);

/// The limits of a project and what it uses. A limit of 0 is none.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Figures {
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    pub(super) inodes: u64,
    pub(super) inodes_max: u64,
}

/// The project of a file, and whether a directory passes it on.
pub(super) fn attributes(file: impl AsFd) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the descriptor is open, and the structure is the one that the call fills.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GET_ATTRIBUTES as _, &raw mut attributes) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

/// Changes the project of a file, and whether a directory passes it on.
pub(super) fn set_attributes(file: impl AsFd, attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the call only reads the structure.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), SET_ATTRIBUTES as _, &raw const *attributes) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// [`COUNTED`] and [`LIMITED`], as far as they hold for the projects of the file system of `file`.
///
/// # Errors
/// `ENOSYS` if the file system has no quotas.
pub(super) fn state(file: impl AsFd) -> io::Result<u16> {
    let mut state = State { version: STATE_VERSION, ..State::default() };
    quotactl(file, GET_STATE, 0, (&raw mut state).cast())?;
    Ok(state.flags)
}

/// The figures of a project. A project that the file system has never seen uses nothing.
pub(super) fn figures(file: impl AsFd, project: u32) -> io::Result<Figures> {
    let mut quota = no_quota();
    match quotactl(file, GET_QUOTA, project, (&raw mut quota).cast()) {
        Ok(()) => Ok(Figures {
            bytes: quota.dqb_curspace,
            bytes_max: quota.dqb_bhardlimit.saturating_mul(BLOCK_BYTES),
            inodes: quota.dqb_curinodes,
            inodes_max: quota.dqb_ihardlimit,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Figures::default()),
        Err(error) => Err(error),
    }
}

/// The unit of limits in bytes.
const BLOCK_BYTES: u64 = 1024;

/// Limits a project. 0 removes a limit; bytes are rounded up to 1 KiB.
pub(super) fn limit(file: impl AsFd, project: u32, bytes_max: u64, inodes_max: u64) -> io::Result<()> {
    const BOTH_LIMITS: u32 = 1 | 1 << 2;
    let mut quota = dqblk {
        dqb_bhardlimit: bytes_max.div_ceil(BLOCK_BYTES),
        dqb_ihardlimit: inodes_max,
        dqb_valid: BOTH_LIMITS,
        ..no_quota()
    };
    quotactl(file, SET_QUOTA, project, (&raw mut quota).cast())
}

fn no_quota() -> dqblk {
    // SAFETY: it consists of numbers.
    unsafe { std::mem::zeroed() }
}

/// `structure` is the one that `command` reads or fills.
fn quotactl(file: impl AsFd, command: c_int, project: u32, structure: *mut c_void) -> io::Result<()> {
    let (number, command) = (file.as_fd().as_raw_fd(), c_long::from(libc::QCMD(command, PROJECT)));
    // SAFETY: the descriptor is open, and the structure, which the callers own, is valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, number, command, project, structure) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
