//! Small files that survive a crash of the machine.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::crash;

/// Makes `content` the content of `path`, for this user only. It is written to `next` in the same directory first, so the
/// file is always complete. If it fails, the file has the former content or this one.
///
/// # Errors
/// The file system failed.
pub(super) fn replace(path: &Path, next: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(next)?;
    crash::point();
    file.write_all(content)?;
    file.sync_all()?;
    crash::point();
    fs::rename(next, path)?;
    sync_directory_of(path)?;
    crash::point();
    Ok(())
}

/// Removes a file, if it exists.
///
/// # Errors
/// The file system failed: it may still be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => sync_directory_of(path)?,
    }
    crash::point();
    Ok(())
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The file system failed.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}
