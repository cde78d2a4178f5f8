//! The mount that a command is about: by its mount point, or by its name in a daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_fuse::Printable as _;

use crate::arguments::DaemonSocket;
use crate::control::client::{ANSWER_WITHIN, Conversation, ask};
use crate::control::protocol::{List, Reply, Request};
use crate::exit::{Failure, Reason};
use crate::os::mount_table;
use crate::output::shell;
use crate::registry::{Found, Registry};
use crate::volume::endpoints::name_of;

/// A process listens within this time of its beginning.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

/// A process that works says so several times a second, and looks for names for ten seconds at most. As often a daemon to which
/// nothing happens says that it lives.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// A mount, and whom to ask about it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    /// Its name, where a daemon has it.
    pub(crate) volume: Option<String>,
    pub(crate) mountpoint: PathBuf,
    pub(crate) source: PathBuf,
    /// As the registry has it; none where a daemon alone was asked.
    pub(crate) found: Option<Found>,
}

impl From<Found> for Target {
    fn from(found: Found) -> Self {
        let entry = &found.entry;
        Self {
            socket: found.socket(),
            volume: entry.volume.clone(),
            mountpoint: entry.mountpoint.clone(),
            source: entry.source.path.clone(),
            found: Some(found),
        }
    }
}

impl Target {
    /// The mount that `word` means: of the daemon at the socket that was given, if one was, and it has it; else of this user.
    ///
    /// # Errors
    /// `NotMounted`.
    pub(crate) fn find(word: &Path, at: &DaemonSocket) -> Result<Self, Failure> {
        if at.socket.is_some() {
            let socket = at.path()?;
            let name = name_of(word).ok();
            let volumes = list(&socket)?.volumes;
            let meant = |name_there: &str, mountpoint: &Path| {
                Path::new(name_there) == word || name.as_deref() == Some(mountpoint)
            };
            if let Some(listed) = volumes.into_iter().find(|listed| meant(&listed.name, &listed.mountpoint)) {
                let (mountpoint, source) = (listed.mountpoint, listed.source);
                return Ok(Self { socket, volume: Some(listed.name), mountpoint, source, found: None });
            }
        }
        find_in_registry(word).map(Self::from)
    }

    /// All that are mounted: of the daemon at the socket that was given, else of this user.
    ///
    /// # Errors
    /// They are not known.
    pub(crate) fn all(at: &DaemonSocket) -> Result<Vec<Self>, Failure> {
        if at.socket.is_some() {
            let socket = at.path()?;
            let volumes = list(&socket)?.volumes.into_iter();
            let target = |listed: crate::control::protocol::Listed| Self {
                socket: socket.clone(),
                volume: Some(listed.name),
                mountpoint: listed.mountpoint,
                source: listed.source,
                found: None,
            };
            return Ok(volumes.map(target).collect());
        }
        let found = Registry::open()?.entries()?;
        Ok(found.into_iter().filter(|found| found.is_alive).map(Self::from).collect())
    }

    /// How people call it.
    pub(crate) fn name(&self) -> String {
        self.volume.clone().unwrap_or_else(|| self.mountpoint.to_string_lossy().into_owned())
    }

    /// Whether its process lives, as far as one can tell.
    pub(crate) fn is_alive(&self) -> bool {
        self.found.as_ref().is_none_or(Found::is_still_alive)
    }

    /// Whether everything of it is in the source, and nothing of it is left.
    pub(crate) fn has_ended_in_order(&self) -> bool {
        self.found.as_ref().is_some_and(Found::has_ended_in_order)
    }

    /// Sends a request. A process that has just begun is on the list a moment before it listens.
    pub(crate) fn open(&self, request: &Request) -> io::Result<Conversation> {
        let since = Instant::now();
        loop {
            match Conversation::open(&self.socket, self.volume.as_deref(), request, SILENCE) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                        && since.elapsed() < LISTENS_WITHIN
                        && self.found.as_ref().is_some_and(Found::is_still_alive) =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                done => return done,
            }
        }
    }
}

/// What the daemon at `socket` has.
///
/// # Errors
/// None is there, or it does not answer.
pub(crate) fn list(socket: &Path) -> Result<List, Failure> {
    let reply = ask_daemon(socket, &Request::List)?;
    let Reply::List(list) = reply else { return Err(reply.refusal()) };
    Ok(list)
}

/// Asks a daemon something that it answers at once.
///
/// # Errors
/// None is there, or it does not answer.
pub(crate) fn ask_daemon(socket: &Path, request: &Request) -> Result<Reply, Failure> {
    ask(socket, None, request, ANSWER_WITHIN).map_err(|error| no_daemon(socket, &error))
}

/// Why a daemon cannot be asked.
pub(crate) fn no_daemon(socket: &Path, error: &io::Error) -> Failure {
    let shown = socket.printable();
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
        Failure::new(Reason::NotMounted, format!("no daemon listens at {shown}"))
            .advise("start one (slackwater daemon), or name its socket with --socket PATH")
    } else if kind == io::ErrorKind::PermissionDenied {
        Failure::failed(format!("no permission to connect to the daemon at {shown}"))
            .advise("run the command as the daemon's user or as root; socket-group in its configuration gives a group read access")
    } else if kind == io::ErrorKind::TimedOut {
        Failure::failed(format!("the daemon at {shown} does not answer"))
            .advise("it may be stopped; kill -CONT continues it")
    } else {
        Failure::failed(format!("cannot communicate with the daemon at {shown}: {error}"))
    }
}

/// The mount of this user that `word` means; a living one rather than one that died there before, and one that is mounted
/// there rather than one that is called so.
fn find_in_registry(word: &Path) -> Result<Found, Failure> {
    let name = name_of(word);
    let entries = Registry::open()?.entries()?;
    let is_there = |found: &Found| name.as_ref().is_ok_and(|name| found.entry.mountpoint == *name);
    let is_called = |found: &Found| found.entry.volume.as_deref().is_some_and(|volume| Path::new(volume) == word);
    let meant = entries.into_iter().filter(|found| is_there(found) || is_called(found));
    if let Some(found) = meant.min_by_key(|found| (!found.is_alive, !is_there(found))) {
        return Ok(found);
    }
    let not_mounted = |what: String| Failure::new(Reason::NotMounted, what);
    let name = name.map_err(|error| {
        // Neither a path nor a name of a volume: a daemon that would know it may not run.
        let no_path = error.kind() == std::io::ErrorKind::NotFound;
        let cause = if no_path { String::new() } else { format!(": {error}") };
        not_mounted(format!("{} is not mounted{cause}", word.printable()))
            .advise("slackwater status lists the mount points; names are those of a running daemon (slackwater ls)")
    })?;
    Err(match mount_table::mount_at(&name) {
        Some(mount) if mount_table::is_slackwater(&mount) => not_mounted(format!(
            "{} is a slackwater mount of another user, or of a process that died",
            name.printable()
        ))
        .advise("run the command as that user, with the same SLACKWATER_RUNTIME_DIR")
        .advise(format!(
            "or detach it: umount -l {} (nothing is lost: the process writes everything back)",
            shell::word(&name)
        )),
        Some(mount) => {
            not_mounted(format!("{} is not a slackwater mount ({})", name.printable(), mount.kind.printable()))
                .advise(format!("use umount {}", shell::word(&name)))
        }
        None => not_mounted(format!("{} is not mounted", name.printable()))
            .advise("slackwater status lists the mount points"),
    })
}
