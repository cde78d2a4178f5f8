//! Volumes that a plugin of a container platform makes and deletes.

use slackwater_control::exit::Failure;
use slackwater_control::object_volumes::{failure_of, locate};
use slackwater_object::{Location, ObjectBackend, delete, names_below};

use crate::object::Credentials;

/// The mode of the root directory, open to every user: programs in containers have users of their own.
const ROOT_MODE: u32 = 0o777;

/// A URL as messages show it.
///
/// # Errors
/// The URL is no place for volumes.
pub(crate) fn canonical_url(url: &str) -> Result<String, Failure> {
    locate(url, None).map(|location| location.to_string())
}

/// Makes an empty volume.
///
/// # Errors
/// There is a volume already, or the store failed.
///
/// # Blocking
/// For the store.
pub(crate) fn make_volume(url: &str, credentials: &Credentials) -> Result<(), Failure> {
    ObjectBackend::mkfs_with_mode(&location(url, credentials)?, ROOT_MODE).map_err(|error| failure_of(&error, url))
}

/// Deletes a volume, or what is left of one.
///
/// # Errors
/// `Busy` if a process has it; or the store failed. The call can be repeated.
///
/// # Blocking
/// For the store, until all objects are deleted.
pub(crate) fn delete_volume(url: &str, credentials: &Credentials) -> Result<(), Failure> {
    delete(&location(url, credentials)?).map_err(|error| failure_of(&error, url))
}

/// The URLs directly below a pool, each of which may be that of a volume.
///
/// # Errors
/// The store failed.
///
/// # Blocking
/// For the store.
pub(crate) fn urls_below(pool: &str, credentials: &Credentials) -> Result<Vec<String>, Failure> {
    let names = names_below(&location(pool, credentials)?).map_err(|error| failure_of(&error, pool))?;
    Ok(names.into_iter().map(|name| format!("{pool}/{name}")).collect())
}

/// Reads that there is a volume.
///
/// # Errors
/// There is no volume, or the store failed.
///
/// # Blocking
/// For the store.
pub(crate) fn check_volume(url: &str, credentials: &Credentials) -> Result<(), Failure> {
    ObjectBackend::look(&location(url, credentials)?).map(drop).map_err(|error| failure_of(&error, url))
}

fn location(url: &str, credentials: &Credentials) -> Result<Location, Failure> {
    if credentials.is_empty() {
        return locate(url, None);
    }
    Location::parse_in(url, credentials.variables().collect()).map_err(|error| failure_of(&error, url))
}
