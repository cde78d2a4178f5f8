//! The source of a volume: where its data is, and which process may serve it.
//!
//! ```text
//! directory      a directory and those above it
//! object         a volume in an object store
//! opened         an open source, as a backend of the engine
//! ownership      one owner per source, and the obstacles for a mount
//! dead_mounts    data that dead mounts left of the same source, or of a directory above or below
//! lock           the lock of the owner of a directory
//! lock_holders   the processes that hold such a lock
//! unsynced_mark  directories with changes that may not be durable
//! ```

mod dead_mounts;
pub(crate) mod directory;
mod lock;
mod lock_holders;
pub(crate) mod object;
pub(crate) mod opened;
pub(crate) mod ownership;
pub(crate) mod unsynced_mark;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_control::name::is_url;
use slackwater_control::spec::VolumeSpec;
#[cfg(feature = "containers")]
use slackwater_host::Printable as _;

use crate::registry::Entry;

use self::directory::Directory;
use self::object::ObjectVolume;

/// Where the data of a volume is.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Source {
    Directory(Directory),
    Object(ObjectVolume),
}

impl Source {
    /// The source's name for users: a path, or a URL without credentials.
    pub(crate) fn name(&self) -> &Path {
        match self {
            Self::Directory(directory) => &directory.path,
            Self::Object(volume) => Path::new(&volume.url),
        }
    }

    /// Whether both have the same data.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory(one), Self::Directory(other)) => one.id == other.id,
            (Self::Object(one), Self::Object(other)) => one.id == other.id,
            (Self::Directory(_), Self::Object(_)) | (Self::Object(_), Self::Directory(_)) => false,
        }
    }

    /// Whether `other` is a directory inside this one.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.directory().zip(other.directory()).is_some_and(|(outer, inner)| outer.contains(inner))
    }

    /// Whether two mounts of these sources at the same time would overwrite each other's data. Any number of mounts may
    /// read an object volume beside its writer.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory(one), Self::Directory(other)) => one.overlaps(other),
            (Self::Object(one), Self::Object(other)) => one.id == other.id && !one.is_read_only && !other.is_read_only,
            (Self::Directory(_), Self::Object(_)) | (Self::Object(_), Self::Directory(_)) => false,
        }
    }

    /// The directory, if it is one.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Object(_) => None,
        }
    }

    /// Whether the source is an object volume that is only read.
    pub(crate) fn is_reader(&self) -> bool {
        matches!(self, Self::Object(volume) if volume.is_read_only)
    }

    /// The name of the volume in an arena, and part of the names of its local files: [`Directory::identity`], or the
    /// number of an object volume.
    ///
    /// # Errors
    /// The directory cannot be examined.
    pub(crate) fn identity(&self, mounts: &[&Entry]) -> io::Result<String> {
        match self {
            Self::Directory(directory) => directory.identity(mounts),
            Self::Object(volume) => Ok(volume.identity()),
        }
    }

    /// Whether an identity is one of this source, on whatever file system a directory was.
    pub(crate) fn is_meant_by(&self, identity: &[u8]) -> bool {
        match self {
            Self::Directory(directory) => directory.is_meant_by(identity),
            Self::Object(volume) => identity == volume.identity().as_bytes(),
        }
    }

    /// The device of a directory's files; `None` for an object volume.
    pub(crate) fn device(&self) -> Option<u64> {
        self.directory().map(|directory| directory.id.dev)
    }
}

/// Refuses options that the source cannot have.
///
/// # Errors
/// The option, and what it is for.
pub(crate) fn check_options(word: &Path, options: &VolumeSpec) -> Result<(), Failure> {
    let VolumeSpec { read_only, take_over, follow, upload_limit, .. } = options;
    let given = [("take-over", *take_over), ("follow", follow.is_some()), ("upload-limit", upload_limit.is_some())];
    for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
        if !is_url(word) {
            return Err(Failure::usage(format!("--{name} is for object volumes, and the source is a directory"))
                .advise("an object volume is named by a URL, such as s3://bucket/volume"));
        }
        if name == "follow" && !read_only {
            return Err(Failure::usage("--follow is for a mount that only reads").advise("add --read-only"));
        }
        if name != "follow" && *read_only {
            return Err(Failure::usage(format!("--{name} is for a mount that writes, and --read-only does not")));
        }
    }
    Ok(())
}

/// Takes the lock of the owner of a directory that is to be removed, until the descriptor is closed.
///
/// # Errors
/// `Busy` if a mount has the directory; or it cannot be opened.
#[cfg(feature = "containers")]
pub(crate) fn lock_for_removal(path: &Path) -> Result<std::os::fd::OwnedFd, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot lock {}: {error}", path.printable()));
    let (directory, fd) = Directory::open(path, rustix::fs::OFlags::RDONLY).map_err(failed)?;
    match lock::take(&directory, &fd, &|warning| tracing::warn!("{warning}")).map_err(failed)? {
        None => Ok(fd),
        Some(owner) => {
            let by = owner.0.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"));
            Err(Failure::busy(format!("{} is in use by {by}", path.printable())).advise("unmount it first"))
        }
    }
}
