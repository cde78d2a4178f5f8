//! Moving names.

use std::ffi::OsStr;

use slackwater::ErrorKind;
use slackwater::backend::RenameMode;

use crate::format::{Corrupt, Key, ROOT};
use crate::names::create::{S_IFMT, enter, make_whiteout};
use crate::names::remove::{leave, lose_name};
use crate::names::{
    Numbered, change_inode, check_name, directory, directory_with_a_name, entries, find, flags, is_directory,
    referred_inode,
};
use crate::tree::{Stop, View};

/// Moves a name. Returns the node that the name `to` led to before, if it lost that name.
///
/// # Errors
/// There is no such name; the new name exists and may not be replaced; a directory would be moved into itself; a
/// directory or a node is protected or has too many names.
pub(crate) fn rename(
    view: &mut View<'_>,
    (from_dir, from): (u64, &OsStr),
    (to_dir, to): (u64, &OsStr),
    mode: RenameMode,
) -> Result<Option<Numbered>, Stop> {
    check_name(from)?;
    check_name(to)?;
    let from_parent = directory(view, from_dir)?;
    let (ino, moved) = find(view, from_dir, from)?.ok_or(ErrorKind::NotFound)?;
    let to_parent = directory_with_a_name(view, to_dir)?;
    let other = find(view, to_dir, to)?;
    match (mode, &other) {
        (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists.into()),
        (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
        (_, _) => {}
    }
    let is_exchange = mode == RenameMode::Exchange;
    let other_moves = other.as_ref().filter(|_| is_exchange);
    if from_dir != to_dir {
        let moves_into_itself = is_directory(&moved) && is_within(view, to_dir, ino)?;
        let other_does = match other_moves {
            Some((other, inode)) if is_directory(inode) => is_within(view, from_dir, *other)?,
            Some(_) | None => false,
        };
        if moves_into_itself || other_does {
            return Err(ErrorKind::Invalid.into());
        }
    }
    if other.as_ref().is_some_and(|(other, _)| *other == ino) {
        return Ok(None);
    }
    flags::check_removal(&from_parent, &moved)?;
    match &other {
        Some((_, inode)) => flags::check_removal(&to_parent, inode)?,
        None => flags::check_new_name(&to_parent)?,
    }
    if let (Some((other, inode)), false) = (&other, is_exchange) {
        match (is_directory(&moved), is_directory(inode)) {
            (false, true) => return Err(ErrorKind::IsDirectory.into()),
            (true, false) => return Err(ErrorKind::NotDirectory.into()),
            (true, true) if !entries::is_empty(view, *other)? => return Err(ErrorKind::NotEmpty.into()),
            (true, true) | (false, false) => {}
        }
    }

    leave(view, from_dir, from, &moved)?;
    let mut replaced = None;
    if let Some((other, inode)) = other {
        leave(view, to_dir, to, &inode)?;
        if is_exchange {
            arrive(view, from_dir, from, other)?;
        } else {
            replaced = Some((other, lose_name(view, other, inode)?));
        }
    }
    arrive(view, to_dir, to, ino)?;
    if mode == RenameMode::Whiteout {
        make_whiteout(view, from_dir, from)?;
    }
    Ok(replaced)
}

/// Gives a node that lost its name another one.
fn arrive(view: &mut View<'_>, dir: u64, name: &OsStr, ino: u64) -> Result<(), Stop> {
    let now = view.now();
    let inode = change_inode(view, ino, |inode| {
        inode.ctime = now;
        if is_directory(inode) {
            inode.parent = dir;
        }
    })?;
    enter(view, dir, name, ino, inode.mode & S_IFMT)
}

/// Whether the directory `inner` is `outer` or below it.
///
/// # Errors
/// `Io` if the parents of a corrupt volume form a cycle.
fn is_within(view: &mut View<'_>, mut inner: u64, outer: u64) -> Result<bool, Stop> {
    // Brent's algorithm: the mark moves on after twice as many steps each time, so a cycle leads back to it.
    let (mut mark, mut steps, mut steps_to_mark) = (inner, 0_u64, 1);
    while inner != outer {
        if inner == ROOT {
            return Ok(false);
        }
        inner = referred_inode(view, inner)?.parent;
        if inner == mark {
            return Err(Stop::corrupt(Key::Inode(inner), &Corrupt("it is its own ancestor")));
        }
        steps += 1;
        if steps == steps_to_mark {
            (mark, steps, steps_to_mark) = (inner, 0, 2 * steps_to_mark);
        }
    }
    Ok(true)
}
