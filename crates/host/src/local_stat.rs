//! Attributes of a file that the kernel answers from memory, so that a server that hangs is not asked.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use rustix::io::Errno;

/// Type and device of the file at `path`, without a request to the server of its file system; an empty path is the file that
/// `at` is open on.
///
/// A link is followed. A magic link of `/proc`, such as `/proc/1/cwd`, leads straight to its file, so that no directory
/// on the way is looked up.
///
/// # Errors
/// Those of statx(2).
pub fn local_stat(at: impl AsFd, path: &Path) -> Result<(FileType, u64), Errno> {
    stat(at, path, AtFlags::EMPTY_PATH)
}

/// The device of the file at `path` itself; a link is not followed.
///
/// # Errors
/// Those of statx(2).
pub fn device_at(path: &Path) -> Result<u64, Errno> {
    stat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map(|(_, device)| device)
}

fn stat(at: impl AsFd, path: &Path, flags: AtFlags) -> Result<(FileType, u64), Errno> {
    let flags = flags | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(at, path, flags, StatxFlags::empty())?;
    Ok((FileType::from_raw_mode(stat.stx_mode.into()), makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_open_file_has_its_type_and_device() {
        let file = File::open("/proc/self/exe").unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        let device = file.metadata().unwrap().dev();
        assert_eq!(local_stat(&file, Path::new("")), Ok((FileType::RegularFile, device)));
        assert_eq!(local_stat(CWD, Path::new("/proc/self/exe")), Ok((FileType::RegularFile, device)));
        assert_eq!(local_stat(&pipe, Path::new("")).unwrap().0, FileType::Fifo);
        assert_eq!(local_stat(CWD, Path::new("/nonexistent")), Err(Errno::NOENT));
    }

    #[test]
    fn a_link_itself_is_on_its_own_device() {
        let own = std::fs::symlink_metadata("/proc/self/exe").unwrap().dev();
        assert_eq!(device_at(Path::new("/proc/self/exe")), Ok(own));
    }
}
