//! The volumes of a plugin: their records, and how they are made and removed.
//!
//! ```text
//! id         from the name of a volume to its id
//! pool       where volumes are made
//! record     a volume as its file records it
//! files      the files of records: atomic, durable, with a lock for each volume
//! place      the source of a volume, by the kind of its pool
//! directory  volumes that are directories; remove_tree deletes one
//! error      why a call fails
//! ```
//!
//! # Invariants
//! V1. A volume is *ready* from the moment at which its record says so, until its removal begins. Only then do other
//!     calls show it. Its source is complete as long as it is ready.
//! V2. A record exists before the source is made and until it is gone. So nothing is left behind by a process that was
//!     killed: [`Volumes::finish`] or the next call on the volume undoes what was not ready, and continues a removal.
//! V3. Calls on one volume exclude one another, in other threads and processes too; calls on different ones do not.
//! V4. Only a call with credentials changes the store of a volume that was made with some. Those of this process may lead to
//!     another store, where nothing of the volume is found, or may be allowed more.
//! V5. Nothing is removed because a record is missing or unreadable. A volume without a record is removed only by a call that
//!     names it, and one whose record is unreadable never.

mod directory;
mod error;
mod files;
mod id;
mod place;
mod pool;
mod record;
mod remove_tree;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::path::Path;

use slackwater_control::exit::Failure;
use slackwater_host::size;

pub(crate) use self::error::VolumeError;
pub(crate) use self::pool::Pool;
pub(crate) use self::record::Record;

use self::files::Files;
use self::record::{State, Stored};
use crate::limits::{Limits, shown};
use crate::object::Credentials;

/// Largest size, as file systems and protocols count.
const BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// A volume to be made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NewVolume {
    /// The name, as the platform gives it: any text of 1 to 1024 bytes.
    pub(crate) name: String,
    pub(crate) pool: Pool,
    /// The least size.
    pub(crate) required_bytes: Option<u64>,
    /// The largest size.
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) limits: Limits,
}

/// Takes the lock of the owner of a directory that is to be removed, until the descriptor is closed. It fails with `Busy`
/// if a mount has the directory.
pub type LockForRemoval = fn(&Path) -> Result<OwnedFd, Failure>;

/// The volumes whose records are in a directory. Clones share it. All calls block on the file system, those that make and
/// remove volumes also for the store and for other calls on the same volume.
#[derive(Clone, Debug)]
pub(crate) struct Volumes {
    files: Files,
    lock_for_removal: LockForRemoval,
    /// The credentials that came with the call.
    credentials: Credentials,
}

impl Volumes {
    /// The volumes with records in `state`, which is created if it does not exist. [`Volumes::finish`] should follow.
    ///
    /// # Errors
    /// The directory cannot be created or read.
    pub(crate) fn open(state: &Path, lock_for_removal: LockForRemoval) -> Result<Self, Failure> {
        Ok(Self { files: Files::open(state)?, lock_for_removal, credentials: Credentials::default() })
    }

    /// The same volumes, for a call that came with credentials.
    pub(crate) fn using(&self, credentials: Credentials) -> Self {
        Self { credentials, ..self.clone() }
    }

    /// Finishes what processes that were killed had begun: removals are continued, volumes that were not ready are undone
    /// (V2). Failures are logged, and the next call on the volume tries again.
    ///
    /// # Blocking
    /// Until the data of these volumes is deleted. Calls on other volumes can be made meanwhile.
    pub(crate) fn finish(&self) {
        let log = |error: VolumeError| tracing::warn!(%error, "cannot finish an interrupted call on a volume");
        match self.files.ids() {
            Ok(ids) => ids.iter().filter_map(|id| self.finish_one(id).err()).for_each(log),
            Err(error) => log(error),
        }
    }

    fn finish_one(&self, id: &str) -> Result<(), VolumeError> {
        let _lock = self.files.lock(id)?;
        match self.files.read(id)? {
            // The credentials are in the next call.
            Some(stored) if stored.record.has_credentials => self.files.remove_next(id),
            Some(stored) if stored.state != State::Ready => self.clear(&stored),
            _ => self.files.remove_next(id),
        }
    }

