//! Volumes that are directories of a pool.
//!
//! The directory of a volume is open to every user (mode 0777), as other provisioners of local directories make it:
//! programs in containers have users of their own. Other users of the machine are kept out by the mode of the pool.
//!
//! # Invariants
//! T1. A directory is removed in two steps: it is renamed to `.removed-ID`, and then deleted. So a directory with the
//!     name of a volume has all its files, and a removal that was interrupted can be continued.
//! T2. A removal has the lock of the owner of a source, so no mount has the directory and none can begin.
//! T3. A pool that does not exist is an error: its disk may not be mounted. It is never created.
//! T4. The size of a volume is a quota where the pool's file system has quotas. Elsewhere it is only recorded, with a
//!     warning, because platforms ask for a size of every volume. A number of inodes is limited or refused.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

use crate::crash;
use crate::durable::sync_directory;
use crate::quota::{Quota, QuotaError};
use crate::volumes::LockForRemoval;
use crate::volumes::error::{VolumeError, of_system};
use crate::volumes::record::Record;
use crate::volumes::remove_tree::remove_tree;

const MODE: u32 = 0o777;

/// Refuses a volume whose directory exists already: it may have the data of a volume whose record was lost, or be
/// another plugin's.
///
/// # Errors
/// The directory exists, or the pool does not (T3).
pub(super) fn check_absent(pool: &Path, id: &str) -> Result<(), VolumeError> {
    check_pool(pool)?;
    let path = pool.join(id);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(of_system("examine", &path, &error)),
        Ok(_) => Err(exists(&path)),
    }
}

/// Refuses an existing directory that does not exist.
///
/// # Errors
/// `path` is missing, or no directory.
pub(super) fn check_present(path: &Path) -> Result<(), VolumeError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(VolumeError::Invalid(Failure::usage(format!("{} is not a directory", path.printable())))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(VolumeError::Invalid(
            Failure::usage(format!("there is no directory {}", path.printable())).advise("create it first"),
        )),
        Err(error) => Err(of_system("examine", path, &error)),
    }
}

/// Makes the directory of a volume. If it fails, nothing of it is left.
///
/// # Errors
/// The file system failed, or cannot limit it as wanted, or the directory exists.
pub(super) fn make(pool: &Path, record: &Record) -> Result<(), VolumeError> {
    let path = pool.join(&record.id);
    match DirBuilder::new().mode(MODE).create(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists(&path)),
        Err(error) => return Err(of_system("create", &path, &error)),
        Ok(()) => crash::point(),
    }
    // The umask took bits away.
    let made = fs::set_permissions(&path, Permissions::from_mode(MODE)).and_then(|()| sync_directory(&path));
    let made = made.and_then(|()| sync_directory(pool)).map_err(|error| of_system("create", &path, &error));
    made.and_then(|()| limit(&path, record)).inspect_err(|_| {
        let _ = forget_limits(&path);
        let _ = fs::remove_dir(&path);
    })?;
    crash::point();
    Ok(())
}

/// Limits the directory of a volume to its size and number of inodes (T4).
///
/// # Errors
/// The file system failed, or has no quotas and inodes are to be limited.
pub(super) fn limit(path: &Path, record: &Record) -> Result<(), VolumeError> {
    let (bytes, inodes) = (record.bytes, record.limits.quota_inodes());
    if (bytes, inodes) == (None, None) {
        return Ok(());
    }
    match Quota::of(path).and_then(|quota| quota.set(bytes, inodes)) {
        Err(QuotaError::Unsupported(failure)) if inodes.is_none() => {
            tracing::warn!(volume = record.id, %failure, "this volume may grow beyond its size");
            Ok(())
        }
        Err(QuotaError::Unsupported(failure)) => Err(VolumeError::Invalid(failure)),
        Err(QuotaError::Failed(failure)) => Err(VolumeError::Failed(failure)),
        Ok(()) => Ok(()),
    }
}

/// Removes the limits of a directory that is to be deleted, if it has any.
fn forget_limits(path: &Path) -> Result<(), VolumeError> {
    match Quota::of(path).and_then(|quota| quota.remove()) {
        Err(QuotaError::Failed(failure)) => Err(VolumeError::Failed(failure)),
        Ok(()) | Err(QuotaError::Unsupported(_)) => Ok(()),
    }
}

/// Removes the directory of a volume that nothing has used, if it exists. One with files is not ours, and stays.
///
/// # Errors
/// The file system failed.
pub(super) fn undo(pool: &Path, id: &str) -> Result<(), VolumeError> {
    let path = pool.join(id);
    if path.is_dir() {
        forget_limits(&path)?;
    }
    match fs::remove_dir(&path) {
        Err(error)
            if ![ErrorKind::NotFound, ErrorKind::DirectoryNotEmpty, ErrorKind::NotADirectory]
                .contains(&error.kind()) =>
        {
            Err(of_system("remove", &path, &error))
        }
        _ => Ok(()),
    }
}

/// Removes the directory of a volume, or what an interrupted removal has left of it. `begin` is called before anything is
/// changed, when it is certain that no mount has the directory.
///
/// # Errors
/// A mount has it, the pool is not there, `begin` failed, or the file system failed. The call can be repeated.
///
/// # Blocking
/// Until all files are deleted.
pub(super) fn remove(
    pool: &Path,
    id: &str,
    lock: LockForRemoval,
    begin: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    check_pool(pool)?;
    let (path, hidden) = (pool.join(id), pool.join(format!(".removed-{id}")));
    let is_there = fs::symlink_metadata(&path).is_ok();
    let _lock = if is_there { Some(lock(&path)?) } else { None }; // T2
    begin()?;
    // An interrupted removal comes first: a name is free only once.
    delete(&hidden)?;
    if is_there {
        let renamed = fs::rename(&path, &hidden).and_then(|()| sync_directory(pool)); // T1
        renamed.map_err(|error| of_system("remove", &path, &error))?;
        crash::point();
        delete(&hidden)?;
    }
    sync_directory(pool).map_err(|error| of_system("remove", &path, &error))?;
    crash::point();
    Ok(())
}

fn delete(hidden: &Path) -> Result<(), VolumeError> {
    if hidden.is_dir() {
        forget_limits(hidden)?;
    }
    match remove_tree(hidden) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(of_system("delete", hidden, &error)),
        _ => Ok(()),
    }
}

fn check_pool(pool: &Path) -> Result<(), VolumeError> {
    match fs::metadata(pool) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(VolumeError::Invalid(Failure::usage(format!("the pool {} is not a directory", pool.printable())))),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(VolumeError::Failed(
            Failure::failed(format!("there is no pool {}", pool.printable()))
                .advise("mount its disk, or create the directory"),
        )),
        Err(error) => Err(of_system("examine", pool, &error)),
    }
}

fn exists(path: &Path) -> VolumeError {
    let shown = path.printable();
    VolumeError::Invalid(
        Failure::usage(format!("{shown} exists already, and no record says that it is this volume"))
            .advise(format!("to use its data, make a volume with source={shown}; or remove it")),
    )
}
