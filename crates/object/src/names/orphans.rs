//! Nodes without a name: open files that were removed or never had one.

use slackwater::ErrorKind;

use crate::contents::map::{self, Step};
use crate::format::{Inode, Key, Orphan, Xattr};
use crate::tree::{Stop, View};

/// Some nodes without a name, with numbers from `first` on.
pub(crate) fn orphans(view: &mut View<'_>, first: u64, limit: usize) -> Result<Vec<u64>, Stop> {
    let found = view.scan(Key::Orphan(first), Key::Orphan(u64::MAX), limit)?;
    let number = |(key, _)| if let Key::Orphan(ino) = key { Some(ino) } else { None };
    Ok(found.into_iter().filter_map(number).collect())
}

/// Frees a part of a node that has no name and is not open. Returns whether nothing is left.
pub(crate) fn free_step(view: &mut View<'_>, ino: u64) -> Result<bool, Stop> {
    if view.get(Key::Orphan(ino))?.is_none() {
        return Ok(true);
    }
    let orphan: Option<Inode> = view.record(Key::Inode(ino))?;
    let Some(orphan) = orphan.filter(|orphan| orphan.nlink == 0) else {
        // The record is wrong (N2): a node that has names is kept.
        view.delete(Key::Orphan(ino));
        return Ok(true);
    };
    if map::free(view, ino)? != Step::Done {
        return Ok(false);
    }
    for number in large_xattrs(&orphan) {
        view.delete(Key::Xattr { ino, number });
    }
    view.delete(Key::Inode(ino));
    view.delete(Key::Orphan(ino));
    view.count(-1, 0);
    Ok(true)
}

/// Whether a node without a name never had one.
pub(super) fn may_get_a_name(view: &mut View<'_>, ino: u64) -> Result<bool, Stop> {
    let orphan: Orphan = view.record(Key::Orphan(ino))?.ok_or(ErrorKind::NotFound)?;
    Ok(orphan.never_named)
}

fn large_xattrs(inode: &Inode) -> impl Iterator<Item = u64> + '_ {
    inode.xattrs.iter().filter_map(|(_, value)| match value {
        Xattr::Apart(number) => Some(*number),
        Xattr::Here(_) => None,
    })
}
