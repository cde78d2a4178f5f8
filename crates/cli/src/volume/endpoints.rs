//! The source and the mount point of a mount, checked before anything is created or locked.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{io, iter};

use rustix::fs::OFlags;
use rustix::io::Errno;
use slackwater_control::errln;
use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::{is_answer_of_dead, is_dead, name_of};
use slackwater_control::name;
use slackwater_control::os::detach;
use slackwater_control::os::mount_table::{self, is_no_mount_point};
use slackwater_control::output::shell;
use slackwater_control::spec::VolumeSpec;
use slackwater_host::Printable as _;

use crate::object;
use crate::registry::Entry;
use crate::source::directory::Directory;
use crate::source::{self, Source};

/// Source and mount point, which may be mounted together.
pub(crate) struct Endpoints {
    pub(crate) source: Source,
    /// Of a directory, open for reading; the lock is taken on it.
    pub(crate) source_fd: Option<OwnedFd>,
    pub(crate) mountpoint: PathBuf,
}

/// Finds both. Frees the mount point of a dead process first. `mounts` are all live mounts.
///
/// # Errors
/// One of them is missing, is not a directory, is in use, or is inside the other. The source is an object volume and its
/// store fails. The source cannot have one of the options.
///
/// # Blocking
/// For the source.
pub(crate) fn find(
    source: &Path,
    mountpoint: &Path,
    options: &VolumeSpec,
    credentials: Option<&Path>,
    mounts: &[&Entry],
) -> Result<Endpoints, Failure> {
    source::check_options(source, options)?;
    let (source, source_fd, store) = find_source(source, options.read_only, credentials)?;
    if !is_no_mount_point(mountpoint) {
        free_dead(mountpoint)?;
    }
    let (mountpoint, _) =
        Directory::open(mountpoint, OFlags::PATH).map_err(|error| refused("mount point", mountpoint, &error))?;
    if let Some(holds) = source.directory().or(store.as_ref()) {
        check_apart(source.name(), holds, &mountpoint, mounts)?;
    }
    let to = mountpoint.path.printable();
    if !is_no_mount_point(&mountpoint.path)
        && let Some(mount) = mount_table::mount_at(&mountpoint.path)
    {
        let what =
            format!("{to} is already a mount point, of {} ({})", mount.source.printable(), mount.kind.printable());
        let unmount = if mount_table::is_slackwater(&mount) { "slackwater umount" } else { "umount" };
        let unmount = format!("{unmount} {}", shell::word(&mountpoint.path));
        return Err(Failure::busy(what).advise(format!("unmount it first ({unmount}), or choose another directory")));
    }
    if std::fs::read_dir(&mountpoint.path).is_ok_and(|mut entries| entries.next().is_some()) {
        errln!("{to} is not empty: its contents are hidden until the unmount.");
    }
    Ok(Endpoints { source, source_fd, mountpoint: mountpoint.path })
}

/// The source; a directory open for reading; and the directory of an object volume, if its store is one.
fn find_source(
    word: &Path,
    is_read_only: bool,
    credentials: Option<&Path>,
) -> Result<(Source, Option<OwnedFd>, Option<Directory>), Failure> {
    let Some(url) = word.to_str().filter(|_| name::is_url(word)) else {
        if credentials.is_some() {
            return Err(Failure::usage("--credentials is for object volumes, and the source is a directory"));
        }
        let opened = Directory::open(word, OFlags::RDONLY);
        let (directory, fd) = opened.map_err(|error| refused("source", word, &error))?;
        return Ok((Source::Directory(directory), Some(fd), None));
    };
    let (volume, store) = object::find(url, is_read_only, credentials)?;
    let open = |path: PathBuf| {
        Directory::open(&path, OFlags::PATH)
            .map(|(directory, _)| directory)
            .map_err(|error| refused("directory of the object volume", &path, &error))
    };
    Ok((Source::Object(volume), None, store.map(open).transpose()?))
}

