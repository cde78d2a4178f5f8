//! The Unix socket at which a plugin listens.
//!
//! A plugin that was killed leaves its socket file, at which no process listens. The next plugin replaces it.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use slackwater_control::client;
use slackwater_control::exit::Failure;
use slackwater_control::os::private_socket;
use slackwater_control::output::shell;
use slackwater_host::Printable as _;

/// A socket at which this process listens. Dropping it removes the file.
pub(crate) struct Endpoint {
    path: PathBuf,
}

impl Endpoint {
    /// Listens at `word`, a path or a URL such as `unix:///csi/csi.sock`. Only this user can connect. To be called before
    /// other threads create files.
    ///
    /// # Errors
    /// `word` is not a path, another process listens there, or the socket cannot be created.
    pub(crate) fn listen(word: &str) -> Result<(Self, UnixListener), Failure> {
        let path = path_of(word)?;
        let shown = path.printable();
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot {what} {shown}: {error}"))
                .advise("choose another --endpoint, in a directory that exists and that you can write to")
        };
        match fs::symlink_metadata(&path) {
            Ok(status) if !status.file_type().is_socket() => {
                return Err(Failure::failed(format!("{shown} exists and is not a socket"))
                    .advise(format!("check what it is (ls -l {}), or choose another --endpoint", shell::word(&path))));
            }
            Ok(_) if client::is_anyone_at(&path) => {
                return Err(Failure::busy(format!("another process listens at {shown}"))
                    .advise("end that process first, or choose another --endpoint"));
            }
            Ok(_) => fs::remove_file(&path).map_err(|error| failed("remove the old socket", &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("access", &error)),
        }
        let listener = private_socket::listen(&path).map_err(|error| failed("listen at", &error))?;
        Ok((Self { path }, listener))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // If this fails, the next plugin removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The absolute path of an endpoint.
fn path_of(word: &str) -> Result<PathBuf, Failure> {
    let path = word.strip_prefix("unix://").or_else(|| word.strip_prefix("unix:")).unwrap_or(word);
    if path.starts_with('/') {
        return Ok(path.into());
    }
    Err(Failure::usage(format!("--endpoint {}: not the path of a Unix socket", Path::new(word).printable()))
        .advise("write for example unix:///csi/csi.sock or /csi/csi.sock"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_endpoint_is_an_absolute_path_of_a_unix_socket() {
        for word in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(path_of(word).unwrap(), Path::new("/csi/csi.sock"), "{word}");
        }
        for word in ["", "tcp://127.0.0.1:5000", "csi.sock", "unix://csi.sock"] {
            assert!(path_of(word).unwrap_err().to_string().contains("unix:///csi/csi.sock"), "{word}");
        }
    }

    #[test]
    fn a_live_socket_is_refused_and_a_dead_one_replaced() {
        let dir = std::env::temp_dir().join(format!("slackwater-endpoint-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("csi.sock");
        let word = path.to_str().unwrap();
        let (endpoint, listener) = Endpoint::listen(word).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Endpoint::listen(word).map(drop).unwrap_err().what.contains("another process listens"));
        // As after a kill.
        std::mem::forget(endpoint);
        drop(listener);
        drop(Endpoint::listen(word).unwrap());
        assert!(!path.exists());
        fs::write(&path, "x").unwrap();
        assert!(Endpoint::listen(word).map(drop).unwrap_err().what.contains("not a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"x");
        fs::remove_dir_all(&dir).unwrap();
    }
}
