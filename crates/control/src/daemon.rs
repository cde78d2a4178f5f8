//! A daemon, asked by its socket. Another daemon may take over from it meanwhile, which then has the request.

use std::io;
use std::path::Path;
use std::time::Duration;

use slackwater_host::Printable as _;

use crate::client::{ANSWER_WITHIN, ask, is_cut_off};
use crate::exit::{Failure, Reason};
use crate::protocol::{KeptStatus, List, Reply, Request, VolumeRef};

/// Slots in the arena's table of volumes.
pub const VOLUMES_MAX: u32 = 16 << 10;

/// A busy process reports progress several times per second, and searches for names for at most ten seconds. An idle
/// daemon sends a sign of life that often.
pub const SILENCE: Duration = Duration::from_secs(60);

/// Processes that are asked, one after the other, while they take over.
const PROCESSES_MAX: u32 = 10;

/// The volumes of the daemon at `socket`.
///
/// # Errors
/// No daemon listens there, or it does not answer.
pub fn list(socket: &Path) -> Result<List, Failure> {
    let reply = ask_daemon(socket, &Request::List)?;
    let Reply::List(list) = reply else { return Err(reply.refusal()) };
    Ok(list)
}

/// Sends a request that the daemon answers at once.
///
/// # Errors
/// No daemon listens there, or it does not answer.
pub fn ask_daemon(socket: &Path, request: &Request) -> Result<Reply, Failure> {
    let answer = ask_each(is_cut_off, |_| ask(socket, &VolumeRef::default(), request, ANSWER_WITHIN));
    answer.map_err(|error| no_daemon(socket, &error))
}

/// Asks a process by `ask`. If the process ends with the request, asks those that take over from it, as long as
/// `is_succeeded` holds for the error. `ask` learns whether an earlier process may have carried the request out.
///
/// # Errors
/// The last process does not answer.
///
/// # Blocking
/// For the processes that are asked.
pub fn ask_each<T>(is_succeeded: impl Fn(&io::Error) -> bool, ask: impl Fn(bool) -> io::Result<T>) -> io::Result<T> {
    let mut answer = ask(false);
    for _ in 0..PROCESSES_MAX {
        match &answer {
            Err(error) if is_succeeded(error) => answer = ask(true),
            _ => break,
        }
    }
    answer
}

/// The daemon that has taken over from one that did not answer a request, with its volumes.
///
/// # Blocking
/// While the other daemon takes over.
pub fn successor(socket: &Path, error: &io::Error) -> Option<(List, KeptStatus)> {
    let list = is_cut_off(error).then(|| list(socket).ok()).flatten()?;
    let kept = list.kept.clone()?;
    Some((list, kept))
}

/// Whether another daemon has taken over from one that did not answer a request.
///
/// # Blocking
/// While the other daemon takes over.
pub fn has_successor(socket: &Path, error: &io::Error) -> bool {
    successor(socket, error).is_some()
}

/// Why a daemon cannot be reached.
pub fn no_daemon(socket: &Path, error: &io::Error) -> Failure {
    let shown = socket.printable();
    let kind = error.kind();
    if matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
        Failure::new(Reason::NoDaemon, format!("no daemon listens at {shown}"))
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
