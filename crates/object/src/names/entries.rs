//! The names of a directory, each at the hash of its name.

use std::ffi::OsStr;

use slackwater::ErrorKind;

use crate::format::{Decode, Encode, Entries, Entry, Key, NAMES_PER_HASH, hash_of_name};
use crate::names::corrupt;
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
    add(&mut entries, entry)?;
    view.put(Key::Entries { dir, hash }, entries.encode());
    Ok(())
}

/// Removes a name.
pub(super) fn remove(view: &mut View<'_>, dir: u64, name: &OsStr) -> Result<(), Stop> {
    let hash = hash_of_name(view.salt(), name);
    let mut entries = read(view, dir, hash)?;
    take(&mut entries, name);
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
    let key = Key::Entries { dir, hash };
    match view.get(key)? {
        Some(bytes) => Entries::decode(&bytes).map_err(|error| corrupt(key, &error)),
        None => Ok(Entries::default()),
    }
}

/// Puts `entry` at a free index (N3).
fn add(entries: &mut Entries, entry: Entry) -> Result<(), Stop> {
    match entries.0.iter().position(Entry::is_free) {
        Some(index) => entries.0[index] = entry,
        None if entries.0.len() < NAMES_PER_HASH => entries.0.push(entry),
        None => return Err(ErrorKind::NoSpace.into()),
    }
    Ok(())
}

/// Frees the index of `name` (N3).
fn take(entries: &mut Entries, name: &OsStr) {
    if let Some(entry) = entries.0.iter_mut().find(|entry| entry.name == name) {
        *entry = Entry::FREE;
    }
    while entries.0.last().is_some_and(Entry::is_free) {
        entries.0.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Entry {
        Entry { name: name.into(), ino: 7, type_bits: 0o100_000 }
    }

    fn names(entries: &Entries) -> Vec<&str> {
        entries.0.iter().map(|entry| entry.name.to_str().expect("text")).collect()
    }

    #[test]
    fn names_of_one_hash_keep_their_index() {
        let mut entries = Entries::default();
        for name in ["a", "b", "c"] {
            add(&mut entries, entry(name)).expect("there is space");
        }
        take(&mut entries, OsStr::new("a"));
        assert_eq!(names(&entries), ["", "b", "c"]);
        take(&mut entries, OsStr::new("c"));
        assert_eq!(names(&entries), ["", "b"]);
        add(&mut entries, entry("d")).expect("there is space");
        assert_eq!(names(&entries), ["d", "b"]);
        let decoded = Entries::decode(&entries.encode()).expect("valid");
        assert_eq!(decoded, entries);
        take(&mut entries, OsStr::new("d"));
        take(&mut entries, OsStr::new("b"));
        assert_eq!(names(&entries), [""; 0]);
    }

    #[test]
    fn a_fifth_name_of_one_hash_is_refused() {
        let mut entries = Entries::default();
        for name in ["a", "b", "c", "d"] {
            add(&mut entries, entry(name)).expect("there is space");
        }
        let refused = add(&mut entries, entry("e"));
        assert!(matches!(refused, Err(Stop::Failed(error)) if error.kind() == ErrorKind::NoSpace));
        take(&mut entries, OsStr::new("b"));
        add(&mut entries, entry("e")).expect("there is space");
        assert_eq!(names(&entries), ["a", "e", "c", "d"]);
    }
}
