//! Removal of a directory with all that is below it, however deep: a user makes thousands of levels in a second.
//!
//! The walk has one directory open, goes down by a name and up by `..`. So it needs two descriptors, no stack, and memory
//! for one name per level. Subdirectories with entries wait by their names, at most [`WAITING_MAX`] on all levels, and the
//! others are found by another scan.
//!
//! # Invariants
//! W1. A link is removed and never followed. After a step up, the directory is compared with the one that was left: if a
//!     directory was moved meanwhile, the removal ends.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, fstat, openat, seek, unlinkat};
use rustix::io::Errno;

/// Names of directories that wait. A directory with more is scanned again.
const WAITING_MAX: usize = 4096;
/// Directories in a row that get new entries while they are removed, until the removal gives up.
const REFILLED_MAX: u32 = 100;
/// Bytes of names that are read at a time.
const SCAN_BYTES: usize = 32 << 10;

/// A directory above the current one.
struct Above {
    /// Its device and inode number.
    id: (u64, u64),
    /// The name of the one below that the walk is in.
    below: CString,
    /// Other directories in it that are not empty.
    waiting: Vec<CString>,
}

/// Removes the directory `path`. If it is a link, or no directory, the removal fails and changes nothing.
///
/// # Errors
/// Something in it cannot be removed, or was moved meanwhile. The call can be repeated.
///
/// # Blocking
/// Until everything is removed.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let top = open(CWD, path)?;
    // It is there: whatever is not found is an entry that something else removes meanwhile.
    let is_lost = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    empty(top).map_err(|error| if is_lost(&error) { io::Error::other(error) } else { error })?;
    std::fs::remove_dir(path)
}

/// Removes all entries of a directory.
fn empty(mut directory: OwnedFd) -> io::Result<()> {
    let mut above: Vec<Above> = Vec::new();
    // The names that wait on the levels of `above`.
    let mut waiting_above = 0;
    let mut waiting = scan(&directory, WAITING_MAX)?;
    let mut refilled = 0;
    loop {
        if waiting.is_empty() {
            // Names that found no place in the first scan, and entries that a file system skips while others are removed.
            waiting = scan(&directory, WAITING_MAX.saturating_sub(waiting_above).max(1))?;
        }
        if let Some(below) = waiting.pop() {
            let next = match open(&directory, below.as_c_str()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                next => next?,
            };
            waiting_above += waiting.len();
            above.push(Above { id: id_of(&directory)?, below, waiting });
            directory = next;
            waiting = scan(&directory, WAITING_MAX.saturating_sub(waiting_above))?;
            continue;
        }
        let Some(level) = above.pop() else { return Ok(()) };
        directory = open(&directory, c"..")?;
        if id_of(&directory)? != level.id {
            return Err(io::Error::other("a directory was moved while it was removed"));
        }
        waiting = level.waiting;
        waiting_above -= waiting.len();
        match unlinkat(&directory, &level.below, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => refilled = 0,
            // It has new entries: the next scan finds it.
            Err(Errno::NOTEMPTY | Errno::EXIST) if refilled < REFILLED_MAX => refilled += 1,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes files and empty directories. Returns the names of at most `most` others, and ends when it has these.
fn scan(directory: &OwnedFd, most: usize) -> io::Result<Vec<CString>> {
    let mut others = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); SCAN_BYTES];
    seek(directory, SeekFrom::Start(0))?;
    let mut entries = RawDir::new(directory, &mut buffer);
    while others.len() < most
        && let Some(entry) = entries.next()
    {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        if !is_removed(directory, name, entry.file_type())? {
            others.push(name.to_owned());
        }
    }
    Ok(others)
}

/// Removes an entry. Returns false if it is a directory that is not empty.
fn is_removed(directory: &OwnedFd, name: &CStr, kind: FileType) -> io::Result<bool> {
    let as_directory = || match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno.into()),
    };
    if kind == FileType::Directory {
        return as_directory();
    }
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // The file system does not say what entries are.
        Err(Errno::ISDIR | Errno::PERM) if kind == FileType::Unknown => as_directory(),
        Err(errno) => Err(errno.into()),
    }
}

fn open(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, name, flags, Mode::empty())?)
}

fn id_of(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = fstat(directory)?;
    Ok((status.st_dev, status.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::process::Command;
    use std::thread;

    use rustix::fs::mkdirat;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            // In memory: on a busy disk, so many directories take a minute.
            let path = Path::new("/dev/shm").join(format!("slackwater-tree-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = Command::new("rm").arg("-rf").arg(&self.0).status();
        }
    }

    /// Makes `levels` directories, one in the other, each with a file and an empty directory beside it.
    fn deepen(top: &Path, levels: usize) {
        let mut directory = open(CWD, top).unwrap();
        for _ in 0..levels {
            for name in [c"d", c"empty"] {
                mkdirat(&directory, name, Mode::RWXU).unwrap();
            }
            drop(openat(&directory, c"file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap());
            directory = open(&directory, c"d").unwrap();
        }
    }

    /// On a stack of 128 KiB, in a process that may have 32 descriptors.
    #[test]
    fn twelve_thousand_levels_need_no_stack_and_no_descriptors() {
        const LIMITED: &str = "SLACKWATER_TREE_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            let name = "volumes::remove_tree::tests::twelve_thousand_levels_need_no_stack_and_no_descriptors";
            let mut again = Command::new("sh");
            again.args(["-c", "ulimit -n 32 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
            let status = again.args([name, "--exact", "--test-threads", "1"]).env(LIMITED, "1").status().unwrap();
            assert!(status.success());
            return;
        }
        let scratch = Scratch::new("deep");
        let top = scratch.0.join("volume");
        fs::create_dir(&top).unwrap();
        deepen(&top, 12_000);
        let removed = thread::Builder::new().stack_size(128 << 10).spawn({
            let top = top.clone();
            move || remove_tree(&top)
        });
        removed.unwrap().join().unwrap().unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn more_directories_than_wait_are_all_removed() {
        let scratch = Scratch::new("wide");
        let top = scratch.0.join("volume");
        fs::create_dir(&top).unwrap();
        for number in 0..WAITING_MAX + 100 {
            let directory = top.join(number.to_string());
            fs::create_dir(&directory).unwrap();
            File::create(directory.join("file")).unwrap();
        }
        // One more of them is wide, too.
        for number in 0..200 {
            fs::create_dir_all(top.join("7").join(number.to_string()).join("x")).unwrap();
        }
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let scratch = Scratch::new("links");
        let (top, other) = (scratch.0.join("volume"), scratch.0.join("other"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "x").unwrap();
        for place in ["link", "a/link", "a/b/link"] {
            symlink(&other, top.join(place)).unwrap();
        }
        symlink(&top, scratch.0.join("to-volume")).unwrap();
        assert!(remove_tree(&scratch.0.join("to-volume")).is_err());
        assert!(top.join("a/b/link").symlink_metadata().is_ok());
        remove_tree(&top).unwrap();
        assert!(!top.exists());
        assert_eq!(fs::read(other.join("file")).unwrap(), b"x");
        let file = other.join("file");
        assert!(remove_tree(&file).is_err() && file.exists());
        assert_eq!(remove_tree(&top).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
