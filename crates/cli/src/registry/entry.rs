//! The content of an entry.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use slackwater_control::protocol::VolumeRef;

use crate::source::Source;

pub(super) const ENTRY_VERSION: u32 = 1;

/// The entry of a mount process, or of a volume of a daemon.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(super) version: u32,
    pub(crate) pid: u32,
    pub(crate) source: Source,
    /// The [`Source::identity`] of the source. Entries of earlier versions do not have it.
    #[serde(default)]
    pub(crate) identity: String,
    pub(crate) mountpoint: PathBuf,
    pub(crate) arena: PathBuf,
    pub(crate) cache_bytes: u64,
    /// The process that keeps the mount when this one dies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keeper: Option<u32>,
    /// The first keeper of the mount. It names the entry, which stays when the processes change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first_keeper: Option<u32>,
    /// The volume's name in a daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<String>,
    /// The socket of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) daemon: Option<PathBuf>,
}

impl Entry {
    pub(crate) fn of_this_process(
        source: Source,
        identity: String,
        mountpoint: PathBuf,
        arena: PathBuf,
        cache_bytes: u64,
    ) -> Self {
        let (version, pid) = (ENTRY_VERSION, std::process::id());
        Self {
            version,
            pid,
            source,
            identity,
            mountpoint,
            arena,
            cache_bytes,
            keeper: None,
            first_keeper: None,
            volume: None,
            daemon: None,
        }
    }

    /// An entry of this process, whose source is `dir`.
    #[cfg(test)]
    pub(crate) fn sample(dir: &std::path::Path) -> Self {
        let directory = crate::source::directory::Directory::open(dir, rustix::fs::OFlags::PATH).expect("it exists").0;
        Self::of_this_process(Source::Directory(directory), "1-2-3".into(), "/mnt".into(), dir.join("arena"), 1 << 20)
    }

    /// Whether a volume in an arena belongs to this source, on whatever file system that was.
    pub(crate) fn is_meant_by(&self, volume: &[u8]) -> bool {
        volume == self.identity.as_bytes() || self.source.is_meant_by(volume)
    }

    /// Whether files are left that a dead process may have used: its arena, or the local log of an object volume.
    pub(crate) fn has_local_files(&self) -> bool {
        self.arena.exists() || self.has_log()
    }

    /// Whether an object volume has changes in its local log.
    pub(crate) fn has_log(&self) -> bool {
        matches!(&self.source, Source::Object(volume) if volume.has_log(&self.arena))
    }

    /// The same entry, for a volume of the daemon that listens at `daemon`.
    pub(crate) fn of_daemon(self, volume: String, daemon: PathBuf) -> Self {
        Self { volume: Some(volume), daemon: Some(daemon), ..self }
    }

    /// The same entry, for this process, which has taken the mount over.
    pub(crate) fn of_successor(self, keeper: u32) -> Self {
        Self { pid: std::process::id(), keeper: Some(keeper), ..self }
    }

    /// The same entry, for a mount that another process keeps.
    pub(crate) fn kept_by(self, keeper: Option<u32>) -> Self {
        Self { keeper, first_keeper: keeper, ..self }
    }

    /// The number that names the entry's files: they stay when another process takes a kept mount over.
    pub(crate) fn number(&self) -> u32 {
        self.first_keeper.unwrap_or(self.pid)
    }

    /// The volume in a request to the process.
    pub(crate) fn volume_ref(&self) -> VolumeRef {
        VolumeRef::named(self.volume.as_deref())
    }

    pub(super) fn file_name(&self) -> String {
        match &self.volume {
            Some(volume) => format!("{}.{volume}.json", self.number()),
            None => format!("{}.json", self.number()),
        }
    }
}
