//! The mount that a command is about: by its mount point, or by its name in a daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slackwater_control::client::{ANSWER_WITHIN, Conversation, ask};
use slackwater_control::daemon::{SILENCE, has_successor, list};
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::mountpoint::name_of;
use slackwater_control::os::mount_table;
use slackwater_control::output::shell;
use slackwater_control::protocol::{Listed, Reply, Request, VolumeRef};
use slackwater_host::Printable as _;

use crate::arguments::DaemonSocket;
use crate::registry::{Entry, Found, Registry};

/// A process listens within this time after its start.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);

/// A mount, and the process to ask about it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) socket: PathBuf,
    /// The volume in a request to a daemon.
    pub(crate) volume: VolumeRef,
    /// The name of the mount in messages.
    pub(crate) name: String,
    /// The registry entry; `None` if only a daemon is asked.
    pub(crate) found: Option<Found>,
    /// The word on the command line that only the daemon can resolve.
    unresolved: Option<PathBuf>,
}

impl From<Found> for Target {
    fn from(found: Found) -> Self {
        let entry = &found.entry;
        Self {
            socket: found.socket(),
            volume: entry.volume_ref(),
            name: entry.volume.clone().unwrap_or_else(|| entry.mountpoint.to_string_lossy().into_owned()),
            found: Some(found),
            unresolved: None,
        }
    }
}

impl Target {
    /// The same, of which only the mount point `name` is meant.
    fn at(self, name: &Path) -> Self {
        Self { volume: VolumeRef { place: Some(name.to_path_buf()), ..self.volume }, ..self }
    }

    /// The mount that `word` names. With `--socket` it is one of the daemon's, which resolves the word when the request
    /// arrives ([`Target::attempt`]); otherwise it is one of this user's.
    ///
    /// # Errors
    /// `NotMounted`, if only the registry is searched.
    pub(crate) fn find(word: &Path, at: &DaemonSocket) -> Result<Self, Failure> {
        let mountpoint = || name_of(word).ok().filter(|path| path.to_str().is_some());
        match word.to_str() {
            Some(name) if at.socket.is_some() => Ok(Self {
                socket: at.path()?,
                volume: VolumeRef { mountpoint: mountpoint(), ..VolumeRef::named(Some(name)) },
                name: name.to_owned(),
                found: None,
                unresolved: Some(word.to_path_buf()),
            }),
            // Messages are JSON, so no daemon has a volume with such a name.
            _ => find_in_registry(word),
        }
    }

    /// Does `work` for the target. If the daemon does not have the volume, does it for this user's mount with that
    /// name.
    ///
    /// # Errors
    /// The failure of `work`; `NotMounted`, if neither knows the volume.
    pub(crate) fn attempt<T>(&self, work: impl Fn(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        match (work(self), &self.unresolved) {
            (Err(failure), Some(word)) if failure.reason == Reason::NotMounted => work(&find_in_registry(word)?),
            (outcome, _) => outcome,
        }
    }

    /// All mounts: those of the daemon at the given socket, otherwise those of this user.
    ///
    /// # Errors
    /// The list of mounts is not available.
    pub(crate) fn all(at: &DaemonSocket) -> Result<Vec<Self>, Failure> {
        if at.socket.is_some() {
            let socket = at.path()?;
            let target = |listed: Listed| Self {
                socket: socket.clone(),
                volume: VolumeRef::named(Some(&listed.name)),
                name: listed.name,
                found: None,
                unresolved: None,
            };
            return Ok(list(&socket)?.volumes.into_iter().map(target).collect());
        }
        let found = Registry::open()?.entries()?;
        Ok(found.into_iter().filter(|found| found.is_alive).map(Self::from).collect())
    }

    /// Whether another process will answer a request that the target's process has not answered.
    pub(crate) fn is_answered_by_successor(&self, error: &io::Error) -> bool {
        match &self.found {
            Some(found) => {
                found.is_answered_by_successor(error)
                    || (found.is_left_to_daemon() && has_successor(&self.socket, error))
            }
            None => has_successor(&self.socket, error),
        }
    }

    /// The registry entry of the mount, if its process has died and is held up by its source, while a keeper waits for
    /// that.
    pub(crate) fn held_up(&self) -> Option<Found> {
        let mut entries = Registry::open().and_then(|registry| registry.entries()).ok()?;
        let is_meant = |entry: &Entry| match &self.found {
            Some(found) => found.entry.mountpoint == entry.mountpoint,
            None => {
                entry.daemon.as_ref() == Some(&self.socket)
                    && (self.volume.mountpoint.as_ref() == Some(&entry.mountpoint) || self.volume.name == entry.volume)
            }
        };
        entries.retain(|found| is_meant(&found.entry) && found.is_alive && found.is_held_up());
        entries.pop()
    }

    /// Whether the process of the mount is alive, as far as that is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.found.as_ref().is_none_or(Found::is_still_alive)
    }

