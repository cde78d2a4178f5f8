//! The names of a directory, each at the hash of its name.

use std::ffi::OsStr;

use slackwater::ErrorKind;

use crate::format::{Encode, Entries, Entry, Key, hash_of_name};
use crate::tree::{Stop, View};

/// The entry of a name.
pub(super) fn find(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<Option<Entry>, Stop> {
    let hash = hash_of_name(view.salt(), name);
    let entries = read(view, dir, hash)?;
    Ok(entries.0.into_iter().find(|entry| entry.name == name))
}

/// Adds a name that does not exist.
///
/// # Errors
/// `NoSpace` if there are too many names of its hash.
pub(super) fn insert(view: &mut View<'_>, dir: u64, entry: Entry) -> Result<(), Stop> {
    let hash = hash_of_name(view.salt(), &entry.name);
    let mut entries = read(view, dir, hash)?;
    if !entries.add(entry) {
        return Err(ErrorKind::NoSpace.into());
    }
    view.put(Key::Entries { dir, hash }, entries.encode());
    Ok(())
}

/// Removes a name.
pub(super) fn remove(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<(), Stop> {
    let hash = hash_of_name(view.salt(), name);
    let mut entries = read(view, dir, hash)?;
    if let Some(index) = entries.0.iter().position(|entry| entry.name == name) {
        entries.free(index);
    }
    match entries.0.is_empty() {
        true => view.delete(Key::Entries { dir, hash }),
        false => view.put(Key::Entries { dir, hash }, entries.encode()),
    }
    Ok(())
}

/// Whether a directory has no names.
pub(super) fn is_empty(view: &mut View<'_>, dir: u64) -> Result<bool, Stop> {
    let (first, last) = (Key::Entries { dir, hash: 0 }, Key::Entries { dir, hash: u64::MAX });
    Ok(view.scan(first, last, 1)?.is_empty())
}

fn read(view: &mut View<'_>, dir: u64, hash: u64) -> Result<Entries, Stop> {
    Ok(view.record(Key::Entries { dir, hash })?.unwrap_or_default())
}
