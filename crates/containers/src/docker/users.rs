//! The users of mounted volumes.
//!
//! The platform gives each mount an id, and gives the same id back when it no longer needs the mount. The ids are in a
//! file for each volume, so that a plugin that was killed knows them after a restart.
//!
//! # Invariants
//! C1. An id counts once, however often it is added or removed: platforms repeat calls.
//! C2. Ids of an earlier boot do not count: their containers are gone, and will not give them back.
//! C3. A file that cannot be read is an error, and does not mean that there are no users: the volume stays mounted.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use slackwater_control::exit::Failure;
use slackwater_host::Printable as _;

use crate::durable;

const VERSION: u32 = 1;

/// Where the kernel shows the id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The users of all volumes.
#[derive(Debug)]
pub(super) struct Users {
    dir: PathBuf,
    boot: String,
}

/// The users of one volume.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    boot: String,
    ids: BTreeSet<String>,
}

impl Users {
    /// The files in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(super) fn open(dir: &Path) -> Result<Self, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        let boot = made.and_then(|()| fs::read_to_string(BOOT_ID));
        let boot = boot.map_err(|error| Failure::failed(format!("cannot use {}: {error}", dir.printable())))?;
        Ok(Self { dir: dir.to_path_buf(), boot: boot.trim_end().to_owned() })
    }

    /// The users of the volume `id`.
    ///
    /// # Errors
    /// The file is unreadable (C3).
    pub(super) fn of(&self, id: &str) -> Result<BTreeSet<String>, Failure> {
        let path = self.path(id);
        let unreadable = |reason: String| {
            Failure::failed(format!("the file {} is unreadable: {reason}", path.printable()))
                .advise("it says who has the volume mounted; remove it when no container uses the volume")
        };
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            read => read.map_err(|error| unreadable(error.to_string()))?,
        };
        let stored: Stored = serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        match stored {
            Stored { version, .. } if version > VERSION => Err(unreadable(format!("it has version {version}"))),
            Stored { boot, .. } if boot != self.boot => Ok(BTreeSet::new()), // C2
            Stored { ids, .. } => Ok(ids),
        }
    }

    /// Adds a user, durably.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn add(&self, id: &str, user: &str) -> Result<(), Failure> {
        let mut ids = self.of(id)?;
        if ids.insert(user.to_owned()) { self.write(id, ids) } else { Ok(()) }
    }

    /// Removes a user, durably. Returns whether there are others.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn remove(&self, id: &str, user: &str) -> Result<bool, Failure> {
        let mut ids = self.of(id)?;
        let has_others = ids.len() > usize::from(ids.contains(user));
        if ids.remove(user) {
            self.write(id, ids)?;
        }
        Ok(has_others)
    }

    fn write(&self, id: &str, ids: BTreeSet<String>) -> Result<(), Failure> {
        let path = self.path(id);
        let written = if ids.is_empty() {
            durable::remove(&path)
        } else {
            let stored = Stored { version: VERSION, boot: self.boot.clone(), ids };
            let text = serde_json::to_vec(&stored).map_err(io::Error::other);
            text.and_then(|text| durable::replace(&path, &path.with_extension("next"), &text))
        };
        written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.printable())))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_counted_by_id_across_restarts_and_not_across_boots() {
        let dir = std::env::temp_dir().join(format!("slackwater-users-{}", std::process::id()));
        let users = Users::open(&dir).unwrap();
        for user in ["one", "two", "one"] {
            users.add("v", user).unwrap();
        }
        let again = Users::open(&dir).unwrap();
        assert_eq!(again.of("v").unwrap().len(), 2);
        assert!(again.remove("v", "one").unwrap() && again.remove("v", "one").unwrap());
        let next_boot = Users { boot: "later".into(), ..Users::open(&dir).unwrap() };
        assert!(next_boot.of("v").unwrap().is_empty());
        assert!(!again.remove("v", "two").unwrap() && !again.remove("v", "two").unwrap());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::write(dir.join("v.json"), "{").unwrap();
        let refusals = [again.of("v").map(drop), again.add("v", "x"), again.remove("v", "x").map(drop)];
        assert!(refusals.into_iter().all(|refusal| refusal.unwrap_err().to_string().contains("v.json")));
        fs::remove_dir_all(&dir).unwrap();
    }
}
