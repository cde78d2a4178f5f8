//! The file under the mapping: creating, opening, locking it, and passing it on.
//!
//! # Invariants
//! S1. The file is on tmpfs or hugetlbfs, and a block exists before anything is stored in it. So a store into the
//!     mapping never waits for a disk and never causes SIGBUS.
//! S2. A named file gets its name when its header and the records in use are there, in one step that fails if the name
//!     exists. A process that is killed before leaves nothing behind.
//! S3. One open arena per file: `flock` on a file description that is not shared. The descriptor that is passed on
//!     ([`ArenaFile::fd`]) carries no lock, so it may outlive this process.
//! S4. A file that is opened by its name belongs to this user, and no other user may write to it. In a place where every
//!     user makes files, it could be anyone's. Files that are passed on as descriptors are not looked at.

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::{ArenaError, Mismatch};
use crate::huge_pages::HUGE_BYTES;

/// The origin of the arena's file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum ArenaSource {
    /// A file without a name, which lives as long as it is open.
    #[default]
    Memfd,
    /// A new file on tmpfs or hugetlbfs, which persists until it is removed.
    File(PathBuf),
}

/// Memory file systems, by their magic numbers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum FileSystem {
    Tmpfs,
    Hugetlbfs,
}

/// An open file and its lock.
pub(crate) struct ArenaFile {
    fd: OwnedFd,
    /// S3.
    lock: OwnedFd,
}

/// Bytes allocated to a new file at once: a signal or a cancellation waits for one step, not for the whole file.
const STEP_BYTES: u64 = 16 << 20;
const _: () = assert!(STEP_BYTES.is_multiple_of(HUGE_BYTES as u64), "a huge page belongs to one step");

/// Receives the number of allocated bytes and the total of a new file, and decides whether to continue.
pub(crate) type Watch<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// A file without a name yet, and the file system's block size.
pub(crate) fn make(source: &ArenaSource) -> Result<(OwnedFd, FileSystem, u64), ArenaError> {
    let fd = match source {
        ArenaSource::Memfd => fs::memfd_create("slackwater-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(ArenaError::os("memfd_create"))?,
        ArenaSource::File(path) => {
            let folder = fs::open(folder_of(path), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(ArenaError::os("open of the folder"))?;
            file_system_of(folder.as_fd())?;
            // Checked now, before gigabytes are filled; `publish` decides.
            if fs::statat(&folder, file_name_of(path)?, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                return Err(ArenaError::os("creation of the file")(Errno::EXIST));
            }
            fs::openat(&folder, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
                .map_err(ArenaError::os("open of an unnamed file"))?
        }
    };
    let (file_system, block_bytes) = file_system_of(fd.as_fd())?;
    Ok((fd, file_system, block_bytes))
}

/// Sets the length of a new file, which is one hole then.
pub(crate) fn set_length(fd: BorrowedFd<'_>, file_bytes: u64) -> Result<(), ArenaError> {
    match fs::ftruncate(fd, file_bytes) {
        Err(errno @ (Errno::FBIG | Errno::NOSPC | Errno::NOMEM)) => {
            Err(ArenaError::NoSpace { needed_bytes: file_bytes, source: errno.into() })
        }
        done => done.map_err(ArenaError::os("ftruncate")),
    }
}

/// Runs `step` for each part of a new file, and reports to `watch`.
pub(crate) fn in_steps(
    file_bytes: u64,
    watch: &mut Watch<'_>,
    mut step: impl FnMut(Range<u64>) -> Result<(), ArenaError>,
) -> Result<(), ArenaError> {
    let mut at = 0;
    while at < file_bytes {
        let bytes = STEP_BYTES.min(file_bytes - at);
        step(at..at + bytes)?;
        at += bytes;
        if watch(at, file_bytes).is_break() {
            return Err(ArenaError::GivenUp);
        }
    }
    Ok(())
}

/// Allocates the blocks of a part of the file (S1).
pub(crate) fn fill(fd: BorrowedFd<'_>, part: Range<u64>, file_bytes: u64) -> Result<(), ArenaError> {
    loop {
        match fs::fallocate(fd, FallocateFlags::empty(), part.start, part.end - part.start) {
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT)) => {
                return Err(ArenaError::NoSpace { needed_bytes: file_bytes, source: errno.into() });
            }
            done => return done.map_err(ArenaError::os("fallocate")),
        }
    }
}

/// Whether a part of the file has been allocated and touched. A file system that cannot tell has no holes.
pub(crate) fn is_allocated(fd: BorrowedFd<'_>, part: &Range<u64>) -> bool {
    !fs::seek(fd, fs::SeekFrom::Hole(part.start)).is_ok_and(|hole| hole < part.end)
}

/// Seals a memfd against changes of its length.
pub(crate) fn seal(fd: BorrowedFd<'_>, source: &ArenaSource) -> Result<(), ArenaError> {
    match source {
        ArenaSource::Memfd => fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(ArenaError::os("fcntl(F_ADD_SEALS)")),
        ArenaSource::File(_) => Ok(()),
    }
}

/// Links a file to its name (S2).
pub(crate) fn publish(file: &ArenaFile, source: &ArenaSource) -> Result<(), ArenaError> {
    match source {
        ArenaSource::Memfd => Ok(()),
        ArenaSource::File(path) => fs::linkat(fs::CWD, proc_path(file.fd()), fs::CWD, path, AtFlags::SYMLINK_FOLLOW)
            .map_err(ArenaError::os("creation of the file")),
    }
}

/// Opens an existing file of this user (S4).
pub(crate) fn open(path: &Path) -> Result<OwnedFd, ArenaError> {
    // Without NONBLOCK, opening a FIFO of that name would block forever.
    let fd = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())
        .map_err(ArenaError::os("open"))?;
    let status = fs::fstat(&fd).map_err(ArenaError::os("fstat"))?;
    let user = geteuid().as_raw();
    if status.st_uid != user {
        return Err(ArenaError::NotPrivate(Mismatch::new("the user of the file", status.st_uid, user.to_string())));
    }
    let mode = status.st_mode & 0o777;
    if mode & 0o022 != 0 {
        return Err(ArenaError::NotPrivate(Mismatch::new("the mode of the file", format!("{mode:04o}"), "0600")));
    }
    Ok(fd)
}

