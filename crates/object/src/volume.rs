//! The calls for users of the crate: make, open, check and clean a volume.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use object_store::ObjectStore as _;
use slackwater::backend::{Backend, Call, Limits};
use slackwater::{BackendError, ErrorKind};
use thiserror::Error;
use tokio::runtime::Handle;

use crate::check::{self, FsckOptions, FsckReport};
use crate::opened::{self, Opened};
use crate::store::{Location, Store, explain};
use crate::writer::Holder;
use crate::{backend, delete as deletion, runtime, space};

/// Why a volume could not be made, opened or checked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The URL or the settings of the store are wrong; the text says how to put it right.
    #[error("{0}")]
    Location(String),
    /// The store failed; the text says what to do.
    #[error("{0}")]
    Store(BackendError),
    /// The store failed; the text says what could not be done, why, and what to do.
    #[error("{text}")]
    Failed {
        /// The error that programs would see.
        kind: ErrorKind,
        /// The message for people.
        text: String,
    },
    /// There is no volume at this place.
    #[error("no Slackwater volume at {0}. Make one with `slackwater mkfs {0}`")]
    NoVolume(String),
    /// There is a volume already.
    #[error("there is a volume at {0} already. Use another prefix, or delete its objects first")]
    Exists(String),
    /// The volume has a newer format, or is damaged.
    #[error("cannot use the volume at {location}: {text}")]
    Unreadable {
        /// Where it is.
        location: String,
        /// Why not, and what to do.
        text: String,
    },
    /// Another process has the volume.
    #[error("{0}")]
    InUse(Holder),
    /// Another writer has had the volume since the process died whose local log is in [`OpenOptions::log_dir`], and this
    /// one [must continue](OpenOptions::must_continue) it. No data has changed.
    #[error("another writer has written to the volume since, and what that process left would overwrite newer data")]
    Overtaken,
    /// There is another volume at this place than the one that is [expected](OpenOptions::id).
    #[error("the volume at {0} is another one than before: it was deleted and made anew")]
    Replaced(String),
}

/// How to open a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// [`VolumeInfo::id`] of the volume that is expected.
    pub id: Option<String>,
    /// Folder for the local log of changes that are not in the store yet. It must survive the process, as tmpfs does.
    /// Without it, a process that dies loses the changes since the last commit.
    pub log_dir: Option<PathBuf>,
    /// Fail with [`VolumeError::Overtaken`] if another writer has had the volume since the log was written: the cache of the
    /// engine has data of that time, or programs have files of that time open. Otherwise such a log is set aside.
    pub must_continue: bool,
    /// Fence a process that has the volume, instead of failing with [`VolumeError::InUse`].
    pub take_over: bool,
    /// `Some`: open for reading only, and follow the writer at this age.
    pub follow: Option<Duration>,
    /// Most bytes per second to send to the store.
    pub upload_limit_bytes_per_s: Option<u64>,
    /// The process that starts a successor if this one dies. The volume is in use while one of both lives. A process with
    /// the same keeper as its predecessor takes the volume without asking, so a keeper starts it only when the predecessor
    /// changes nothing any more.
    pub keeper: Option<u32>,
    /// Keep nodes without a name, which programs may still have open, until [`ObjectBackend::free_nameless`].
    pub keep_nameless: bool,
}

/// Facts about a volume that is not open.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// The volume's own number, random, from when it was made: 32 hexadecimal digits.
    pub id: String,
}

/// The state of an open volume.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// The role of this process: the calls that it may make.
    pub role: Role,
    /// Changes of names, attributes and extents that no commit has made durable yet.
    pub uncommitted_changes: u64,
    /// Age of the oldest of them.
    pub uncommitted_age: Option<Duration>,
    /// Time since the last commit; for a reader, since the state of the writer that it shows was read.
    pub last_commit_age: Option<Duration>,
    /// Commits since it was opened.
    pub commits: u64,
    /// Segments that are being uploaded, apart from those of commits.
    pub uploads_in_flight: u64,
    /// Bytes sent to the store and received from it since it was opened.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
    /// Requests to the store since it was opened, retries included.
    pub requests: Requests,
}

