//! Requests that take a while to answer, sent to one process or to several at the same time.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater_control::daemon::{SILENCE, ask_each, no_daemon};
use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::{is_slackwater, mount_at};
use slackwater_control::parallel::for_each_parallel;
use slackwater_control::protocol::{Reply, Request};
use slackwater_host::Printable as _;

use crate::arguments::DaemonSocket;
use crate::commands::target::Target;
use crate::os::killed_process::end_connection_at;
use crate::progress::Meter;
use crate::registry::{Entry, Found};

/// Requests in flight at the same time.
const CONCURRENT_MAX: usize = 16;

pub(super) fn targets(words: &[PathBuf], all: bool, at: &DaemonSocket) -> Result<Vec<Target>, Failure> {
    if all { Target::all(at) } else { words.iter().map(|word| Target::find(word, at)).collect() }
}

/// Does `work` for each target, several at a time, so that a hung one delays few others. `work` also learns whether its
/// target is the only one. If several fail, the last failure is returned and the others are printed.
pub(super) fn each(
    targets: &[Target],
    work: impl Fn(&Target, bool) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    if let [target] = targets {
        return target.attempt(|target| work(target, true));
    }
    let failures = Mutex::new(Vec::new());
    for_each_parallel(CONCURRENT_MAX, targets.iter(), |target| {
        if let Err(failure) = target.attempt(|target| work(target, false)) {
            let failure = Failure { what: format!("{}: {}", target.name.printable(), failure.what), ..failure };
            // A thread that panicked here has reported it.
            failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
        }
    });
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let last = failures.pop();
    failures.iter().for_each(|failure| errln!("slackwater: {failure}"));
    last.map_or(Ok(()), Err)
}

/// Sends a request that takes a while to answer, and shows the progress if it is the only one. A process that ends in
/// order instead of answering has done what was requested: everything is written back and unmounted. So has a daemon that
/// died in an unmount, if its successor neither has the volume nor anything to write back to its source.
pub(super) fn converse(target: &Target, request: &Request, action: &str, is_only: bool) -> Result<(), Failure> {
    let is_of_dead = target.found.as_ref().is_some_and(|found| !found.is_alive);
    let is_unmount = matches!(request, Request::Umount { .. } | Request::Detach);
    let ask = |is_repeated| match receive(target, request, is_only.then_some(action))? {
        Err(failure) if (is_repeated || is_of_dead) && is_unmount && failure.reason == Reason::NotMounted => Ok(Ok(())),
        answer => Ok(answer),
    };
    let answered = ask_each(|error| target.is_answered_by_successor(error), ask);
    answered.unwrap_or_else(|error| match &target.found {
        None => Err(no_daemon(&target.socket, &error)),
        Some(found) if found.is_still_alive() && error.kind() == io::ErrorKind::TimedOut => {
            Err(Failure::failed(format!("pid {} does not answer", found.entry.pid))
                .advise("it may be stopped; kill -CONT continues it"))
        }
        Some(found) if found.is_still_alive() => {
            Err(Failure::failed(format!("cannot communicate with pid {}: {error}", found.entry.pid)))
        }
        Some(found) if found.has_ended_in_order() => Ok(()),
        Some(_) => Err(died(target)),
    })
}

/// The final answer of the process; the outer error means that there is none.
fn receive(target: &Target, request: &Request, action: Option<&str>) -> io::Result<Result<(), Failure>> {
    let mut ends_at = None;
    if let Request::Umount { deadline_ms, force, park, .. } = *request
        && (force || park)
    {
        ends_at = Instant::now().checked_add(Duration::from_millis(deadline_ms));
    }
    let mut conversation = target.open(request)?;
    let mut meter = action.map(Meter::new);
    loop {
        let left = ends_at.map_or(SILENCE, |at| at.saturating_duration_since(Instant::now()).min(SILENCE));
        let reply = match conversation.next(Some(left)) {
            // A process that lives reports progress, and ends at the deadline.
            Err(error) if error.kind() == io::ErrorKind::TimedOut && ends_at.is_some() => {
                match target.held_up() {
                    Some(found) if ends_at.is_some_and(|at| at <= Instant::now()) => return Ok(Err(end_held(&found))),
                    Some(_) => {}
                    None => ends_at = None,
                }
                continue;
            }
            reply => reply?,
        };
        let Reply::Progress { bytes_left, written_bytes } = reply else { return Ok(reply.done()) };
        if let Some(meter) = &mut meter {
            meter.update(bytes_left, written_bytes);
        }
    }
}