    /// Makes a volume. If there is one of this name, and it is as wanted, returns that one.
    ///
    /// # Errors
    /// [`VolumeError::Different`] if there is one that is not as wanted. Otherwise nothing is left.
    pub(crate) fn create(&self, wanted: &NewVolume) -> Result<Record, VolumeError> {
        let id = id_of(&wanted.name)?;
        let bytes = wanted.bytes()?;
        wanted.check_limits()?;
        let _lock = self.files.lock(&id)?;
        if let Some(stored) = self.files.read(&id)? {
            match stored.state {
                State::Ready => return wanted.check_same(stored.record),
                State::Making | State::Removing => self.clear(&stored)?,
            }
        }
        let source = wanted.pool.source_of(&id);
        let (name, pool, limits) = (wanted.name.clone(), wanted.pool.clone(), wanted.limits.clone());
        let has_credentials = !self.credentials.is_empty();
        let record = Record { id, name, pool, source, bytes, limits, has_credentials };
        place::check(&record, &self.credentials)?;
        self.files.write(&Stored::new(State::Making, &record))?;
        let made = place::make(&record, &self.credentials)
            .and_then(|()| self.files.write(&Stored::new(State::Ready, &record)));
        if let Err(error) = made {
            // Then it is undone later (V2).
            if let Err(error) = self.clear(&Stored::new(State::Making, &record)) {
                tracing::warn!(%error, "cannot undo the making of a volume");
            }
            return Err(error);
        }
        Ok(record)
    }

    /// The volume with this id, if it is ready.
    ///
    /// # Errors
    /// The record is unreadable.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Record>, VolumeError> {
        let stored = if id::is_valid(id) { self.files.read(id)? } else { None };
        Ok(stored.filter(|stored| stored.state == State::Ready).map(|stored| stored.record))
    }

    /// The volume of this name, if it is ready.
    ///
    /// # Errors
    /// The record is unreadable.
    pub(crate) fn named(&self, name: &str) -> Result<Option<Record>, VolumeError> {
        Ok(self.get(&id::of(name))?.filter(|record| record.name == name))
    }

    /// All volumes that are ready, sorted by id.
    ///
    /// # Errors
    /// A record is unreadable. A list without it would look as if its volume were gone.
    pub(crate) fn list(&self) -> Result<Vec<Record>, VolumeError> {
        self.files.ids()?.iter().filter_map(|id| self.get(id).transpose()).collect()
    }

    /// Makes a volume larger. One that has this size or more stays as it is.
    ///
    /// # Errors
    /// There is no such volume, or no volume can have the size.
    pub(crate) fn resize(&self, id: &str, bytes: u64) -> Result<Record, VolumeError> {
        if !id::is_valid(id) {
            return Err(VolumeError::missing(id));
        }
        check_size(bytes)?;
        let _lock = self.files.lock(id)?;
        let Some(stored) = self.files.read(id)?.filter(|stored| stored.state == State::Ready) else {
            return Err(VolumeError::missing(id));
        };
        if stored.record.bytes.is_some_and(|present| present >= bytes) {
            return Ok(stored.record);
        }
        let record = Record { bytes: Some(bytes), ..stored.record };
        place::resize(&record)?;
        self.files.write(&Stored::new(State::Ready, &record))?;
        Ok(record)
    }

    /// Removes a volume and its data; the data of [`Pool::Existing`] stays. Without a record, another machine may have made it:
    /// it is looked for in those of `pools` that are stores. If there is no such volume, that is no error.
    ///
    /// # Errors
    /// [`VolumeError::Busy`] if a process uses the volume, which stays as it is. After another error, it may be gone in
    /// part, and the call can be repeated.
    pub(crate) fn remove<'p>(&self, id: &str, pools: impl IntoIterator<Item = &'p Pool>) -> Result<(), VolumeError> {
        if !id::is_valid(id) {
            return Ok(());
        }
        let _lock = self.files.lock(id)?;
        let stored = self.files.read(id)?;
        let mut removed = stored.as_ref().map_or(Ok(()), |stored| self.clear(stored));
        // A call to make it that was repeated elsewhere has made another prefix.
        let own = stored.as_ref().map(|stored| &stored.record.pool);
        let is_asked = |pool: &&Pool| own.is_none_or(|own| own == *pool);
        for pool in pools.into_iter().filter(is_asked) {
            if let Pool::Store(url) = pool {
                removed = removed.and_then(|()| place::remove_in(url, id, &self.credentials));
            }
        }
        removed
    }

    /// Removes a volume in any state, or what is left of it. The caller has the lock.
    fn clear(&self, stored: &Stored) -> Result<(), VolumeError> {
        let record = &stored.record;
        if record.has_credentials && self.credentials.is_empty() {
            let text = format!("the volume {} was made with a secret, and the call has none", record.id);
            return Err(VolumeError::Invalid(Failure::usage(text).advise("name the secret of its storage class")));
        }
        let begin = || match stored.state {
            State::Removing => Ok(()),
            State::Ready | State::Making => self.files.write(&Stored::new(State::Removing, record)),
        };
        let removed = match stored.state {
            State::Making => place::undo(record, &self.credentials),
            State::Ready | State::Removing => place::remove(record, &self.credentials, self.lock_for_removal, begin),
        };
        match removed {
            Ok(()) => self.files.remove(&record.id),
            // Nothing was changed (V1).
            Err(busy @ VolumeError::Busy(_)) if stored.state == State::Ready => {
                self.files.write(stored)?;
                Err(busy)
            }
            Err(error) => Err(error),
        }
    }
}

