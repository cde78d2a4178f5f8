//! Bind mounts of a staged volume.
//!
//! The mount is made aside with its attributes and then moved to its directory (N2): a plugin that is killed in the
//! middle leaves nothing, and never a writable mount where a read-only one was asked for.
//!
//! An unpublish detaches. It does not wait for programs that have files open there: those keep the volume in use, and the
//! unstage names them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use slackwater_control::exit::Failure;
use slackwater_control::mountpoint::{is_dead, name_of};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::{self, MountTable};
use slackwater_host::MountInfo;
use slackwater_host::Printable as _;

use crate::node::{Node, NodeError, cannot, place_of, sys};

/// A directory at which a staged volume is to be seen.
#[derive(Clone, Debug)]
pub(crate) struct Publishing {
    pub(crate) id: String,
    pub(crate) staging: PathBuf,
    /// The mount point, created if it does not exist; the directory above exists.
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
    /// Whether no other directory may show the volume.
    pub(crate) alone: bool,
}

impl Node {
    /// Mounts a staged volume at a further directory, unless it is there already.
    ///
    /// # Errors
    /// `State`, if the volume is not staged, or is published elsewhere and must not be; `Different`, if something else is
    /// mounted there, or the same with the other access.
    pub(crate) fn publish(&self, wanted: &Publishing) -> Result<(), NodeError> {
        let staged = self.staged(wanted)?;
        let Some(target) = place_of(&wanted.target)? else {
            let what = format!("the directory above {} does not exist", wanted.target.printable());
            return Err(NodeError::State(Failure::failed(what).advise("create it first")));
        };
        if wanted.alone {
            check_alone(&staged, &target)?;
        }
        while let Some(mount) = mount_table::mount_at(&target) {
            if mount.device == staged.device {
                return check_same(&mount, wanted, &target);
            }
            if !mount_table::is_slackwater(&mount) || !is_dead(&target) {
                let what = format!("{} is already mounted at {}", mount.source.printable(), target.printable());
                return Err(NodeError::Different(Failure::failed(what).advise("unpublish that volume first")));
            }
            detach(&target).map_err(|error| cannot("detach the dead mount at", &target, &error))?;
        }
        match fs::create_dir(&target) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(cannot("create the directory", &target, &error));
            }
            Ok(()) | Err(_) => {}
        }
        bind(&staged.point, &target, wanted.read_only)
            .map_err(|error| cannot(&format!("mount {} at", staged.point.printable()), &target, &error))
    }

    /// Removes whatever slackwater has mounted at `target`, and the directory. It is no error if either is gone already.
    ///
    /// # Errors
    /// `State`, if the mount is another program's; or the directory is not empty.
    pub(crate) fn unpublish(&self, target: &Path) -> Result<(), NodeError> {
        let Some(target) = place_of(target)? else { return Ok(()) };
        while let Some(mount) = mount_table::mount_at(&target) {
            if !mount_table::is_slackwater(&mount) {
                let what = format!("{} at {} is not a slackwater mount", mount.kind.printable(), target.printable());
                return Err(NodeError::State(Failure::failed(what).advise("unmount it with umount(8) first")));
            }
            detach(&target).map_err(|error| cannot("unmount", &target, &error))?;
        }
        match fs::remove_dir(&target) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(cannot("remove the directory", &target, &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The mount at the staging directory.
    fn staged(&self, wanted: &Publishing) -> Result<MountInfo, NodeError> {
        let id = &wanted.id;
        let not_staged = || {
            let what = format!("the volume {id} is not staged at {}", wanted.staging.printable());
            NodeError::State(Failure::failed(what).advise("stage it first"))
        };
        let listed = self.daemon.find(id)?.ok_or_else(not_staged)?;
        match name_of(&wanted.staging) {
            Ok(staging) if staging == listed.mountpoint => Self::mount_of(&listed),
            _ => Err(not_staged()),
        }
    }
}

/// Whether a mount of the volume is as wanted.
fn check_same(mount: &MountInfo, wanted: &Publishing, target: &Path) -> Result<(), NodeError> {
    if mount.has_option("ro") == wanted.read_only {
        return Ok(());
    }
    let has = if wanted.read_only { "for writing" } else { "read-only" };
    let what = format!("the volume {} is already published at {} {has}", wanted.id, target.printable());
    Err(NodeError::Different(Failure::failed(what).advise("unpublish it there first")))
}

/// Fails if a directory other than `target` shows the volume.
fn check_alone(staged: &MountInfo, target: &Path) -> Result<(), NodeError> {
    let mounts = MountTable::now();
    let is_other =
        |mount: &&MountInfo| mount.device == staged.device && mount.point != staged.point && mount.point != target;
    match mounts.of_slackwater().find(is_other) {
        None => Ok(()),
        Some(other) => {
            let what = format!("the volume is published at {}, and allows one directory only", other.point.printable());
            Err(NodeError::State(Failure::busy(what).advise("unpublish it there first, or use another access mode")))
        }
    }
}

/// N2.
fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    let mount = open_tree(CWD, source, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    if read_only {
        sys::make_read_only(&mount)?;
    }
    Ok(move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