/// Refuses a mount point that would hide what the source `from` consists of, or would be part of it. `holds` is the
/// directory with the source's data.
fn check_apart(from: &Path, holds: &Directory, mountpoint: &Directory, mounts: &[&Entry]) -> Result<(), Failure> {
    let (from, to) = (from.printable(), mountpoint.path.printable());
    if holds.id == mountpoint.id {
        return Err(Failure::usage(format!("the mount point {to} is the source itself"))
            .advise("mount it at another, empty directory"));
    }
    // If the source is inside a volume at the mount point, the root of that volume contains the source.
    if mountpoint.contains(holds) {
        return Err(Failure::usage(format!("the source {from} is inside the mount point {to}"))
            .advise("the mount would hide it; choose a mount point elsewhere"));
    }
    if holds.contains(mountpoint) {
        return Err(Failure::usage(format!("the mount point {to} is inside the source {from}"))
            .advise("the volume would contain itself; choose a mount point elsewhere"));
    }
    if let Some(behind) = behind(&holds.path, mounts).find(|behind| behind.contains(mountpoint)) {
        let what = format!("the mount point {to} is inside {}, which the source {from} shows", behind.path.printable());
        return Err(Failure::usage(what).advise("the volume would contain itself; choose a mount point elsewhere"));
    }
    Ok(())
}

/// The source directories of the mounts that `path` is on, one behind the other.
fn behind<'a>(path: &Path, mounts: &'a [&Entry]) -> impl Iterator<Item = &'a Directory> {
    let mut at = path.to_path_buf();
    let mut left = mounts.len();
    iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let on = mounts.iter().filter(|entry| at.starts_with(&entry.mountpoint));
        let entry = on.max_by_key(|entry| entry.mountpoint.as_os_str().len())?;
        let below = at.strip_prefix(&entry.mountpoint).ok()?;
        let source = entry.source.directory()?;
        at = source.path.join(below);
        Some(source)
    })
}

/// A killed process leaves a mount where every operation fails. This removes it.
fn free_dead(mountpoint: &Path) -> Result<(), Failure> {
    let Ok(name) = name_of(mountpoint) else { return Ok(()) };
    if !mount_table::mount_at(&name).is_some_and(|mount| mount_table::is_slackwater(&mount)) {
        return Ok(());
    }
    if !is_dead(&name) {
        return Ok(());
    }
    detach::detach(&name).map_err(|error| {
        Failure::failed(format!("{} is the mount point of a process that died: {error}", name.printable()))
            .advise(format!("free it: umount -l {}", shell::word(&name)))
    })
}

fn refused(role: &str, at: &Path, error: &io::Error) -> Failure {
    let (path, word) = (at.printable(), shell::word(at));
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => {
            Failure::failed(format!("the {role} {path} does not exist")).advise(format!("create it: mkdir -p {word}"))
        }
        Some(Errno::NOTDIR) => {
            Failure::failed(format!("the {role} {path} is not a directory")).advise("only directories can be mounted")
        }
        Some(Errno::ACCESS | Errno::PERM) => Failure::failed(format!("no permission to open the {role} {path}"))
            .advise("use a directory that you can read, or become its owner or root"),
        Some(errno) if is_answer_of_dead(errno) => {
            let failure = Failure::failed(format!("the {role} {path} is on a mount whose process died"));
            match dead_mount_below(at) {
                Some((source, point)) => {
                    let (again, this) = (shell::word(&source), shell::word(&point));
                    failure.advise(format!("mount that again first: slackwater mount {again} {this}"))
                }
                None => failure.advise(format!("free it: umount -l {word}")),
            }
        }
        _ => Failure::failed(format!("cannot open the {role} {path}: {error}")),
    }
}

/// Source and mount point of the mount of ours that a path is on, found without asking it.
fn dead_mount_below(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let path = std::path::absolute(path).ok()?;
    let mount = path.ancestors().find_map(mount_table::mount_at)?;
    (mount_table::is_slackwater(&mount) && name::is_complete(&mount.source)).then_some((mount.source, mount.point))
}
