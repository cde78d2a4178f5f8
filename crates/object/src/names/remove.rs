//! Removing names.

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::Removal;

use crate::format::{Encode, Inode, Key, Orphan};
use crate::names::{
    Numbered, change_inode, check_name, directory, entries, flags, inode, is_directory, put_inode, touch_directory,
};
use crate::tree::{Stop, View};

/// Removes a name, and returns its node.
///
/// # Errors
/// There is no such name, or it may not be removed: its node is protected, of the other kind, or a directory with names.
pub(crate) fn remove(view: &mut View<'_>, dir: u64, name: &OsStr, removal: Removal) -> Result<Numbered, Stop> {
    check_name(name)?;
    let parent = directory(view, dir)?;
    let ino = entries::find(view, dir, name)?.ok_or(ErrorKind::NotFound)?.ino;
    let victim = inode(view, ino)?;
    flags::check_removal(&parent, &victim)?;
    match (is_directory(&victim), removal) {
        (true, Removal::File) => return Err(ErrorKind::IsDirectory.into()),
        (false, Removal::Directory) => return Err(ErrorKind::NotDirectory.into()),
        (true, Removal::Directory) if !entries::is_empty(view, ino)? => return Err(ErrorKind::NotEmpty.into()),
        (true, Removal::Directory) | (false, Removal::File) => {}
    }
    leave(view, dir, name, &victim)?;
    Ok((ino, lose_name(view, ino, victim)))
}

/// Removes a name from its directory, and counts a subdirectory less. `inode` is that of the name.
pub(super) fn leave(view: &mut View<'_>, dir: u64, name: &OsStr, inode: &Inode) -> Result<(), Stop> {
    entries::remove(view, dir, name)?;
    let (now, is_directory) = (view.now(), is_directory(inode));
    change_inode(view, dir, |dir| {
        dir.nlink -= u32::from(is_directory);
        touch_directory(dir, now);
    })?;
    Ok(())
}

/// Counts a name less. A node that has none left is an orphan (N2).
pub(super) fn lose_name(view: &mut View<'_>, ino: u64, mut inode: Inode) -> Inode {
    inode.nlink = if is_directory(&inode) { 0 } else { inode.nlink - 1 };
    inode.ctime = view.now();
    if inode.nlink == 0 {
        view.put(Key::Orphan(ino), Orphan { never_named: false }.encode());
    }
    put_inode(view, ino, &inode);
    inode
}
