//! Reading directories.
//!
//! A cookie is the hash of a name with its index among the names of that hash: it does not change while the name exists
//! (N3), and continues the listing after the name is removed.

use slackwater::backend::{DirEntry, NodeKind};

use crate::format::{Entries, Inode, Key};
use crate::names::{directory, referred_inode};
use crate::tree::{Stop, View, decode};

/// The most hashes of one answer.
const HASHES_PER_CALL: usize = 512;
/// The bits of a cookie that are the index of a name.
const INDEX: u64 = 3;

/// The entries after `cookie`; empty at the end.
///
/// # Errors
/// `NotDirectory`.
pub(crate) fn readdir(view: &mut View<'_>, dir: u64, cookie: u64) -> Result<Vec<DirEntry>, Stop> {
    directory(view, dir)?;
    let (first, last) = (Key::Entries { dir, hash: cookie & !INDEX }, Key::Entries { dir, hash: u64::MAX });
    let hashes = view.scan(first, last, HASHES_PER_CALL)?;
    let mut found = Vec::with_capacity(hashes.len());
    for (key, bytes) in hashes {
        let Key::Entries { hash, .. } = key else { continue };
        let entries: Entries = decode(key, &bytes)?;
        for (index, entry) in (0..).zip(entries.0) {
            if hash | index > cookie && !entry.is_free() {
                let kind = Some(NodeKind::of_mode(entry.type_bits));
                found.push(DirEntry { cookie: hash | index, name: entry.name, ino: entry.ino, kind });
            }
        }
    }
    Ok(found)
}

/// The entries of [`readdir`], each with its inode; without it if it is corrupt, which a lookup of the name reports.
///
/// # Errors
/// `NotDirectory`.
pub(crate) fn readdir_plus(view: &mut View<'_>, dir: u64, cookie: u64) -> Result<Vec<(DirEntry, Option<Inode>)>, Stop> {
    let entries = readdir(view, dir, cookie)?;
    let keys: Vec<Key> = entries.iter().map(|entry| Key::Inode(entry.ino)).collect();
    view.expect(&keys)?;
    let with_inode = |entry: DirEntry| match referred_inode(view, entry.ino) {
        Ok(inode) => Ok((entry, Some(inode))),
        Err(Stop::Failed(_)) => Ok((entry, None)),
        Err(Stop::Missing) => Err(Stop::Missing),
    };
    entries.into_iter().map(with_inode).collect()
}
