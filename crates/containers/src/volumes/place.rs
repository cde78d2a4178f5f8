//! Making and removing the source of a volume, by the kind of its pool.

use slackwater_control::name;

use crate::object;
use crate::object::Credentials;
use crate::volumes::error::VolumeError;
use crate::volumes::pool::Pool;
use crate::volumes::record::Record;
use crate::volumes::{LockForRemoval, directory};

/// Refuses a volume whose source exists already, or the other way round for [`Pool::Existing`].
///
/// # Errors
/// The refusal, or the file system or the store failed.
///
/// # Blocking
/// For the store.
pub(super) fn check(record: &Record, credentials: &Credentials) -> Result<(), VolumeError> {
    match &record.pool {
        Pool::Directory(pool) => directory::check_absent(pool, &record.id),
        // Its prefix is new.
        Pool::Store(_) => Ok(()),
        Pool::Existing(place) if name::is_url(place) => Ok(object::check_volume(&record.source, credentials)?),
        Pool::Existing(place) => directory::check_present(place),
    }
}

/// Makes the source of a volume.
///
/// # Errors
/// The file system or the store failed. [`undo`] removes what was made.
///
/// # Blocking
/// For the store.
pub(super) fn make(record: &Record, credentials: &Credentials) -> Result<(), VolumeError> {
    match &record.pool {
        Pool::Directory(pool) => directory::make(pool, record),
        Pool::Store(_) => Ok(object::make_volume(&record.source, credentials)?),
        Pool::Existing(_) => Ok(()),
    }
}

/// Gives a volume the size of its record.
///
/// # Errors
/// The file system refuses.
pub(super) fn resize(record: &Record) -> Result<(), VolumeError> {
    match &record.pool {
        Pool::Directory(pool) => directory::limit(&pool.join(&record.id), record),
        Pool::Store(_) | Pool::Existing(_) => Ok(()),
    }
}

/// Removes what a call that made a volume has left. Nothing has used it.
///
/// # Errors
/// The file system or the store failed.
///
/// # Blocking
/// For the store.
pub(super) fn undo(record: &Record, credentials: &Credentials) -> Result<(), VolumeError> {
    match &record.pool {
        Pool::Directory(pool) => directory::undo(pool, &record.id),
        Pool::Store(_) => Ok(object::delete_volume(&record.source, credentials)?),
        Pool::Existing(_) => Ok(()),
    }
}

/// Removes the sources that volumes with this id have in a store, whichever machine made them.
///
/// # Errors
/// As [`remove`].
///
/// # Blocking
/// Until all data is deleted.
pub(super) fn remove_in(store: &str, id: &str, credentials: &Credentials) -> Result<(), VolumeError> {
    let pool = Pool::Store(store.to_owned());
    let mut of_volume = object::urls_below(store, credentials)?.into_iter().filter(|url| pool.has(url, id));
    of_volume.try_for_each(|url| Ok(object::delete_volume(&url, credentials)?))
}

/// Removes the source of a volume, or what an interrupted removal has left of it. `begin` is called before anything is
/// changed.
///
/// # Errors
/// [`VolumeError::Busy`], with nothing changed: a process uses the volume. Otherwise the call can be repeated.
///
/// # Blocking
/// Until all data is deleted.
pub(super) fn remove(
    record: &Record,
    credentials: &Credentials,
    lock: LockForRemoval,
    begin: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    match &record.pool {
        Pool::Directory(pool) => directory::remove(pool, &record.id, lock, begin),
        Pool::Store(_) => {
            begin()?;
            Ok(object::delete_volume(&record.source, credentials)?)
        }
        Pool::Existing(_) => begin(),
    }
}
