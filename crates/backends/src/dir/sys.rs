//! System calls without a safe wrapper: kernel file handles, the XFS ioctl for data of an inode, and the user as which a
//! thread acts on file systems.
//!
//! # Kernel counterpart
//! `name_to_handle_at(2)`, `open_by_handle_at(2)`, `XFS_IOC_BULKSTAT`, `setfsuid(2)` and `setfsgid(2)`.
#![allow(unsafe_code, reason = "rustix has no wrapper for file handles, ioctls of XFS and the user for file systems")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Most bytes of a kernel handle, `MAX_HANDLE_SZ`.
const HANDLE_BYTES_MAX: usize = 128;

/// A kernel file handle: a type, and as many bytes as the file system needs.
#[derive(Clone, Eq, PartialEq, Debug)]
pub(super) struct KernelHandle {
    pub(super) kind: i32,
    pub(super) bytes: Vec<u8>,
}

/// `struct file_handle` with space for the largest handle.
#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    f_handle: [u8; HANDLE_BYTES_MAX],
}

/// The handle of the file open at `fd`, which may be a path descriptor.
pub(super) fn handle_of(fd: BorrowedFd<'_>) -> Result<KernelHandle, Errno> {
    let mut raw = RawHandle { handle_bytes: HANDLE_BYTES_MAX as u32, handle_type: 0, f_handle: [0; _] };
    let mut mount_id = 0;
    let raw_handle = (&raw mut raw).cast();
    // SAFETY: the path is an empty C string, as AT_EMPTY_PATH requires; `raw` is laid out as the kernel's `struct
    // file_handle` followed by the `handle_bytes` bytes that it announces; `mount_id` holds an int.
    let outcome = unsafe {
        libc::name_to_handle_at(fd.as_raw_fd(), c"".as_ptr(), raw_handle, &raw mut mount_id, libc::AT_EMPTY_PATH)
    };
    if outcome < 0 {
        return Err(last_errno());
    }
    Ok(KernelHandle { kind: raw.handle_type, bytes: raw.f_handle[..raw.handle_bytes as usize].to_vec() })
}

/// A path descriptor of the file that `handle` names, on the file system that `mount` is open on.
///
/// Needs CAP_DAC_READ_SEARCH. `ESTALE` when the file is gone.
pub(super) fn open_handle(mount: BorrowedFd<'_>, handle: &KernelHandle) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle { handle_bytes: handle.bytes.len() as u32, handle_type: handle.kind, f_handle: [0; _] };
    let target = raw.f_handle.get_mut(..handle.bytes.len()).ok_or(Errno::INVAL)?;
    target.copy_from_slice(&handle.bytes);
    let raw_handle = (&raw mut raw).cast();
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `raw` is laid out as above and holds the `handle_bytes` bytes it announces.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), raw_handle, flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct xfs_bulkstat_req` with space for one inode.
#[repr(C)]
struct XfsBulkstat {
    ino: u64,
    flags: u32,
    wanted: u32,
    found: u32,
    group: u32,
    reserved: [u64; 5],
    found_ino: u64,
    sizes_and_times: [u64; 7],
    generation: u32,
    rest: [u32; 31],
}

/// The generation of inode `ino` of the XFS that `root` is open on. `ESTALE` if there is none.
///
/// Needs CAP_SYS_ADMIN.
pub(super) fn xfs_generation(root: BorrowedFd<'_>, ino: u64) -> Result<u32, Errno> {
    const XFS_IOC_BULKSTAT: libc::Ioctl = 0x8040_587f_u32 as libc::Ioctl;
    let mut request = XfsBulkstat {
        ino,
        flags: 0,
        wanted: 1,
        found: 0,
        group: 0,
        reserved: [0; _],
        found_ino: 0,
        sizes_and_times: [0; _],
        generation: 0,
        rest: [0; _],
    };
    // SAFETY: `request` is laid out as the kernel's header and one `struct xfs_bulkstat`, and requests only one.
    if unsafe { libc::ioctl(root.as_raw_fd(), XFS_IOC_BULKSTAT, &raw mut request) } < 0 {
        return Err(last_errno());
    }
    // If there is no inode with this number, the kernel returns the next one.
    if request.found == 1 && request.found_ino == ino { Ok(request.generation) } else { Err(Errno::STALE) }
}

/// Sets the user as which the calling thread acts on file systems, and returns the one before. Nothing changes if that is
/// not permitted or `uid` is no user.
pub(super) fn set_fs_user(uid: u32) -> u32 {
    // SAFETY: it takes no pointers, and other threads keep their user.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

/// Sets the group as [`set_fs_user`] sets the user.
pub(super) fn set_fs_group(gid: u32) -> u32 {
    // SAFETY: it takes no pointers, and other threads keep their group.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
