//! The stores of object volumes: a directory, or a local S3 server that keeps its objects in one.

use crate::folders::cannot;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::program::tail;

/// The bucket of the server.
const BUCKET: &str = "suites";

/// A running store.
pub(super) struct Store {
    /// The directory with the objects.
    folder: PathBuf,
    server: Option<Server>,
}

impl Store {
    /// Starts a store that keeps its objects in the new directory `folder`: the program `server`, or the directory itself.
    pub(super) fn start(server: Option<PathBuf>, folder: PathBuf, log: &Path) -> Result<Store, String> {
        fs::create_dir(&folder).map_err(|error| cannot(&folder, &error))?;
        let server = server.map(|program| Server::start(&program, &folder, log)).transpose()?;
        Ok(Store { folder, server })
    }

    /// The URL of a volume.
    pub(super) fn url(&self, volume: &str) -> String {
        match &self.server {
            None => format!("file://{}/{volume}", self.folder.display()),
            Some(_) => format!("s3://{BUCKET}/{volume}"),
        }
    }

    /// The environment in which the command finds the store.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        self.server.as_ref().map_or_else(Vec::new, |server| server.environment.clone())
    }
}

/// A process, which ends with this value and with ours.
struct Server {
    environment: Vec<(String, String)>,
    child: Child,
}

impl Server {
    fn start(program: &Path, folder: &Path, log: &Path) -> Result<Server, String> {
        let errors = File::create(log).map_err(|error| cannot(log, &error))?;
        let mut command = Command::new(program);
        command.args(["--bucket", BUCKET]).arg(folder);
        // It ends with its standard input, which we hold.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut server = Server { environment: Vec::new(), child };
        // One variable per line, and an empty line when it serves.
        let output = server.child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines());
        for line in output.map_while(Result::ok) {
            match line.split_once('=') {
                Some((name, value)) => server.environment.push((name.to_owned(), value.to_owned())),
                None if line.is_empty() => return Ok(server),
                None => break,
            }
        }
        Err(format!("the S3 server does not start\n{}", tail(log)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_needs_no_environment() {
        let folder = std::env::temp_dir().join(format!("slackwater-xtask-store-{}", std::process::id()));
        let store = Store::start(None, folder.clone(), Path::new("/nonexistent")).unwrap();
        assert_eq!(store.url("git"), format!("file://{}/git", folder.display()));
        assert!(store.environment().is_empty());
        fs::remove_dir(folder).unwrap();
    }
}
