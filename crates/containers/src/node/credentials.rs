//! Files with the credentials of volumes, beside the socket of the daemon: in memory, and closed to other users. The daemon
//! reads them, and so do the processes that take over from it.

use std::io;
use std::path::{Path, PathBuf};

use slackwater_control::name::VolumeName;
use slackwater_control::os::private_dir;

use crate::durable::{remove, replace};
use crate::node::{NodeError, cannot};
use crate::object::Credentials;

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
        let written = private_dir::make(&self.directory).and_then(|is_private| match is_private {
            true => replace(&self.path, &self.next, credentials.text().as_bytes()),
            false => Err(io::Error::other("other users may access the directory")),
        });
        written.map_err(|error| cannot("write the credentials to", &self.path, &error))?;
        Ok(Some(self.path.clone()))
    }

    /// Whether the file exists, or what a killed process has left of it.
    pub(super) fn exists(&self) -> bool {
        self.path.exists() || self.next.exists()
    }

    /// Removes the file, which exists.
    ///
    /// # Errors
    /// The file system failed.
    pub(super) fn remove(&self) -> Result<(), NodeError> {
        let failed = |path, error| cannot("remove the credentials in", path, &error);
        [&self.path, &self.next].into_iter().try_for_each(|path| remove(path).map_err(|error| failed(path, error)))
    }
}