/// The block size of the file system of an open file. Refuses file systems that are not in memory (S1).
pub(crate) fn file_system_of(fd: BorrowedFd<'_>) -> Result<(FileSystem, u64), ArenaError> {
    let stat = fs::fstatfs(fd).map_err(ArenaError::os("fstatfs"))?;
    let found = |name: &str| Err(ArenaError::FileSystem { found: name.to_owned() });
    let file_system = match stat.f_type {
        0x0102_1994 => FileSystem::Tmpfs,
        0x9584_58f6 => FileSystem::Hugetlbfs,
        0xef53 => return found("ext4"),
        0x5846_5342 => return found("xfs"),
        0x9123_683e => return found("btrfs"),
        0x794c_7630 => return found("overlayfs"),
        0x6573_5546 => return found("FUSE"),
        0x6969 => return found("NFS"),
        0x8584_58f6 => return found("ramfs"),
        other => return found(&format!("file system type {other:#x}")),
    };
    Ok((file_system, stat.f_bsize.cast_unsigned()))
}

impl ArenaFile {
    /// Locks the file against any other arena (S3).
    pub(crate) fn lock(fd: OwnedFd) -> Result<Self, ArenaError> {
        let lock = fs::open(proc_path(fd.as_fd()), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(ArenaError::os("open of /proc/self/fd"))?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { fd, lock }),
            Err(Errno::WOULDBLOCK) => Err(ArenaError::InUse),
            Err(errno) => Err(ArenaError::os("flock")(errno)),
        }
    }

    /// A file whose lock an earlier process has taken and passed on, with the file description itself.
    pub(crate) fn inherited(lock: OwnedFd) -> Result<Self, ArenaError> {
        let fd = fs::open(proc_path(lock.as_fd()), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(ArenaError::os("open of /proc/self/fd"))?;
        // Has no effect on a description that has the lock.
        fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| ArenaError::InUse)?;
        Ok(Self { fd, lock })
    }

    /// Another descriptor of the file description with the lock.
    pub(crate) fn lock_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ArenaFile {
    fn drop(&mut self) {
        // A child between fork and exec shares the description, so closing it would not suffice. If the unlock fails,
        // the close may still release it.
        let _ = fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn file_name_of(path: &Path) -> Result<&std::ffi::OsStr, ArenaError> {
    path.file_name().ok_or_else(|| ArenaError::os("creation of the file")(Errno::ISDIR))
}