impl NewVolume {
    /// The size of the new volume.
    fn bytes(&self) -> Result<Option<u64>, VolumeError> {
        for bytes in [self.required_bytes, self.limit_bytes].into_iter().flatten() {
            check_size(bytes)?;
        }
        match (self.required_bytes, self.limit_bytes) {
            (Some(required), Some(limit)) if required > limit => Err(VolumeError::OutOfRange(Failure::usage(format!(
                "the volume must have at least {} and at most {}",
                size::text(required),
                size::text(limit)
            )))),
            (required, limit) => Ok(required.or(limit)),
        }
    }

    fn check_limits(&self) -> Result<(), VolumeError> {
        let refused = |key: &str, others: &str, these: &str| {
            let text = format!("slackwater.{key} is for volumes in {others}, and the pool is {these}");
            Err(VolumeError::Invalid(Failure::usage(text).advise("leave it out, or choose another pool")))
        };
        let (store, directory) = ("an object store", "a directory");
        match self.pool.is_store() {
            true if self.limits.quota_inodes().is_some() => refused("quota-inodes", directory, store),
            false if self.limits.get("upload-limit").is_some() => refused("upload-limit", store, directory),
            _ => Ok(()),
        }
    }

    /// Returns the present volume, if it is as the new one is wanted.
    fn check_same(&self, present: Record) -> Result<Record, VolumeError> {
        let name = shown(&self.name);
        let different = |what: &str| {
            let text = format!("there is a volume \"{name}\" already, with another {what}");
            Err(VolumeError::Different(
                Failure::failed(text).advise("choose another name, or remove that volume first"),
            ))
        };
        let is_large_enough = self.required_bytes.is_none_or(|least| present.bytes.is_some_and(|bytes| bytes >= least));
        let is_small_enough = self.limit_bytes.is_none_or(|most| present.bytes.is_some_and(|bytes| bytes <= most));
        if present.name != self.name {
            different("name and the same id")
        } else if present.pool != self.pool {
            different("pool")
        } else if present.limits != self.limits {
            different("set of limits")
        } else if !is_large_enough || !is_small_enough {
            different("size")
        } else {
            Ok(present)
        }
    }
}

/// The id of a volume that can have this name.
fn id_of(name: &str) -> Result<String, VolumeError> {
    if (1..=id::NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(id::of(name));
    }
    let text = format!("\"{}\" is not a name for a volume", shown(name));
    Err(VolumeError::Invalid(Failure::usage(text).advise(format!("use 1 to {} bytes", id::NAME_BYTES_MAX))))
}

fn check_size(bytes: u64) -> Result<(), VolumeError> {
    if (1..=BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let text = format!("a volume cannot have a size of {bytes} bytes");
    Err(VolumeError::OutOfRange(Failure::usage(text).advise(format!("use 1 to {BYTES_MAX} bytes"))))
}
