//! The status of all mount processes, or of a daemon's volumes, at one moment.
//!
//! All are queried at the same time, so that a stopped one delays the others by at most the time limit.

use std::path::Path;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackwater_control::client::ask;
use slackwater_control::daemon::{ask_each, list, no_daemon};
use slackwater_control::exit::Failure;
use slackwater_control::parallel::for_each_parallel;
use slackwater_control::protocol::{Reply, Request, Status, VolumeRef};

use crate::arguments::DaemonSocket;
use crate::commands::target::Target;
use crate::registry::{Entry, Found, Registry};

/// Processes queried at the same time.
const ASKED_AT_ONCE: usize = 64;

/// The status of a mount process, and when it was received.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) at: Instant,
    pub(crate) status: Status,
}

/// All answers, each kind sorted by pid and mount point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    pub(crate) answers: Vec<Answer>,
    /// Processes that are alive and do not answer.
    pub(crate) silent: Vec<Entry>,
    /// Processes that died and left unwritten data in their arenas.
    pub(crate) dead: Vec<Entry>,
}

impl Survey {
    /// Queries all mounts: those of the daemon at the given socket, otherwise those of this user.
    ///
    /// # Errors
    /// The list of mounts is not available.
    ///
    /// # Blocking
    /// As [`Survey::of_processes`].
    pub(crate) fn all(at: &DaemonSocket, within: Duration) -> Result<Self, Failure> {
        if at.socket.is_none() {
            return Ok(Self::of_processes(&Registry::open()?.entries()?, within));
        }
        let socket = at.path()?;
        let failure = match list(&socket) {
            Ok(list) => {
                let names = list.volumes.into_iter().map(|listed| listed.name).collect();
                return Ok(Self::of_daemon(&socket, names, within));
            }
            Err(failure) => failure,
        };
        // The daemon's own user knows its volumes from the registry, even if the daemon is dead or stopped.
        let mut found = Registry::open().and_then(|registry| registry.entries()).unwrap_or_default();
        found.retain(|found| found.socket() == socket);
        if found.is_empty() { Err(failure) } else { Ok(Self::of_processes(&found, within)) }
    }

    /// Queries the daemon at `socket` for its volumes with these names. A volume that is gone by then is not among the
    /// answers.
    ///
    /// # Blocking
    /// As [`Survey::of_processes`].
    pub(crate) fn of_daemon(socket: &Path, names: Vec<String>, within: Duration) -> Self {
        Self::asking(names.into_iter(), |survey, name| {
            let volume = VolumeRef::named(Some(&name));
            if let Ok(Reply::Status(status)) = ask(socket, &volume, &Request::Status, within) {
                locked(survey).answered(*status);
            }
        })
    }

    /// Queries one volume or one process.
    ///
    /// # Errors
    /// The daemon does not answer, or does not have the volume.
    ///
    /// # Blocking
    /// As [`Survey::of_processes`].
    pub(crate) fn of_target(target: &Target, within: Duration) -> Result<Self, Failure> {
        if let Some(found) = &target.found {
            return Ok(Self::of_processes(slice::from_ref(found), within));
        }
        let ask = |_| ask(&target.socket, &target.volume, &Request::Status, within);
        let reply = ask_each(|error| target.is_answered_by_successor(error), ask);
        let reply = reply.map_err(|error| no_daemon(&target.socket, &error))?;
        let Reply::Status(status) = reply else { return Err(reply.refusal()) };
        let mut survey = Self::default();
        survey.answered(*status);
        Ok(survey)
    }

    /// Queries the processes that were found.
    ///
    /// # Blocking
    /// At most `within` for processes that do not answer; longer only if there are many of them.
    pub(crate) fn of_processes(found: &[Found], within: Duration) -> Self {
        Self::asking(found.iter(), |survey, found| {
            let ask = |_| ask(&found.socket(), &found.entry.volume_ref(), &Request::Status, within);
            let answer = ask_each(|error| found.is_answered_by_successor(error), ask);
            locked(survey).add(found, answer);
        })
    }

    fn asking<T: Send>(all: impl ExactSizeIterator<Item = T> + Send, one: impl Fn(&Mutex<Self>, T) + Sync) -> Self {
        let survey = Mutex::new(Self::default());
        for_each_parallel(ASKED_AT_ONCE, all, |found| one(&survey, found));
        let mut survey = survey.into_inner().unwrap_or_else(PoisonError::into_inner);
        survey.answers.sort_by_cached_key(|answer| (answer.status.pid, answer.status.mountpoint.clone()));
        survey.silent.sort_by_cached_key(|entry| (entry.pid, entry.mountpoint.clone()));
        survey.dead.sort_by_cached_key(|entry| (entry.pid, entry.mountpoint.clone()));
        survey
    }

    fn answered(&mut self, status: Status) {
        self.answers.push(Answer { at: Instant::now(), status });
    }

    fn add(&mut self, found: &Found, answer: std::io::Result<Reply>) {
        match answer {
            Ok(Reply::Status(status)) => self.answered(*status),
            // A process that has ended since it was listed is gone, not dead.
            _ if found.is_still_alive() => self.silent.push(found.entry.clone()),
            _ if found.entry.has_local_files() && !found.has_ended_in_order() => self.dead.push(found.entry.clone()),
            _ => {}
        }
    }
}

fn locked(survey: &Mutex<Survey>) -> MutexGuard<'_, Survey> {
    survey.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use slackwater_control::protocol::Message;

    /// No process answers before all have been queried.
    #[test]
    fn all_are_queried_in_parallel_and_sorted_by_pid() {
        let dir = std::env::temp_dir().join(format!("slackwater-look-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let registry = Registry::in_dir(&dir);
        let entry = Entry::sample(&dir);
        let guard = registry.lock().unwrap();
        let register = |pid| {
            let mut entry = entry.clone();
            entry.pid = pid;
            registry.register(&guard, &entry).unwrap()
        };
        let registered: Vec<_> = (1..=10).map(register).collect();
        let listeners: Vec<_> = registered.iter().map(|it| UnixListener::bind(it.socket()).unwrap()).collect();
        let found = registry.entries().unwrap();
        let survey = thread::scope(|scope| {
            scope.spawn(|| {
                let mut peers: Vec<_> = listeners.iter().map(|listener| listener.accept().unwrap().0).collect();
                for (pid, peer) in (1..11).zip(&mut peers).rev() {
                    peer.read_exact(&mut [0; 10]).unwrap();
                    let status = crate::commands::top::tests::status(pid, "/mnt", Vec::new());
                    // One of them sends another reply.
                    let reply = if pid == 7 { Reply::Done } else { Reply::Status(Box::new(status)) };
                    peer.write_all(&Message::new(reply).line()).unwrap();
                }
            });
            Survey::of_processes(&found, Duration::from_secs(60))
        });
        std::fs::remove_dir_all(&dir).unwrap();
        let answered: Vec<_> = survey.answers.iter().map(|answer| answer.status.pid).collect();
        assert_eq!(answered, [1, 2, 3, 4, 5, 6, 8, 9, 10]);
        assert_eq!(survey.silent.iter().map(|entry| entry.pid).collect::<Vec<_>>(), [7]);
    }
}
