//! Giving the files of a directory a project.
//!
//! The tree may change meanwhile, and its owner may be hostile. A directory passes its project on before its entries are
//! listed, so files that appear later inherit it. Every entry is opened relative to the open directory above it, without
//! following links, and mount points are left out: nothing outside the tree is reached.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;

use super::sys;

/// Puts `root` and everything in it that can be opened into `project`. Repeating it is harmless.
///
/// # Errors
/// The first that the file system reports. Files that vanish meanwhile are none.
///
/// # Blocking
/// Until each file has been opened.
pub(super) fn assign(root: &File, project: u32) -> io::Result<()> {
    let mut open = vec![directory(root.try_clone()?.into(), project)?];
    while let Some(above) = open.last_mut() {
        let Some(entry) = above.next().transpose()? else {
            open.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let above = above.fd()?;
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            let Ok(stat) = statat(above, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            kind = FileType::from_raw_mode(stat.st_mode);
        }
        let is_directory = kind.is_dir();
        if !is_directory && !kind.is_file() {
            continue;
        }
        let kind = if is_directory { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        let flags = kind | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let inside = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        match openat2(above, name, flags, Mode::empty(), inside) {
            Ok(fd) if is_directory => open.push(directory(fd, project)?),
            Ok(fd) => assign_one(&fd, project, false)?,
            // It vanished, became a link, or is a mount point.
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Assigns a directory, and opens it for reading from its start.
fn directory(fd: OwnedFd, project: u32) -> io::Result<Dir> {
    assign_one(&fd, project, true)?;
    Ok(Dir::read_from(fd)?)
}

fn assign_one(file: impl AsFd, project: u32, is_directory: bool) -> io::Result<()> {
    let before = sys::attributes(&file)?;
    let after = before.in_project(project, is_directory);
    if (before.project, before.flags) == (after.project, after.flags) {
        return Ok(());
    }
    sys::set_attributes(&file, &after)
}