    /// Whether the mount has ended with everything written back.
    pub(crate) fn has_ended_in_order(&self) -> bool {
        self.found.as_ref().is_some_and(Found::has_ended_in_order)
    }

    /// Sends a request. A process that has just started is listed a moment before it listens.
    pub(crate) fn open(&self, request: &Request) -> io::Result<Conversation> {
        let since = Instant::now();
        loop {
            match Conversation::open(&self.socket, &self.volume, request, SILENCE) {
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

/// The mount of this user that `word` names: a live one rather than one that died there before, and one mounted there
/// rather than one with that name.
fn find_in_registry(word: &Path) -> Result<Target, Failure> {
    let name = name_of(word);
    let mut entries = Registry::open()?.entries()?;
    if let Ok(name) = &name
        && let Some(mounted) = mounted_at(name, &entries)
    {
        return Ok(Target::from(entries.swap_remove(mounted)).at(name));
    }
    let is_there = |found: &Found| name.as_ref().is_ok_and(|name| found.entry.mountpoint == *name);
    let is_called = |found: &Found| found.entry.volume.as_deref().is_some_and(|volume| Path::new(volume) == word);
    let meant = entries.into_iter().filter(|found| is_there(found) || is_called(found));
    if let Some(found) = meant.min_by_key(|found| (!found.is_alive, !is_there(found))) {
        return Ok(match name {
            Ok(name) if found.entry.mountpoint == name => Target::from(found).at(&name),
            _ => Target::from(found),
        });
    }
    let not_mounted = |what: String| Failure::new(Reason::NotMounted, what);
    let name = name.map_err(|error| {
        // Neither a path nor the name of a volume; the daemon that knows it may not be running.
        let no_path = error.kind() == std::io::ErrorKind::NotFound;
        let cause = if no_path { String::new() } else { format!(": {error}") };
        not_mounted(format!("{} is not mounted{cause}", word.printable()))
            .advise("slackwater status lists the mount points, slackwater ls the names of a daemon's volumes")
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

/// Which of the mounts is mounted at `name` in this mount namespace. The entry has only the first mount point of the
/// volume, and that in the namespace of its process.
fn mounted_at(name: &Path, entries: &[Found]) -> Option<usize> {
    let mount = mount_table::mount_at(name).filter(mount_table::is_slackwater)?;
    let has_source = |found: &Found| found.is_alive && found.entry.source.name() == mount.source;
    let mut candidates = (0..entries.len()).filter(|at| has_source(&entries[*at])).peekable();
    let first = candidates.next()?;
    if candidates.peek().is_none() {
        return Some(first);
    }
    // Several processes may read one object volume.
    let has_device = |at: &usize| {
        let found = &entries[*at];
        let answer = ask(&found.socket(), &found.entry.volume_ref(), &Request::Status, ANSWER_WITHIN);
        matches!(answer, Ok(Reply::Status(status)) if status.device == mount.device)
    };
    std::iter::once(first).chain(candidates).find(has_device)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use slackwater_control::protocol::Message;

    /// The requests that a daemon receives during `work`; it answers each with `reply`.
    fn received(name: &str, reply: &Reply, work: impl FnOnce(&DaemonSocket)) -> Vec<Message<Request>> {
        let socket = std::env::temp_dir().join(format!("slackwater-target-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let requests = thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut requests = Vec::new();
                loop {
                    let (mut peer, _) = listener.accept().unwrap();
                    let mut line = String::new();
                    BufReader::new(&peer).read_line(&mut line).unwrap();
                    if line.is_empty() {
                        return requests;
                    }
                    requests.push(serde_json::from_str(&line).unwrap());
                    peer.write_all(&Message::new(reply.clone()).line()).unwrap();
                }
            });
            work(&DaemonSocket { socket: Some(socket.clone()) });
            drop(std::os::unix::net::UnixStream::connect(&socket).unwrap());
            serving.join().unwrap()
        });
        std::fs::remove_file(&socket).unwrap();
        requests
    }

    #[test]
    fn a_request_about_a_daemons_volume_costs_one_message() {
        let requests = received("one", &Reply::Done, |at| {
            let target = Target::find(Path::new("/proc/../proc"), at).unwrap();
            let done = |target: &Target| target.open(&Request::Sync).unwrap().next(Some(SILENCE)).unwrap().done();
            target.attempt(done).unwrap();
        });
        let [request] = &requests[..] else { panic!("{requests:?}") };
        assert_eq!(request.body, Request::Sync);
        assert_eq!(request.volume.name.as_deref(), Some("/proc/../proc"));
        assert_eq!(request.volume.mountpoint.as_deref(), Some(Path::new("/proc")));
    }
}
