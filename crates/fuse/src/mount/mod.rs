//! Mounting and unmounting: by system call as root, through the set-user-id program `fusermount3` as another user.
//!
//! Every mount is `noatime`. The kernel leaves access times to a FUSE server, and reads that the kernel answers from
//! its cache never reach the server. So access times are not maintained, and /proc/mounts says so.

mod fusermount;

use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::geteuid;

const DEVICE: &str = "/dev/fuse";

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device shown in /proc/mounts, such as `slackwater#/srv/data`.
    pub source: String,
    /// The type of the file system is `fuse.` and this.
    pub subtype: String,
    /// The kernel checks permissions by mode and owner; otherwise the file system must.
    pub default_permissions: bool,
    /// Users other than the mounting one may access the mount. For users other than root `/etc/fuse.conf` must allow
    /// it.
    pub allow_other: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Set-user-id bits have no effect. Always so for users other than root.
    pub nosuid: bool,
    /// Device nodes cannot be opened. Always so for users other than root.
    pub nodev: bool,
    /// Programs cannot be executed from the mount.
    pub noexec: bool,
    /// Data stays out of the cache, unless the file or the tenant says otherwise.
    pub dontcache: bool,
    /// Whether requests come over io_uring.
    pub uring: Uring,
    /// Limit of bytes in one READ, if below the kernel's own.
    pub max_read: Option<u32>,
    /// How long the kernel may cache names and attributes, and the engine those of the backend. Changes of the backend
    /// that were not made through this mount may stay unnoticed for twice this time.
    pub cache_timeout: Duration,
}

/// Whether requests come over io_uring, from a queue per CPU. It takes a thread for each CPU that the machine may have,
/// and calls that block go to threads of the session.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Uring {
    /// Requests come over `/dev/fuse`.
    #[default]
    Never,
    /// Requests come over io_uring if the kernel and this process can; [`Session::rings`](crate::Session::rings) says
    /// so.
    IfPossible,
    /// Requests come over io_uring, or nothing is mounted.
    Always,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "slackwater".to_owned(),
            subtype: "slackwater".to_owned(),
            default_permissions: true,
            allow_other: geteuid().is_root(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            dontcache: false,
            uring: Uring::Never,
            max_read: None,
            cache_timeout: Duration::from_secs(1),
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the container hides it.
    #[error("{DEVICE} is missing: load the kernel's fuse module, or pass the device into the container")]
    NoDevice,
    /// This user may not open the device, or may not mount.
    #[error("no permission to {0}")]
    NoPermission(&'static str),
    /// The mount point does not exist.
    #[error("{0} does not exist")]
    NoMountpoint(PathBuf),
    /// The mount point is not a directory.
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    /// The mount point cannot be accessed, for instance because a dead FUSE mount is there.
    #[error("cannot access the mount point {path}: {errno}")]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// An option contains a character that would end it.
    #[error("`{0}` contains a comma or a NUL")]
    BadOption(String),
    /// Users other than root need the program.
    #[error("fusermount3 is missing: install fuse3, or mount as root")]
    NoFusermount,
    /// `fusermount3` failed.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// mount(2) failed.
    #[error("mount(2) failed: {0}")]
    Kernel(Errno),
}

/// Why an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open there, or a process has its working directory there.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("nothing is mounted at {0}")]
    NotMounted(PathBuf),
    /// This user may not unmount it.
    #[error("no permission to unmount {0}")]
    NoPermission(PathBuf),
    /// Users other than root need the program.
    #[error("fusermount3 is missing: install fuse3, or unmount as root")]
    NoFusermount,
    /// `fusermount3` failed.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// umount2(2) failed.
    #[error("umount2(2) failed: {0}")]
    Kernel(Errno),
}

/// Mounts on a directory and returns the connection, for [`DevFuse`](crate::DevFuse). Requests are answered once a
/// [`Session`](crate::Session) is started on it.
///
/// # Errors
/// Nothing is mounted.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    for option in [&options.source, &options.subtype] {
        // A comma in the source is harmless: it is escaped, or passed as a separate argument.
        if option.contains('\0') || options.subtype.contains(',') {
            return Err(MountError::BadOption(option.clone()));
        }
    }
    let root_mode = check_mountpoint(mountpoint)?;
    if geteuid().is_root() {
        mount_by_call(mountpoint, root_mode, options)
    } else {
        fusermount::mount(fusermount::PROGRAM, mountpoint, options)
    }
}

