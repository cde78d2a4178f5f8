//! A directory of this user in a place where every user may create files, such as `/dev/shm` or `/tmp`.
//!
//! # Invariants
//! N1. The directory is a directory and not a link, belongs to this user, and is closed to all others. Its parent is
//!     sticky, so no other user can rename or remove it.
//! N2. Its name is `slackwater-UID`. If another user has taken that name, it is the first of this user's directories
//!     whose name begins with it, and a new one gets an unpredictable name. So no user can prevent another from having
//!     one, and all processes of a user find the same one.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::process::geteuid;

/// The directory in `parent`, created if it does not exist.
///
/// # Errors
/// No directory can be created in `parent`.
pub fn within(parent: &Path) -> io::Result<PathBuf> {
    let name = format!("slackwater-{}", geteuid().as_raw());
    let usual = parent.join(&name);
    if make(&usual)? {
        return Ok(usual);
    }
    let prefix = format!("{name}-");
    let mut own: Vec<PathBuf> = fs::read_dir(parent)?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .map(|name| parent.join(name))
        .filter(|path| is_private(path))
        .collect();
    own.sort();
    if let Some(first) = own.into_iter().next() {
        return Ok(first);
    }
    // The keys of a hasher are random.
    let unforeseen = parent.join(format!("{prefix}{:016x}", RandomState::new().build_hasher().finish()));
    match make(&unforeseen)? {
        true => Ok(unforeseen),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Creates a directory if nothing exists there. Returns whether it is private then (N1).
///
/// # Errors
/// No directory can be created.
pub fn make(path: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(is_private(path)),
    }
}

/// Closes an empty directory of this user to the others, such as one that a kubelet has made, which gives directories the
/// mode 0755. One with entries may be a directory that others use, and stays. Returns whether it is private then (N1).
pub fn closed(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(directory) = open(path, flags, Mode::empty()) else { return false };
    let is_ours =
        fstat(&directory).is_ok_and(|status| status.st_uid == geteuid().as_raw() && status.st_mode & 0o022 == 0);
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if is_ours && !is_private(path) && is_empty() {
        // If it fails, the directory is not private.
        let _ = fchmod(&directory, Mode::RWXU);
    }
    is_private(path)
}

/// N1.
pub fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|status| status.is_dir() && status.uid() == geteuid().as_raw() && status.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn an_empty_directory_in_which_only_this_user_makes_files_is_closed_to_others() {
        let path = std::env::temp_dir().join(format!("slackwater-closed-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        for (mode, is_closed) in [(0o700, true), (0o755, true), (0o775, false), (0o777, false), (0o1777, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(closed(&path), is_closed, "{mode:o}");
            let now = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(now, if is_closed { 0o700 } else { mode }, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path.join("file"), "").unwrap();
        assert!(!closed(&path) && fs::metadata(&path).unwrap().mode() & 0o777 == 0o755, "others may use it");
        fs::remove_dir_all(&path).unwrap();
        symlink("/tmp", &path).unwrap();
        assert!(!closed(&path));
        fs::remove_file(&path).unwrap();
        assert!(!closed(&path));
    }

    #[test]
    fn a_taken_name_does_not_prevent_a_private_directory() {
        let parent = std::env::temp_dir().join(format!("slackwater-private-{}", std::process::id()));
        let usual = parent.join(format!("slackwater-{}", geteuid().as_raw()));
        let take: [&dyn Fn(); 4] = [
            &|| fs::write(&usual, "").unwrap(),
            &|| symlink("/", &usual).unwrap(),
            &|| symlink("/nonexistent", &usual).unwrap(),
            &|| {
                fs::create_dir(&usual).unwrap();
                fs::set_permissions(&usual, fs::Permissions::from_mode(0o777)).unwrap();
            },
        ];
        for take in take {
            fs::create_dir(&parent).unwrap();
            take();
            let found = within(&parent).unwrap();
            assert!(found != usual && is_private(&found), "{found:?}");
            assert_eq!(within(&parent).unwrap(), found, "the next process finds it");
            fs::remove_dir_all(&parent).unwrap();
        }
        fs::create_dir(&parent).unwrap();
        assert_eq!(within(&parent).unwrap(), usual);
        assert_eq!(within(&parent).unwrap(), usual);
        fs::remove_dir_all(&parent).unwrap();
    }
}