/// Ends a mount whose process has died and is held up by its source, at the deadline of a forced unmount: its keeper can
/// start no other process before the source answers.
fn end_held(found: &Found) -> Failure {
    let Entry { source, mountpoint, arena, pid, .. } = &found.entry;
    let (from, to, cache) = (source.name().printable(), mountpoint.printable(), arena.printable());
    let mount = mount_at(mountpoint).filter(|mount| is_slackwater(mount) && mount.source == source.name());
    let detached = mount.map_or(Ok(()), |mount| {
        end_connection_at(&mount);
        detach(mountpoint)
    });
    if let Err(error) = detached {
        return Failure::failed(format!("cannot unmount {to}, whose process (pid {pid}) has died: {error}"));
    }
    let what = format!("{to} is unmounted; its process (pid {pid}) has died, and waits for {from}");
    Failure::new(Reason::Left, what)
        .advise(format!("its unwritten data is kept in {cache}: mount {from} again to write it back"))
        .advise("it is lost if the machine restarts before that")
}

pub(super) fn died(target: &Target) -> Failure {
    match &target.found {
        Some(found) => process_died(found),
        None => Failure::failed(format!("the daemon of {} has ended", target.name.printable())),
    }
}

pub(super) fn process_died(found: &Found) -> Failure {
    let (source, arena) = (found.entry.source.name().printable(), found.entry.arena.printable());
    let failure = Failure::failed(format!("the process of this mount (pid {}) died", found.entry.pid));
    match found.entry.has_local_files() {
        true => failure.advise(format!("its unwritten data is in {arena}: mount {source} again to write it back")),
        false => failure,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread;

    use super::*;
    use crate::registry::{Registered, Registry};

    /// The outcome of `umount` for a mount that receives its request, does `last`, and closes the connection without an
    /// answer.
    fn unanswered(name: &str, last: impl FnOnce(Registered, &Path) + Send) -> Result<(), Failure> {
        let dir = std::env::temp_dir().join(format!("slackwater-client-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let registry = Registry::in_dir(&dir);
        let entry = Entry::sample(&dir);
        let registered = registry.register(&registry.lock().unwrap(), &entry).unwrap();
        let found = registry.entries().unwrap().remove(0);
        let listener = UnixListener::bind(found.socket()).unwrap();
        let request = Request::Umount { deadline_ms: 60_000, force: false, discard: false, park: false };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().unwrap();
                peer.read_exact(&mut [0; 10]).unwrap();
                last(registered, &dir);
            });
            converse(&Target::from(found), &request, "flushing", true)
        });
        std::fs::remove_dir_all(&dir).unwrap();
        outcome
    }

    #[test]
    fn a_mount_that_ends_in_order_without_an_answer_is_unmounted() {
        // The next mount of the source may already have its arena there.
        let outcome = unanswered("order", |registered, dir| {
            drop(registered);
            std::fs::write(dir.join("arena"), "").unwrap();
        });
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn a_mount_that_dies_without_an_answer_has_died() {
        let outcome = unanswered("death", |registered, dir| {
            std::fs::write(dir.join("arena"), "").unwrap();
            registered.die();
        });
        let failure = outcome.unwrap_err();
        assert!(failure.what.contains("died") && failure.advice[0].contains("its unwritten data is in"), "{failure}");
    }
}
