//! An open source, as a backend of the engine.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use slackwater::backend::{Backend, Found};
use slackwater_control::exit::Failure;
use slackwater_control::protocol::ObjectStatus;
use slackwater_control::spec::VolumeSpec;

use crate::object;
use crate::registry::{self, Entry};
use crate::source::Source;
use crate::source::unsynced_mark::UnsyncedMark;
use crate::volume::node_search::{self, Numbered};

/// For which mount a source is opened.
#[cfg_attr(not(feature = "object"), expect(dead_code, reason = "only object volumes need to know"))]
#[derive(Copy, Clone)]
pub(crate) enum Opening<'a> {
    /// A new mount, which the process `keeper` keeps if there is one. If another process has an object volume, waits
    /// for it with `wait`, and reports through `say` that it does.
    New { keeper: Option<u32>, wait: bool, say: &'a dyn Fn(&str) },
    /// The mount of a predecessor, which the same process kept. While the store fails, tries again as long as `check`
    /// succeeds.
    Inherited { keeper: u32, check: &'a dyn Fn() -> Result<(), Failure> },
}

/// A source that this process may use. An object volume is open once, and its backends share it.
#[derive(Clone)]
pub(crate) enum Opened {
    Directory {
        path: PathBuf,
        /// `None` for the write-back of a dead mount, whose mark stays.
        mark: Option<UnsyncedMark>,
    },
    Object(object::Volume),
}

impl Opened {
    /// Opens the source of `entry`, which this process owns. `has_data`: a dead process has left data of it in the
    /// arena.
    ///
    /// # Errors
    /// `Busy`, with the process that has the object volume; or the data is older than what another machine has written
    /// since; or the store fails. Or the runtime directory cannot be written.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn new(
        entry: &Entry,
        options: &VolumeSpec,
        has_data: bool,
        opening: Opening<'_>,
    ) -> Result<Self, Failure> {
        match &entry.source {
            Source::Directory(directory) => {
                let failed = |error| Failure::failed(format!("cannot register the mount: {error}"));
                let mark = UnsyncedMark::make(&registry::runtime_dir()?, &entry.identity).map_err(failed)?;
                // An earlier version makes no marks.
                let has_predecessor = has_data || matches!(opening, Opening::Inherited { .. });
                let mark = Some(if has_predecessor { mark.like_an_earlier_one() } else { mark });
                Ok(Self::Directory { path: directory.path.clone(), mark })
            }
            Source::Object(volume) => object::Volume::open(volume, entry, options, has_data, opening).map(Self::Object),
        }
    }

    /// A backend that reaches the nodes `left`, of which a dead predecessor left data.
    ///
    /// # Errors
    /// A directory cannot be opened, or not all of it can be searched.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn backend(&self, left: Option<&HashSet<u64>>) -> io::Result<Arc<dyn Backend>> {
        let (backend, _) = self.inherited_backend(left.unwrap_or(&HashSet::new()), Vec::new())?;
        Ok(backend)
    }

    /// As [`backend`](Self::backend), and it reaches nodes whose descriptors the predecessor has passed on. Returns
    /// them as the backend has found them, by the same numbers; the others are stale.
    ///
    /// # Errors
    /// As [`backend`](Self::backend).
    ///
    /// # Blocking
    /// For the source, unless all nodes in `left` are among those that were passed on.
    pub(crate) fn inherited_backend(
        &self,
        left: &HashSet<u64>,
        nodes: Numbered<OwnedFd>,
    ) -> io::Result<(Arc<dyn Backend>, Numbered<Found>)> {
        match self {
            Self::Directory { path, mark } => {
                let (backend, nodes) = node_search::open(path, left, nodes)?;
                if mark.as_ref().is_some_and(UnsyncedMark::is_first) {
                    backend.assume_synced();
                }
                Ok((Arc::new(backend), nodes))
            }
            Self::Object(volume) => Ok((volume.backend(), Vec::new())),
        }
    }

    /// Whether the source is a directory.
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self, Self::Directory { .. })
    }

    /// Everything that programs had open in an inherited mount is open again: other files without a name are freed.
    pub(crate) fn inherited_all(&self) {
        match self {
            Self::Directory { .. } => {}
            Self::Object(volume) => volume.inherited_all(),
        }
    }

    /// The paths of these inodes of an object volume whose names are in memory.
    ///
    /// # Blocking
    /// Never for the store.
    pub(crate) fn known_paths(&self, inos: &[u64]) -> HashMap<u64, PathBuf> {
        match self {
            Self::Directory { .. } => HashMap::new(),
            Self::Object(volume) => volume.known_paths(inos),
        }
    }

    /// The state of an object volume.
    pub(crate) fn status(&self) -> Option<ObjectStatus> {
        match self {
            Self::Directory { .. } => None,
            Self::Object(volume) => Some(volume.status()),
        }
    }

    /// Commits every change of an object volume and releases it for its next writer. With `discard`, drops the changes
    /// that cannot be committed. The volume of a directory has ended, and everything is durable unless it was
    /// discarded.
    ///
    /// # Errors
    /// The store failed; the changes are in the local log.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn close(self, discard: bool) -> Result<(), Failure> {
        match self {
            Self::Directory { mark, .. } => {
                mark.filter(|_| !discard).into_iter().for_each(UnsyncedMark::remove);
                Ok(())
            }
            Self::Object(volume) => volume.close(discard),
        }
    }

    /// Releases a source through which nothing was changed.
    ///
    /// # Blocking
    /// For the store.
    pub(crate) fn close_unused(self) {
        match self {
            Self::Directory { mark, .. } => mark.into_iter().for_each(UnsyncedMark::take_back),
            // Its changes, if there are any, are those of a log.
            Self::Object(volume) => drop(volume.close(false)),
        }
    }
}
