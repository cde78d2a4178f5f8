//! An open volume, and the calls for users of the crate.
//!
//! ```text
//! writer: volume.json -> claim, tree and local log (`claimed`) -> heartbeat, freed space, freed nodes (`writer`)
//! reader: volume.json -> tree that follows the writer
//! ```

#[cfg(test)]
mod fights;
mod status;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use slackwater::backend::{Backend, Call, Limits};
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;

use crate::backend::{self, Calls};
use crate::contents;
use crate::error::VolumeError;
use crate::look::look;
use crate::mkfs::mkfs;
use crate::nodes::OpenNodes;
use crate::paths::Paths;
use crate::runtime;
use crate::segments::Segments;
use crate::store::{Location, Store};
use crate::tree::{LOG_FORMAT, Tree};

pub use status::{Requests, Role, VolumeStatus};
use writer::Writer;

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

/// A volume in an object store, as a backend of the engine.
pub struct ObjectBackend {
    store: Store,
    tree: Arc<Tree>,
    segments: Segments,
    calls: Calls,
    runtime: Handle,
    /// `None`: it follows the writer.
    writer: Option<Writer>,
}

impl ObjectBackend {
    /// The format of the local log. Another program can go on with a volume after this one only if it has the same.
    pub const LOG_FORMAT: u32 = LOG_FORMAT;

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
        runtime::block_on(mkfs(location, mode))
    }

    /// Reads which volume is at a place, without opening it.
    ///
    /// # Errors
    /// The store failed, or there is no volume.
    ///
    /// # Blocking
    /// For the store: one request.
    pub fn look(location: &Location) -> Result<VolumeInfo, VolumeError> {
        let record = runtime::block_on(async {
            let store = Store::connect(location, None)?;
            look(location, &*store.hasty).await
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
        runtime::block_on(Self::open_in_runtime(location, options))
    }

    async fn open_in_runtime(location: &Location, options: &OpenOptions) -> Result<Self, VolumeError> {
        let store = Store::connect(location, options.upload_limit_bytes_per_s)?;
        let record = look(location, &*store.hasty).await?;
        if options.id.as_ref().is_some_and(|id| *id != record.id_text()) {
            return Err(VolumeError::Replaced(location.to_string()));
        }
        let runtime = Handle::current();
        let segments = Segments::new(store.patient.clone());
        let dev = (record.id >> 64) as u64;
        let (tree, nodes, writer) = match options.follow {
            Some(age) => {
                let followed = Tree::follow(store.patient.clone(), record.salt, age).await;
                // Nodes without a name are the writer's.
                let (nodes, _) = OpenNodes::new(dev, false);
                (followed.map_err(VolumeError::Store)?, nodes, None)
            }
            None => {
                let claimed = writer::claim(location, &store, &record, options).await?;
                let (nodes, closed) = OpenNodes::new(dev, options.keep_nameless);
                let tree = Arc::clone(&claimed.tree);
                let writer = Writer::start(claimed, &segments, (Arc::downgrade(&nodes), closed), &runtime);
                if !options.keep_nameless {
                    writer.free_nameless(&runtime);
                }
                (tree, nodes, Some(writer))
            }
        };
        let reads = contents::Reader::new(Arc::clone(&tree), segments.clone(), runtime.clone());
        let writes =
            writer.as_ref().map(|_| contents::Writer::new(Arc::clone(&tree), segments.clone(), runtime.clone()));
        let calls = Calls::new(Arc::clone(&tree), nodes, reads, writes, runtime.clone());
        Ok(Self { store, tree, segments, calls, runtime, writer })
    }

    /// Frees nodes without a name that are not open, from now on. Without [`OpenOptions::keep_nameless`], it has begun at
    /// the open.
    ///
    /// # Blocking
    /// Never.
    pub fn free_nameless(&self) {
        if let Some(writer) = &self.writer {
            writer.free_nameless(&self.runtime);
        }
    }

    /// The state now.
    ///
    /// # Blocking
    /// Never.
    pub fn status(&self) -> VolumeStatus {
        let (tree, counts) = (self.tree.status(), self.store.counts());
        let role = match &self.writer {
            None => Role::Reader,
            Some(writer) if tree.is_fenced => Role::Fenced(writer.claimed.claim.winner()),
            Some(_) => Role::Writer,
        };
        VolumeStatus {
            role,
            uncommitted_changes: tree.uncommitted_calls,
            uncommitted_age: tree.uncommitted_age_ms.map(Duration::from_millis),
            last_commit_age: tree.last_commit_age_ms.map(Duration::from_millis),
            commits: tree.commits,
            uploads_in_flight: self.segments.uploads(),
            sent_bytes: counts.sent_bytes,
            received_bytes: counts.received_bytes,
            requests: Requests::of(&counts),
        }
    }

    /// The paths of these inodes whose names are in memory, for messages.
    ///
    /// # Blocking
    /// Never for the store.
    pub fn known_paths(&self, inos: &[u64]) -> HashMap<u64, PathBuf> {
        let paths = self.runtime.block_on(self.tree.run(|view| Ok(Paths::in_memory(view)))).unwrap_or_default();
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
        let closed = match &self.writer {
            Some(writer) => self.runtime.block_on(writer.close()),
            None => self.runtime.block_on(self.tree.close()),
        };
        closed.map_err(VolumeError::Store)
    }
}

impl Backend for ObjectBackend {
    fn submit(&self, call: Call) {
        self.calls.submit(call);
    }

    fn limits(&self) -> Limits {
        backend::limits()
    }
}
