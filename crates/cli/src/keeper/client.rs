//! The server's side: what it hands to its keeper, and what it gets from it at the start.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::stdio::dup2_stdin;
use rustix::thread::set_name;
use rustix::time::{ClockId, clock_gettime};
use slackwater_fuse::Keeper;

use crate::control::protocol::{FailedUpgrade, KeptStatus};
use crate::exit::Failure;
use crate::keeper::estate::Parts;
use crate::keeper::link::Link;
use crate::keeper::programs::Program;
use crate::keeper::protocol::{PROTOCOL_VERSION, Place, Predecessor, ToKeeper, ToServer};
use crate::registry::Entry;

/// The keeper, as the server sees it.
#[derive(Debug)]
pub(crate) struct KeeperClient {
    pub(crate) pid: u32,
    /// Held during a request and its answer. A leaf.
    link: Mutex<Link>,
    /// The keeper has died, or does not answer (K3).
    is_lost: Arc<AtomicBool>,
    /// Whether this process takes a mount over.
    is_successor: bool,
    /// Set when the server serves.
    service: Mutex<Option<Service>>,
    serves: Condvar,
    /// The last upgrade, if it failed.
    failed_upgrade: Option<FailedUpgrade>,
}

/// How long a question about the takeover waits for its end: a program whose call has returned may ask at once.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(1);

/// The past of the mount, for its status.
#[derive(Copy, Clone, Debug)]
struct Service {
    since: Instant,
    takeovers: u32,
    last_pause_ms: Option<u64>,
}

/// Everything that a dead server leaves to its successor.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) predecessor: Predecessor,
    pub(crate) parts: Parts,
    /// The numbers of the files that the keeper holds.
    pub(crate) files: Vec<u64>,
}