/// Unmounts. With `lazy` the mount is detached at once, and the session ends when the last file is closed; otherwise a
/// mount in use is not unmounted. A symbolic link at the end of the path is not followed.
///
/// # Errors
/// The file system is still mounted.
///
/// # Blocking
/// The kernel waits for no request of the session, unless `lazy` is false and pages of shared mappings are dirty.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), UnmountError> {
    if !geteuid().is_root() {
        return fusermount::unmount(fusermount::PROGRAM, mountpoint, lazy);
    }
    let detach = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let path = || mountpoint.to_owned();
    rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW | detach).map_err(|errno| match errno {
        Errno::BUSY => UnmountError::Busy(path()),
        Errno::INVAL | Errno::NOENT => UnmountError::NotMounted(path()),
        Errno::PERM | Errno::ACCESS => UnmountError::NoPermission(path()),
        errno => UnmountError::Kernel(errno),
    })
}

/// The file type of the mount point, for the option `rootmode`.
fn check_mountpoint(path: &Path) -> Result<u32, MountError> {
    let failed = |errno| match errno {
        Errno::NOENT => MountError::NoMountpoint(path.to_owned()),
        Errno::NOTDIR => MountError::NotADirectory(path.to_owned()),
        errno => MountError::Mountpoint { path: path.to_owned(), errno },
    };
    let fd = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    let stat = fstat(&fd).map_err(failed)?;
    Ok(FileType::from_raw_mode(stat.st_mode).as_raw_mode())
}

fn mount_by_call(mountpoint: &Path, root_mode: u32, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        Errno::PERM | Errno::ACCESS => MountError::NoPermission("open /dev/fuse"),
        errno => MountError::Kernel(errno),
    })?;
    mount_connection(&device, mountpoint, root_mode, options)?;
    Ok(device)
}

/// Mounts at another directory what the connection `device` serves. Only root can.
///
/// # Errors
/// Nothing is mounted there.
pub fn mount_again(device: &OwnedFd, mountpoint: &Path, options: &MountOptions) -> Result<(), MountError> {
    mount_connection(device, mountpoint, check_mountpoint(mountpoint)?, options)
}

fn mount_connection(
    device: &OwnedFd,
    mountpoint: &Path,
    root_mode: u32,
    options: &MountOptions,
) -> Result<(), MountError> {
    let mut words = format!("fd={},rootmode={root_mode:o},user_id=0,group_id=0", device.as_raw_fd());
    for (is_on, word) in [(options.default_permissions, ",default_permissions"), (options.allow_other, ",allow_other")]
    {
        words += if is_on { word } else { "" };
    }
    if let Some(max_read) = options.max_read {
        // Writing to a string cannot fail.
        let _ = write!(words, ",max_read={max_read}");
    }
    let mut flags = MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    let words = std::ffi::CString::new(words).map_err(|_| MountError::BadOption(options.source.clone()))?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(&options.source, mountpoint, kind, flags, words.as_c_str()).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => MountError::NoPermission("mount"),
        Errno::NODEV => MountError::NoDevice,
        errno => MountError::Kernel(errno),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_mountpoint_is_named() {
        let options = MountOptions::default();
        let missing = mount(Path::new("/proc/self/no such directory"), &options);
        assert!(matches!(missing, Err(MountError::NoMountpoint(_))), "{missing:?}");
        let file = mount(Path::new("/proc/self/status"), &options);
        assert!(matches!(file, Err(MountError::NotADirectory(_))), "{file:?}");
    }

    #[test]
    fn an_option_cannot_smuggle_in_others() {
        let options = MountOptions { subtype: "x,allow_other".to_owned(), ..MountOptions::default() };
        assert!(matches!(mount(Path::new("/"), &options), Err(MountError::BadOption(_))));
        let options = MountOptions { source: "x\0y".to_owned(), ..MountOptions::default() };
        assert!(matches!(mount(Path::new("/"), &options), Err(MountError::BadOption(_))));
    }
}