/// The role of a process that has a volume open.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Role {
    /// The only writer.
    Writer,
    /// A reader, which follows the writer.
    Reader,
    /// Another writer has fenced it; `None` if that one cannot be named. Changes fail with `Stale`.
    Fenced(Option<Holder>),
}

/// Requests by kind.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Requests {
    /// PUT, with the parts of multipart uploads.
    pub puts: u64,
    /// GET and HEAD.
    pub gets: u64,
    /// LIST.
    pub lists: u64,
    /// DELETE.
    pub deletes: u64,
    /// Requests of the above that failed and were tried again, or given up.
    pub failures: u64,
}

/// A step of a check or a collection, for people to watch.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The work of the step, such as "reading the tree".
    pub step: &'static str,
    /// How far it is.
    pub done: u64,
    /// How far it will go, if that is known.
    pub of: Option<u64>,
}

/// A volume in an object store, as a backend of the engine.
pub struct ObjectBackend {
    opened: Opened,
}

impl ObjectBackend {
    /// The format of the local log. Another program can go on with a volume after this one only if it has the same.
    pub const LOG_FORMAT: u32 = crate::tree::LOG_FORMAT;

    /// Makes an empty volume. Its root belongs to the user of this process.
    ///
    /// # Errors
    /// The store failed, or there is a volume already.
    ///
    /// # Blocking
    /// For the store.
    pub fn mkfs(location: &Location) -> Result<(), VolumeError> {
        Self::mkfs_with_mode(location, 0o755)
    }

    /// [`ObjectBackend::mkfs`], with the permissions of the root.
    ///
    /// # Errors
    /// As [`ObjectBackend::mkfs`].
    ///
    /// # Blocking
    /// For the store.
    pub fn mkfs_with_mode(location: &Location, mode: u32) -> Result<(), VolumeError> {
        runtime()?.block_on(opened::make(location, mode))
    }

    /// Reads which volume is at a place, without opening it.
    ///
    /// # Errors
    /// The store failed, or there is no volume.
    ///
    /// # Blocking
    /// For the store: one request.
    pub fn look(location: &Location) -> Result<VolumeInfo, VolumeError> {
        let record = runtime()?.block_on(async {
            let store = Store::connect(location, None)?;
            opened::look(location, &*store.hasty).await
        })?;
        Ok(VolumeInfo { id: record.id_text() })
    }

    /// Opens a volume.
    ///
    /// # Errors
    /// The store failed, there is no volume, or another process has it.
    ///
    /// # Blocking
    /// For the store.
    pub fn open(location: &Location, options: &OpenOptions) -> Result<Self, VolumeError> {
        let runtime = runtime()?;
        let opened = runtime.block_on(Opened::open(location, options, runtime.clone()))?;
        Ok(Self { opened })
    }

    /// Frees nodes without a name that are not open, from now on. Without [`OpenOptions::keep_nameless`], it has begun at
    /// the open.
    ///
    /// # Blocking
    /// Never.
    pub fn free_nameless(&self) {
        self.opened.free_nameless();
    }

    /// The state now.
    ///
    /// # Blocking
    /// Never.
    pub fn status(&self) -> VolumeStatus {
        use crate::layers::Operation;
        let (tree, counts) = (self.opened.tree.status(), self.opened.store.counts());
        let of = |operations: &[Operation]| operations.iter().map(|operation| counts.of(*operation)).sum();
        VolumeStatus {
            role: self.opened.role(),
            uncommitted_changes: tree.uncommitted_calls,
            uncommitted_age: tree.uncommitted_age_ms.map(Duration::from_millis),
            last_commit_age: tree.last_commit_age_ms.map(Duration::from_millis),
            commits: tree.commits,
            uploads_in_flight: self.opened.segments.uploads(),
            sent_bytes: counts.sent_bytes,
            received_bytes: counts.received_bytes,
            requests: Requests {
                puts: counts.writes(),
                gets: of(&[Operation::Get, Operation::Head]),
                lists: of(&[Operation::List]),
                deletes: of(&[Operation::Delete]),
                failures: counts.failed,
            },
        }
    }