/// Nanoseconds of a clock that all processes share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl KeeperClient {
    /// Joins the keeper, whose socket is standard input. Signals that end a process must wait already: from now on the
    /// keeper passes them on. Until [`hold`](Self::hold), the end of the keeper ends this process as SIGTERM does.
    ///
    /// # Errors
    /// There is no keeper, or it does not answer.
    pub(crate) fn join() -> Result<(Arc<Self>, Option<Inheritance>), Failure> {
        let failed = |error: io::Error| Failure::failed(format!("cannot communicate with the keeper: {error}"));
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        set_parent_process_death_signal(Some(Signal::TERM)).map_err(|errno| failed(errno.into()))?;
        // It was started through a descriptor, whose number is its name otherwise.
        let _ = set_name(c"slackwater");
        let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let link = Link::of(socket).map_err(failed)?;
        let nothing = std::fs::File::open("/dev/null").map_err(failed)?;
        dup2_stdin(&nothing).map_err(|errno| failed(errno.into()))?;

        let is_lost = Arc::new(AtomicBool::new(false));
        let thread = watch(&link, &is_lost).map_err(failed)?;
        link.send(&ToKeeper::Hello { version: PROTOCOL_VERSION, thread }, &[]).map_err(failed)?;
        let (start, descriptors) = link.receive().and_then(|start| start.ok_or_else(gone)).map_err(failed)?;
        let ToServer::Start { version: PROTOCOL_VERSION, keeper: pid, predecessor } = start else {
            return Err(failed(io::Error::other("it is of another version")));
        };
        let inheritance = match predecessor {
            None => None,
            Some(predecessor) => {
                let parts = Parts::of(&predecessor.parts, descriptors).map_err(failed)?;
                let numbers = |_| match link.receive().and_then(|numbers| numbers.ok_or_else(gone))? {
                    (ToServer::Files { numbers }, _) => Ok(numbers),
                    _ => Err(io::Error::other("it sends something else than files")),
                };
                let files: io::Result<Vec<_>> = (0..predecessor.files).map(numbers).collect();
                let files = files.map_err(failed)?.concat();
                Some(Inheritance { predecessor: *predecessor, parts, files })
            }
        };
        let failed_upgrade = inheritance.as_ref().and_then(|left| left.predecessor.failed_upgrade.clone());
        let client = Self {
            pid,
            link: Mutex::new(link),
            is_lost,
            is_successor: inheritance.is_some(),
            service: Mutex::new(None),
            serves: Condvar::new(),
            failed_upgrade,
        };
        Ok((Arc::new(client), inheritance))
    }

    /// Hands everything to the keeper that the mount consists of; from now on it outlives this process. `predecessor` is
    /// the one from which it was taken over.
    ///
    /// # Errors
    /// The keeper has not taken it.
    pub(crate) fn hold(
        self: &Arc<Self>,
        entry: &Entry,
        parts: &Parts,
        predecessor: Option<&Predecessor>,
    ) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("the keeper cannot hold the mount: {error}")).advise("mount it without --keep")
        };
        let (names, descriptors) = parts.listed();
        let message = ToKeeper::Hold { entry: Box::new(entry.clone()), parts: names };
        self.ask(&message, &descriptors).map_err(failed)?;
        // It fails only for signals that do not exist.
        let _ = set_parent_process_death_signal(None);
        let service = Service {
            since: Instant::now(),
            takeovers: predecessor.map_or(0, |predecessor| predecessor.takeovers + 1),
            last_pause_ms: predecessor
                .map(|predecessor| monotonic_ns().saturating_sub(predecessor.stopped_ns) / 1_000_000),
        };
        *self.service() = Some(service);
        self.serves.notify_all();
        Ok(())
    }

    /// Records a setting that was changed, for a successor.
    pub(crate) fn set(&self, key: &str, value: &str) {
        self.tell(&ToKeeper::Set { key: key.to_owned(), value: value.to_owned() });
    }

    /// Records where the volume is mounted, for a successor.
    pub(crate) fn set_places(&self, places: Vec<Place>) {
        self.tell(&ToKeeper::Places { places });
    }

    /// Says that this process exits for a successor, when it stopped answering, and the program of the successor if that
    /// is another one.
    pub(crate) fn hand_over(&self, stopped_ns: u64, program: Option<&Program>) {
        let message = ToKeeper::HandOver { stopped_ns, program: program.map(|program| program.path().to_owned()) };
        self.tell_with(&message, program.map(AsFd::as_fd).as_slice());
    }

    /// Says that the volume has ended. The keeper has dropped everything when this returns, its locks included.
    pub(crate) fn done(&self) {
        // If the keeper is gone, so is what it held.
        let _ = self.ask(&ToKeeper::Done, &[]);
    }

    /// Whether the keeper still holds the mount.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_lost.load(Ordering::Acquire)
    }

    fn service(&self) -> MutexGuard<'_, Option<Service>> {
        // It is set as a whole.
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the status of the mount.
    ///
    /// # Blocking
    /// While the mount is being taken over, at most for a second.
    pub(crate) fn status(&self) -> KeptStatus {
        let is_awaited = |service: &mut Option<Service>| self.is_successor && service.is_none();
        let waited = self.serves.wait_timeout_while(self.service(), TAKEOVER_WITHIN, is_awaited);
        let service = waited.unwrap_or_else(PoisonError::into_inner).0;
        KeptStatus {
            keeper: self.pid,
            is_kept: self.is_there(),
            failed_upgrade: self.failed_upgrade.clone(),
            takeovers: service.as_ref().map_or(0, |service| service.takeovers),
            last_pause_ms: service.as_ref().and_then(|service| service.last_pause_ms),
            serving_ms: service
                .as_ref()
                .map_or(0, |service| u64::try_from(service.since.elapsed().as_millis()).unwrap_or(0)),
        }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // A thread that panicked has sent a whole message or none.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, message: &ToKeeper, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let link = self.link();
        if !self.is_there() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let answer = link.send(message, with).and_then(|()| link.receive::<ToServer>());
        drop(link);
        match answer {
            Ok(Some((ToServer::Kept { error: None }, _))) => Ok(()),
            Ok(Some((ToServer::Kept { error: Some(error) }, _))) => Err(io::Error::other(error)),
            Ok(Some(_)) => Err(self.lost(io::Error::other("it sends a wrong answer"))),
            Ok(None) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn tell(&self, message: &ToKeeper) {
        self.tell_with(message, &[]);
    }

    fn tell_with(&self, message: &ToKeeper, with: &[BorrowedFd<'_>]) {
        let link = self.link();
        if self.is_there()
            && let Err(error) = link.send(message, with)
        {
            drop(link);
            self.lost(error);
        }
    }

    /// K3.
    fn lost(&self, error: io::Error) -> io::Error {
        note_lost(&self.is_lost, &error);
        error
    }
}

/// Starts the thread that waits for the end of the keeper. Returns its id, by which the keeper learns of the end of this
/// process.
fn watch(link: &Link, is_lost: &Arc<AtomicBool>) -> io::Result<u32> {
    let (socket, is_lost) = (link.as_fd().try_clone_to_owned()?, Arc::clone(is_lost));
    let (sender, id) = channel();
    let wait = move || {
        // The receiver waits for this.
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
        let mut socket = [PollFd::new(&socket, PollFlags::empty())];
        while poll(&mut socket, None) == Err(rustix::io::Errno::INTR) {}
        note_lost(&is_lost, &io::ErrorKind::UnexpectedEof.into());
    };
    thread::Builder::new().name("sw-keeper".to_owned()).spawn(wait)?;
    id.recv().map(i32::cast_unsigned).map_err(io::Error::other)
}

fn note_lost(is_lost: &AtomicBool, error: &io::Error) {
    if !is_lost.swap(true, Ordering::AcqRel) {
        tracing::error!(
            %error,
            "the mount is not kept any more, because its keeper is gone: a crash of this process would end it"
        );
    }
}

impl Keeper for KeeperClient {
    fn keep(&self, number: u64, file: OwnedFd) -> io::Result<()> {
        self.ask(&ToKeeper::KeepFile { number }, &[file.as_fd()])
    }

    fn release(&self, number: u64) {
        self.tell(&ToKeeper::ReleaseFile { number });
    }
}
