//! A volume in an object store, as registry entries name it. [`crate::object`] opens it.
//!
//! # Invariants
//! J1. A volume is identified by the random id in its `volume.json`, never by its URL: the same URL may lead to
//!     another volume later, and two URLs to the same one.
//! J2. The local log of a volume is a folder beside the arena, and has its name: it belongs to the process that has the
//!     arena. It is empty once everything in it is in the store.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A volume in an object store.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct ObjectVolume {
    /// The URL, without credentials.
    pub(crate) url: String,
    /// The random id of the volume (J1).
    pub(crate) id: String,
    /// Whether the volume follows a writer elsewhere.
    #[serde(default)]
    pub(crate) is_read_only: bool,
    /// A file with the variables of its store, which each process of the mount reads. `None`: those of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
}

impl ObjectVolume {
    /// The name of the volume in an arena, and part of the names of its local files.
    pub(crate) fn identity(&self) -> String {
        format!("object-{}", self.id)
    }

    /// The folder for the local log of a writer whose arena is at `arena`.
    pub(crate) fn log_dir(&self, arena: &Path) -> PathBuf {
        let (identity, stem) = (self.identity(), arena.file_stem().unwrap_or_default().to_string_lossy());
        arena.with_file_name(match stem == identity {
            true => format!("{identity}.log"),
            false => format!("{stem}.{identity}.log"),
        })
    }

    /// Whether a process has left changes in the local log beside `arena`.
    pub(crate) fn has_log(&self, arena: &Path) -> bool {
        !self.is_read_only && fs::read_dir(self.log_dir(arena)).is_ok_and(|mut files| files.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_one_if_it_has_files() {
        let dir = std::env::temp_dir().join(format!("slackwater-log-{}", std::process::id()));
        let arena = dir.join("a.arena");
        let volume = ObjectVolume { url: "s3://b/p".into(), id: "7".into(), is_read_only: false, credentials: None };
        let log = volume.log_dir(&arena);
        assert!(!volume.has_log(&arena));
        fs::create_dir_all(&log).unwrap();
        assert!(!volume.has_log(&arena));
        fs::write(log.join("1"), "").unwrap();
        assert!(volume.has_log(&arena));
        assert!(!ObjectVolume { is_read_only: true, ..volume.clone() }.has_log(&arena), "a reader has no log");
        fs::remove_dir_all(&dir).unwrap();
    }
}
