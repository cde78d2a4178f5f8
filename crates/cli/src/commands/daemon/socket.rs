//! The socket of a daemon. One daemon listens at it; the socket of a dead daemon is removed.
//!
//! # Invariants
//! K1. The daemon that listens holds a lock (`flock`) on a file in the runtime directory, where no other user can
//!     create or lock one. If the lock is free and nothing answers at an existing socket, that socket belongs to a dead
//!     daemon. (A daemon with another runtime directory has another lock.)
//! K2. At no moment does the socket have a mode that admits more users than it should.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Gid, OFlags, chownat, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use slackwater_control::client;
use slackwater_control::errln;
use slackwater_control::exit::Failure;
use slackwater_control::os::private_socket;
use slackwater_control::output::shell;
use slackwater_host::Printable as _;

/// A listening socket of this process. Dropping it removes the socket file.
pub(crate) struct Socket {
    path: PathBuf,
    /// The socket of a predecessor: if this is dropped, the file stays for the next process.
    is_inherited: bool,
    /// K1.
    lock: File,
}

impl Socket {
    /// Takes the lock at `lock` and listens at `path`; members of `group` may query.
    ///
    /// # Errors
    /// Another daemon listens there; the file is not a socket; the directory is not writable; the group does not exist.
    pub(crate) fn listen(path: &Path, lock: &Path, group: Option<&str>) -> Result<(Self, UnixListener), Failure> {
        let gid = group.map(gid_of).transpose()?;
        let shown = path.printable();
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot {what} {shown}: {error}"))
                .advise("choose another --socket PATH, in a directory that only you can write to")
        };
        let lock = take(lock, path)?;
        match fs::symlink_metadata(path) {
            Ok(status) if status.file_type().is_socket() && status.uid() == geteuid().as_raw() => {
                if client::is_anyone_at(path) {
                    return Err(taken("", path));
                }
                errln!("The daemon that listened at {shown} died: taking over its socket.");
                fs::remove_file(path).map_err(|error| failed("remove the old socket", &error))?;
            }
            Ok(_) => {
                return Err(Failure::failed(format!("{shown} exists and is not a socket of yours"))
                    .advise(format!("check what it is (ls -l {}), or choose another --socket", shell::word(path))));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("access", &error)),
        }
        // K2: no other thread creates files yet.
        let listener = private_socket::listen(path).map_err(|error| failed("listen at", &error))?;
        let socket = Self { path: path.to_path_buf(), is_inherited: false, lock };
        if let Some(gid) = gid {
            chownat(CWD, path, None, Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_err(io::Error::from)
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o660)))
                .map_err(|error| failed("open to its group", &error))?;
        }
        Ok((socket, listener))
    }
}

impl Socket {
    /// The socket of a predecessor, with its lock. Until [`own`](Self::own), a failure leaves it to the next process.
    pub(crate) fn inherited(path: &Path, lock: File) -> Self {
        // It serves messages only.
        let _ = write_pid(&lock);
        Self { path: path.to_path_buf(), is_inherited: true, lock }
    }

    /// Makes the socket of a predecessor one of this process.
    pub(crate) fn own(&mut self) {
        self.is_inherited = false;
    }

    /// The lock, which belongs to the daemon as long as it is open.
    pub(crate) fn lock(&self) -> &File {
        &self.lock
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_inherited {
            // If this fails, the next daemon removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The base name of the lock and the arena of the daemon at `socket`. It is unique per socket, by its directory,
/// whatever path leads there.
///
/// # Errors
/// The directory does not exist.
pub(crate) fn name_of(socket: &Path) -> Result<String, Failure> {
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let status = fs::metadata(dir).map_err(|error| {
        let failure = Failure::failed(format!("cannot access {}: {error}", dir.printable()));
        failure.advise("create the directory first, or choose another --socket PATH")
    })?;
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("daemon-{:x}-{:x}-{name}", status.dev(), status.ino()))
}

fn taken(who: &str, socket: &Path) -> Failure {
    Failure::busy(format!("another daemon{who} listens at {}", socket.printable()))
        .advise("use that one (slackwater ls), or start this one with another --socket PATH")
}

/// K1. The holder's pid is written into the file.
fn take(path: &Path, socket: &Path) -> Result<File, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot lock {}: {error}", path.printable()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // A daemon that has just begun has not written its pid yet.
            let _ = (&file).take(32).read_to_string(&mut pid);
            let who = pid.trim().parse().map_or_else(|_| String::new(), |pid: u32| format!(" (pid {pid})"));
            return Err(taken(&who, socket));
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    write_pid(&file).map_err(failed)?;
    Ok(file)
}

fn write_pid(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// The number of a group in `/etc/group`, or `group` itself if it is a number.
fn gid_of(group: &str) -> Result<Gid, Failure> {
    let named = || {
        let groups = fs::read_to_string("/etc/group").ok()?;
        groups.lines().find_map(|line| match line.split(':').collect::<Vec<_>>()[..] {
            [name, _, gid, _] if name == group => gid.parse().ok(),
            _ => None,
        })
    };
    let unknown = || {
        Failure::usage(format!("no group named {group} in /etc/group"))
            .advise("name an existing group, or give its number")
    };
    group.parse().ok().or_else(named).map(Gid::from_raw).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("slackwater-socket-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn one_daemon_listens_at_a_socket_and_the_next_takes_the_place_of_a_dead_one() {
        let dir = dir("one");
        let (path, lock) = (dir.join("s"), dir.join("lock"));
        let (socket, listener) = Socket::listen(&path, &lock, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let refused = Socket::listen(&path, &lock, None).map(drop).unwrap_err();
        assert!(refused.what.contains(&format!("pid {}", std::process::id())), "{refused}");
        let elsewhere = Socket::listen(&path, &dir.join("other"), None).map(drop).unwrap_err();
        assert!(elsewhere.what.contains("another daemon listens"), "{elsewhere}");
        // As after a crash: the lock is released with the descriptors, and the socket stays.
        flock(&socket.lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(socket);
        drop(listener);
        let (next, _listener) = Socket::listen(&path, &lock, Some("0")).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(next);
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_kept_and_a_bad_path_is_named() {
        let dir = dir("bad");
        fs::write(dir.join("file"), "x").unwrap();
        let lock = dir.join("lock");
        assert!(Socket::listen(&dir.join("file"), &lock, None).map(drop).unwrap_err().what.contains("not a socket"));
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"x");
        assert!(name_of(&dir.join("none/s")).unwrap_err().to_string().contains("directory"));
        let group = Socket::listen(&dir.join("s"), &lock, Some("no-such-group")).map(drop).unwrap_err();
        assert!(group.what.contains("no-such-group"), "{group}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
