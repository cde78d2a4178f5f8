//! Volumes that a plugin of a container platform makes and deletes.

use slackwater_object::{Location, ObjectBackend, delete, names_below};

use crate::exit::Failure;
use crate::object::failures;

/// Open to every user: programs in containers have users of their own.
const ROOT_MODE: u32 = 0o777;

/// A URL as messages show it.
///
/// # Errors
/// It is no place for volumes.
pub(crate) fn canonical_url(url: &str) -> Result<String, Failure> {
    location(url).map(|location| location.to_string())
}

/// Makes an empty volume.
///
/// # Errors
/// There is one already, or the store failed.
///
/// # Blocking
/// For the store.
pub(crate) fn make_volume(url: &str) -> Result<(), Failure> {
    ObjectBackend::mkfs_with_mode(&location(url)?, ROOT_MODE).map_err(|error| failures::of(&error, url))
}

/// Deletes a volume, or what is left of one.
///
/// # Errors
/// `Busy` if a process has it; or the store failed. The call can be repeated.
///
/// # Blocking
/// For the store, until all objects are deleted.
pub(crate) fn delete_volume(url: &str) -> Result<(), Failure> {
    delete(&location(url)?).map_err(|error| failures::of(&error, url))
}

/// The URLs directly below a pool, each of which may be that of a volume.
///
/// # Errors
/// The store failed.
///
/// # Blocking
/// For the store.
pub(crate) fn urls_below(pool: &str) -> Result<Vec<String>, Failure> {
    let names = names_below(&location(pool)?).map_err(|error| failures::of(&error, pool))?;
    Ok(names.into_iter().map(|name| format!("{pool}/{name}")).collect())
}

fn location(url: &str) -> Result<Location, Failure> {
    Location::parse(url).map_err(|error| failures::of(&error, url))
}
