//! The files of records: one for each volume, replaced as a whole.
//!
//! ```text
//! STATE/ID.json   the record
//! STATE/ID.next   the record that is about to replace it
//! STATE/ID.lock   held by the call that changes the volume; it exists as long as that call takes
//! ```
//!
//! # Invariants
//! R1. A file with the name of a record is complete: it is written under another name, synced, and renamed. The rename
//!     is durable when [`Files::write`] returns.
//! R2. Only the holder of a volume's lock writes or removes its files. The lock is flock(2), so it ends with the process.
//! R3. The holder removes the lock's file before it releases it. So a lock counts only if its file still has its name.
//! R4. A record that cannot be read is never replaced or removed: every call on the volume fails until the file is repaired.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

use crate::durable;
use crate::volumes::error::{VolumeError, of_system};
use crate::volumes::id;
use crate::volumes::record::Stored;

/// Longest record that is read: far more than one can have.
const RECORD_BYTES_MAX: u64 = 64 << 10;

const RECORD: &str = "json";
const NEXT: &str = "next";
const LOCK: &str = "lock";

/// The records in a directory.
#[derive(Clone, Debug)]
pub(super) struct Files {
    dir: PathBuf,
}

/// The lock of one volume.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // R3. A file that stays is taken by the next holder.
        let _ = fs::remove_file(&self.path);
    }
}

impl Files {
    /// Creates the directory if it does not exist, for this user only.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir).and_then(|()| fs::read_dir(dir));
        made.map_err(|error| {
            Failure::failed(format!("cannot use the directory {}: {error}", dir.printable()))
                .advise("it has the records of volumes; choose a directory of this user with --state DIR")
        })?;
        Ok(Self { dir: dir.to_path_buf() })
    }

    fn path(&self, id: &str, kind: &str) -> PathBuf {
        self.dir.join(format!("{id}.{kind}"))
    }

    /// Takes the lock of a volume.
    ///
    /// # Errors
    /// The file system failed.
    ///
    /// # Blocking
    /// Until other calls on the volume have ended, in other processes too.
    pub(super) fn lock(&self, id: &str) -> Result<Lock, VolumeError> {
        let path = self.path(id, LOCK);
        let failed = |error: io::Error| of_system("lock", &path, &error);
        loop {
            let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
            let file = file.map_err(failed)?;
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            }
            // R3.
            let held = file.metadata().map_err(failed)?;
            if fs::symlink_metadata(&path).is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
                return Ok(Lock { path, _file: file });
            }
        }
    }

    /// The record of a volume, if it has one.
    ///
    /// # Errors
    /// The record cannot be read (R4).
    pub(super) fn read(&self, id: &str) -> Result<Option<Stored>, VolumeError> {
        let path = self.path(id, RECORD);
        let mut text = Vec::new();
        match File::open(&path).and_then(|file| file.take(RECORD_BYTES_MAX).read_to_end(&mut text)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(of_system("read", &path, &error)),
            Ok(_) => {}
        }
        Stored::decode(&text, id).map(Some).map_err(|reason| {
            let unreadable =
                Failure::failed(format!("the record of a volume in {} is unreadable: {reason}", path.printable()));
            VolumeError::Failed(unreadable.advise(
                "repair the file, or move it away to give the record up; the data of the volume stays where it is",
            ))
        })
    }

    /// Makes `stored` the record of its volume (R1). The caller has the lock.
    ///
    /// # Errors
    /// The file system failed: the record is the former one or this one.
    pub(super) fn write(&self, stored: &Stored) -> Result<(), VolumeError> {
        let [next, path] = [NEXT, RECORD].map(|kind| self.path(&stored.record.id, kind));
        durable::replace(&path, &next, &stored.encode()).map_err(|error| of_system("write", &path, &error))
    }

    /// Removes the files of a volume. The caller has the lock.
    ///
    /// # Errors
    /// The file system failed: the record may still be there.
    pub(super) fn remove(&self, id: &str) -> Result<(), VolumeError> {
        self.remove_next(id)?;
        let path = self.path(id, RECORD);
        durable::remove(&path).map_err(|error| of_system("remove", &path, &error))
    }

    /// Removes a record that did not come to replace the one of its volume. The caller has the lock.
    ///
    /// # Errors
    /// The file system failed.
    pub(super) fn remove_next(&self, id: &str) -> Result<(), VolumeError> {
        let path = self.path(id, NEXT);
        durable::remove(&path).map_err(|error| of_system("remove", &path, &error))
    }

    /// The ids of all volumes that have files, sorted. A process that was killed may have left only the file of a lock.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn ids(&self) -> Result<Vec<String>, VolumeError> {
        let failed = |error: io::Error| of_system("list", &self.dir, &error);
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let of = name.to_str().and_then(|name| name.rsplit_once('.'));
            ids.extend(
                of.filter(|(id, kind)| [RECORD, NEXT, LOCK].contains(kind) && id::is_valid(id))
                    .map(|(id, _)| id.to_owned()),
            );
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}
