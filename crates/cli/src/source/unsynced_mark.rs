//! Marks of directories with changes that may not be durable.
//!
//! A program learns that a name was changed before the change is durable, and an unmount makes all changes durable. If
//! the process dies before that, the first sync of the next mount has to cover them. Only a sync of the whole file system
//! does so, which also waits for the data of other programs. So each mount of a directory makes a file in the registry's
//! directory, and removes it when it has ended with everything durable. A mount that finds the file syncs the file system
//! once.
//!
//! A restart of the machine removes the marks, and leaves nothing that the kernel has not written. An unmount that
//! discards data keeps the mark. If the runtime directory of a user is removed, or another one is used, then a mount does
//! not know of an earlier one that died, nor of its data.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(crate) struct UnsyncedMark {
    path: PathBuf,
    was_there: bool,
}

impl UnsyncedMark {
    /// Marks the directory with this identity.
    ///
    /// # Errors
    /// The file cannot be made: nothing may be changed then.
    pub(crate) fn make(registry: &Path, identity: &str) -> io::Result<Self> {
        let path = registry.join(format!("{identity}.unsynced"));
        let was_there = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
            Err(error) => return Err(error),
        };
        Ok(Self { path, was_there })
    }

    /// Whether all changes of earlier mounts are durable.
    pub(crate) fn is_first(&self) -> bool {
        !self.was_there
    }

    /// The same mark, as if an earlier mount had made it.
    pub(crate) fn like_an_earlier_one(self) -> Self {
        Self { was_there: true, ..self }
    }

    /// Removes the mark: everything is durable.
    pub(crate) fn remove(self) {
        // If it stays, the next mount syncs the file system once.
        let _ = fs::remove_file(self.path);
    }

    /// Removes the mark if this mount has made it: nothing was changed.
    pub(crate) fn take_back(self) {
        if self.is_first() {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_until_everything_is_durable() {
        let dir = std::env::temp_dir().join(format!("slackwater-mark-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let make = || UnsyncedMark::make(&dir, "1-2-3").unwrap();
        assert!(make().is_first());
        assert!(!make().is_first(), "the process died");
        make().take_back();
        assert!(!make().is_first(), "nothing was synced");
        make().remove();
        assert!(make().is_first());
        UnsyncedMark { was_there: false, ..make() }.take_back();
        assert!(make().is_first() && UnsyncedMark::make(&dir, "1-2-4").unwrap().is_first());
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(UnsyncedMark::make(&dir, "1-2-3").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
