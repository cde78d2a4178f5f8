//! Mount points, examined without waiting for the process that serves them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

use crate::os::mount_table;

/// The name of a mount point, absolute and without symbolic links, found without asking what is mounted there: that may
/// hang.
///
/// # Errors
/// The directory above it cannot be resolved.
pub fn name_of(mountpoint: &Path) -> io::Result<PathBuf> {
    let here = |path: &Path| if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_path_buf() };
    match (mountpoint.parent(), mountpoint.file_name()) {
        (Some(folder), Some(name)) => {
            let path = here(folder).canonicalize()?.join(name);
            // A symbolic link as the last component is followed only if nothing is mounted under its own name.
            if mount_table::mount_at(&path).is_some() { Ok(path) } else { path.canonicalize() }
        }
        _ => mountpoint.canonicalize(),
    }
}

/// Whether the process of the mount at `point` has died.
pub fn is_dead(point: &Path) -> bool {
    // Attributes cached by the kernel would say nothing about the process.
    let asked = statx(CWD, point, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    asked.is_err_and(is_answer_of_dead)
}

/// Whether an operation failed since the process of the mount has died, or is ending: over io_uring the kernel cancels
/// requests then.
pub fn is_answer_of_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
}

#[cfg(test)]
mod tests {
    use super::name_of;
    use std::path::Path;

    #[test]
    fn a_mount_point_is_resolved_without_accessing_it() {
        assert_eq!(name_of(Path::new("/proc/")).unwrap(), Path::new("/proc"));
        assert_eq!(name_of(Path::new("/proc/../proc")).unwrap(), Path::new("/proc"));
        assert_eq!(name_of(Path::new("/")).unwrap(), Path::new("/"));
        assert!(name_of(Path::new("/nonexistent/x")).is_err());
        let link = std::env::temp_dir().join(format!("slackwater-name-{}", std::process::id()));
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert_eq!(name_of(&link).unwrap(), Path::new("/proc"));
        std::fs::remove_file(&link).unwrap();
    }
}
