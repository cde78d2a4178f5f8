//! Files with the credentials of volumes, beside the socket of the daemon: in memory, and closed to other users. The daemon
//! reads them, and so do the processes that take over from it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::containers::durable::replace;
use crate::containers::node::{NodeError, cannot};
use crate::object::Credentials;
use crate::os::private_dir::is_private;
use crate::volume::name::VolumeName;

/// The directory of the files.
const DIRECTORY: &str = "credentials";

/// The file for the credentials of one volume.
pub(super) struct CredentialsFile {
    directory: PathBuf,
    path: PathBuf,
    /// The name during a write. No volume has it.
    next: PathBuf,
}

impl CredentialsFile {
    pub(super) fn of(socket: &Path, volume: &VolumeName) -> Self {
        let directory = socket.with_file_name(DIRECTORY);
        let [path, next] = [directory.join(volume.as_str()), directory.join(format!(".{volume}"))];
        Self { directory, path, next }
    }

    /// Writes the credentials, and returns the path of the file. Does nothing without credentials.
    ///
    /// # Errors
    /// The file system failed, or other users may access the directory.
    pub(super) fn write(&self, credentials: &Credentials) -> Result<Option<PathBuf>, NodeError> {
        if credentials.is_empty() {
            return Ok(None);
        }
        let made = match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ if !is_private(&self.directory) => Err(io::Error::other("other users may access the directory")),
            _ => replace(&self.path, &self.next, credentials.text().as_bytes()),
        };
        made.map_err(|error| cannot("write the credentials to", &self.path, &error))?;
        Ok(Some(self.path.clone()))
    }

    /// Whether the file exists, or what a killed process has left of it.
    pub(super) fn exists(&self) -> bool {
        self.path.exists() || self.next.exists()
    }

    /// # Errors
    /// The file system failed.
    pub(super) fn remove(&self) -> Result<(), NodeError> {
        for path in [&self.path, &self.next] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot("remove the credentials in", path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