    /// The paths of these inodes whose names are in memory, for messages.
    ///
    /// # Blocking
    /// Never for the store.
    pub fn known_paths(&self, inos: &[u64]) -> HashMap<u64, PathBuf> {
        let paths = self.opened.paths();
        inos.iter().filter_map(|ino| Some((*ino, paths.of(*ino)?))).collect()
    }

    /// Commits what is left, and releases the volume for the next writer. Later calls fail.
    ///
    /// # Errors
    /// The store failed: changes are left in the local log. Or the volume is fenced.
    ///
    /// # Blocking
    /// For the store.
    pub fn close(&self) -> Result<(), VolumeError> {
        self.opened.close().map_err(VolumeError::Store)
    }
}

impl Backend for ObjectBackend {
    fn submit(&self, call: Call) {
        self.opened.calls.submit(call);
    }

    fn limits(&self) -> Limits {
        backend::limits()
    }
}

fn runtime() -> Result<Handle, VolumeError> {
    runtime::handle().map_err(|error| {
        VolumeError::Store(BackendError::new(ErrorKind::Io, format!("no threads for object volumes: {error}")))
    })
}

/// Checks a volume, and repairs it if `options` say so. Calls `progress` several times per second.
///
/// # Errors
/// The check itself failed: the store, or there is no volume, or another process has it.
///
/// # Blocking
/// For the store, until the whole tree is read.
pub fn fsck(
    location: &Location,
    options: &FsckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<FsckReport, VolumeError> {
    runtime()?.block_on(check::fsck(location, *options, progress))
}

/// How to collect the objects that nothing uses.
#[derive(Copy, Clone, Debug)]
pub struct GcOptions {
    /// Delete nothing.
    pub dry_run: bool,
    /// Keep objects that have been unused for a shorter time: readers may still use them.
    pub grace: Duration,
}

/// The result of a collection.
#[derive(Copy, Clone, Debug, Default)]
pub struct GcReport {
    /// Objects looked at.
    pub objects: u64,
    /// Objects that were deleted, or would be.
    pub deleted_objects: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Objects that nothing uses, and that are within the grace period.
    pub young_objects: u64,
}

/// Deletes the objects of a volume that nothing uses. A mounted volume does so by itself, and refuses this. Safe beside
/// readers that are not further behind than the grace time.
///
/// # Errors
/// The store failed, there is no volume, a process has it for writing, or one has ended without unmounting it.
///
/// # Blocking
/// For the store, until all objects are listed.
pub fn gc(
    location: &Location,
    options: &GcOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<GcReport, VolumeError> {
    runtime()?.block_on(space::gc(location, options, progress))
}

/// The names directly below a place, each of which may be the prefix of a volume. None if there is no such place; that of a
/// directory which is missing with the one above is not known, since its disk may not be mounted.
///
/// # Errors
/// The store failed.
///
/// # Blocking
/// For the store: one request for a thousand names.
pub fn names_below(location: &Location) -> Result<Vec<String>, VolumeError> {
    if location.local_directory().is_some_and(deletion::is_gone) {
        return Ok(Vec::new());
    }
    let listed = runtime()?.block_on(async {
        let store = Store::connect(location, None)?.hasty;
        store.list_with_delimiter(None).await.map_err(|error| explain(location, "list", &error))
    })?;
    Ok(listed.common_prefixes.iter().filter_map(|prefix| Some(prefix.filename()?.to_owned())).collect())
}

/// Deletes a volume and all of its objects, or what an interrupted deletion has left. It is no error if there is none.
/// Once the first object is deleted, no process can open the volume.
///
/// # Errors
/// A process has the volume for writing: nothing is deleted then. Or the store failed, and the call can be repeated.
///
/// # Blocking
/// For the store, until all objects are deleted.
pub fn delete(location: &Location) -> Result<(), VolumeError> {
    runtime()?.block_on(deletion::delete(location))
}
