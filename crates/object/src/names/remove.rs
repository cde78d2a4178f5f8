//! Removing names.

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::Removal;

use crate::format::{Corrupt, Encode, Inode, Key, Orphan};
use crate::names::{
    Numbered, check_name, directory, entries, find, flags, inode, is_directory, put_inode, touch_directory,
};
use crate::tree::{Stop, View};

/// Removes a name, and returns its node.
///
/// # Errors
/// There is no such name, or it may not be removed: its node is protected, of the other kind, or a directory with names.
pub(crate) fn remove(view: &mut View<'_>, dir: u64, name: &OsStr, removal: Removal) -> Result<Numbered, Stop> {
    check_name(name)?;
    let parent = directory(view, dir)?;
    let (ino, victim) = find(view, dir, name)?.ok_or(ErrorKind::NotFound)?;
    flags::check_removal(&parent, &victim)?;
    match (is_directory(&victim), removal) {
        (true, Removal::File) => return Err(ErrorKind::IsDirectory.into()),
        (false, Removal::Directory) => return Err(ErrorKind::NotDirectory.into()),
        (true, Removal::Directory) if !entries::is_empty(view, ino)? => return Err(ErrorKind::NotEmpty.into()),
        (true, Removal::Directory) | (false, Removal::File) => {}
    }
    leave(view, dir, name, &victim)?;
    Ok((ino, lose_name(view, ino, victim)?))
}

/// Removes a name from its directory, and counts a subdirectory less. `node` is that of the name.
pub(super) fn leave(view: &mut View<'_>, dir: u64, name: &OsStr, node: &Inode) -> Result<(), Stop> {
    entries::remove(view, dir, name)?;
    let mut parent = inode(view, dir)?;
    if is_directory(node) {
        parent.nlink = one_link_less(dir, &parent)?;
    }
    touch_directory(&mut parent, view.now());
    put_inode(view, dir, &parent);
    Ok(())
}

/// Counts a name less. A node that has none left is an orphan (N2).
pub(super) fn lose_name(view: &mut View<'_>, ino: u64, mut inode: Inode) -> Result<Inode, Stop> {
    inode.nlink = if is_directory(&inode) { 0 } else { one_link_less(ino, &inode)? };
    inode.ctime = view.now();
    if inode.nlink == 0 {
        view.put(Key::Orphan(ino), Orphan { never_named: false }.encode());
    }
    put_inode(view, ino, &inode);
    Ok(inode)
}

fn one_link_less(ino: u64, inode: &Inode) -> Result<u32, Stop> {
    inode.nlink.checked_sub(1).ok_or_else(|| Stop::corrupt(Key::Inode(ino), &Corrupt("it has fewer links than names")))
}
