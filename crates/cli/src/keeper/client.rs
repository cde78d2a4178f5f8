//! The server's side: what it hands to its keeper, and what it gets from it at the start.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use rustix::stdio::dup2_stdin;
use rustix::thread::set_name;
use rustix::time::{ClockId, clock_gettime};
use slackwater_control::exit::Failure;
use slackwater_control::protocol::{FailedUpgrade, KeptStatus};
use slackwater_control::spec::{VolumeSpec, wire};
use slackwater_mount::Keeper;

use crate::keeper::estate::{NUMBERS_MAX, Parts};
use crate::keeper::link::{ANSWERS_WITHIN, Link};
use crate::keeper::programs::Program;
use crate::keeper::protocol::{HeldVolume, PROTOCOL_VERSION, Place, Predecessor, ToKeeper, ToServer};
use crate::keeper::succession::Succession;
use crate::keeper::talk::Talk;
use crate::registry::Entry;
use crate::volume::node_search::Numbered;

/// The keeper, as the server sees it.
#[derive(Debug)]
pub(crate) struct KeeperClient {
    pub(crate) pid: u32,
    talk: Arc<Talk>,
    lost: Arc<Lost>,
    /// The number of the next volume.
    next_volume: AtomicU64,
    /// Whether this process takes over from another.
    is_successor: bool,
    /// The service; set when the server serves.
    service: Mutex<Option<Service>>,
    serves: Condvar,
    /// The last upgrade, if it failed.
    failed_upgrade: Option<FailedUpgrade>,
    /// Whether this process is to exit for a successor.
    pub(crate) succession: Succession,
}

/// Whether the keeper has died (K3).
#[derive(Debug, Default)]
pub(super) struct Lost {
    is_lost: AtomicBool,
    /// A service manager starts the next keeper.
    is_stored: AtomicBool,
}

/// How long a question about the takeover waits for its end: a program whose call has returned may ask at once.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(1);

/// The past of the mount or daemon, for its status.
#[derive(Copy, Clone, Debug)]
struct Service {
    since: Instant,
    takeovers: u32,
    last_pause_ms: Option<u64>,
    longest_pause_ms: Option<u64>,
}

/// A volume that is kept.
#[derive(Clone, Debug)]
pub(crate) struct KeptVolume {
    client: Arc<KeeperClient>,
    number: u64,
}

/// Everything that a dead server leaves to its successor.
#[derive(Debug)]
pub(crate) struct Inheritance {
    pub(crate) predecessor: Predecessor,
    pub(crate) parts: Parts,
    pub(crate) volumes: Vec<InheritedVolume>,
}

/// A volume of a dead server.
#[derive(Debug)]
pub(crate) struct InheritedVolume {
    pub(crate) volume: HeldVolume,
    pub(crate) parts: Parts,
    /// The numbers of the files that the keeper holds.
    pub(crate) files: Vec<u64>,
    /// The nodes that the keeper holds, by number.
    pub(crate) nodes: Numbered<OwnedFd>,
}

/// Nanoseconds of a clock that all processes share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl KeeperClient {
    /// Joins the keeper, whose socket is standard input. Signals that end a process must wait already: from now on the
    /// keeper passes them on. Until [`serves`](Self::serves), the end of the keeper ends this process as SIGTERM does.
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

        let lost = Arc::new(Lost::default());
        let thread = watch(&link, &lost).map_err(failed)?;
        link.send(&ToKeeper::Hello { version: PROTOCOL_VERSION, thread }, &[]).map_err(failed)?;
        let (start, descriptors) = link.receive().and_then(|start| start.ok_or_else(gone)).map_err(failed)?;
        let ToServer::Start { version: PROTOCOL_VERSION, keeper: pid, is_stored, predecessor } = start else {
            return Err(failed(io::Error::other("it is of another version")));
        };
        lost.is_stored.store(is_stored, Ordering::Release);
        let inheritance = match predecessor {
            None => None,
            Some(mut predecessor) => {
                for _ in 0..predecessor.more_settings {
                    predecessor.settings.extend(receive_settings(&link).map_err(failed)?);
                }
                let parts = Parts::of(&predecessor.parts, descriptors).map_err(failed)?;
                let volumes = (0..predecessor.volumes).map(|_| receive_volume(&link)).collect::<io::Result<Vec<_>>>();
                Some(Inheritance { predecessor: *predecessor, parts, volumes: volumes.map_err(failed)? })
            }
        };
        let failed_upgrade = inheritance.as_ref().and_then(|left| left.predecessor.failed_upgrade.clone());
        let volumes = inheritance.iter().flat_map(|left| &left.volumes);
        let next_volume = volumes.map(|volume| volume.volume.number + 1).max().unwrap_or_default();
        let client = Self {
            pid,
            talk: Talk::new(link, Arc::clone(&lost), pid),
            lost,
            next_volume: AtomicU64::new(next_volume),
            is_successor: inheritance.is_some(),
            service: Mutex::new(None),
            serves: Condvar::new(),
            failed_upgrade,
            succession: Succession::default(),
        };
        Ok((Arc::new(client), inheritance))
    }

    /// A new volume, of which the keeper has nothing yet.
    pub(crate) fn new_volume(self: &Arc<Self>) -> KeptVolume {
        KeptVolume { client: Arc::clone(self), number: self.next_volume.fetch_add(1, Ordering::Relaxed) }
    }

    /// A volume of a predecessor.
    pub(crate) fn inherited(self: &Arc<Self>, volume: &HeldVolume) -> KeptVolume {
        KeptVolume { client: Arc::clone(self), number: volume.number }
    }

    /// Hands over what this process has for all its volumes.
    ///
    /// # Errors
    /// The keeper has not taken it.
    pub(crate) fn hold(&self, parts: &Parts) -> Result<(), Failure> {
        let (parts, descriptors) = parts.listed();
        self.talk.ask(ToKeeper::Hold { parts }, &descriptors, ANSWERS_WITHIN).map_err(not_held)
    }

    /// Says that this process serves everything that the keeper holds; from now on that outlives it. `predecessor` is
    /// the one from which it was taken over.
    ///
    /// # Errors
    /// The keeper is gone.
    pub(crate) fn serves(&self, predecessor: Option<&Predecessor>) -> Result<(), Failure> {
        self.talk.ask(ToKeeper::Serves, &[], ANSWERS_WITHIN).map_err(not_held)?;
        // It fails only for signals that do not exist.
        let _ = set_parent_process_death_signal(None);
        let last_pause_ms =
            predecessor.map(|predecessor| monotonic_ns().saturating_sub(predecessor.stopped_ns) / 1_000_000);
        let service = Service {
            since: Instant::now(),
            takeovers: predecessor.map_or(0, |predecessor| predecessor.takeovers + 1),
            last_pause_ms,
            longest_pause_ms: last_pause_ms.max(predecessor.and_then(|predecessor| predecessor.longest_pause_ms)),
        };
        *self.service() = Some(service);
        self.serves.notify_all();
        Ok(())
    }

    /// Records a setting of the process that was changed, for a successor.
    pub(crate) fn set(&self, key: &str, value: &str) {
        self.talk.tell(ToKeeper::Set { volume: None, key: key.to_owned(), value: value.to_owned() }, &[]);
    }

    /// Says that this process exits for a successor, when it stopped answering, and the program of the successor if that
    /// is another one.
    pub(crate) fn hand_over(&self, stopped_ns: u64, program: Option<&Program>) {
        let message = ToKeeper::HandOver { stopped_ns, program: program.map(|program| program.path().to_owned()) };
        self.talk.tell(message, program.map(AsFd::as_fd).as_slice());
    }

    /// Says that everything has ended. The keeper has dropped it all when this returns, its locks included, unless it is
    /// silent.
    pub(crate) fn done(&self) {
        // If the keeper is gone, so is what it held.
        let _ = self.talk.request(ToKeeper::Done, &[]);
    }

    /// Whether the keeper still holds everything.
    pub(crate) fn is_there(&self) -> bool {
        !self.lost.is_lost()
    }

    /// Whether the keeper does not answer, since it is stopped.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_there() && self.talk.is_silent()
    }

    fn service(&self) -> MutexGuard<'_, Option<Service>> {
        // It is set as a whole.
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the mount is kept, for the status of a volume.
    ///
    /// # Blocking
    /// At most for a second, while this process takes over.
    pub(crate) fn status(&self) -> KeptStatus {
        let is_awaited = |service: &mut Option<Service>| self.is_successor && service.is_none();
        let waited = self.serves.wait_timeout_while(self.service(), TAKEOVER_WITHIN, is_awaited);
        let service = waited.unwrap_or_else(PoisonError::into_inner).0;
        KeptStatus {
            keeper: self.pid,
            is_kept: self.is_there(),
            is_silent: self.is_silent(),
            failed_upgrade: self.failed_upgrade.clone(),
            takeovers: service.as_ref().map_or(0, |service| service.takeovers),
            last_pause_ms: service.as_ref().and_then(|service| service.last_pause_ms),
            longest_pause_ms: service.as_ref().and_then(|service| service.longest_pause_ms),
            serving_ms: service
                .as_ref()
                .map_or(0, |service| u64::try_from(service.since.elapsed().as_millis()).unwrap_or(0)),
        }
    }
}

/// Starts the thread that waits for the end of the keeper. Returns its id, by which the keeper learns of the end of this
/// process.
fn watch(link: &Link, lost: &Arc<Lost>) -> io::Result<u32> {
    let (socket, lost) = (link.as_fd().try_clone_to_owned()?, Arc::clone(lost));
    let (sender, id) = channel();
    let wait = move || {
        // The receiver waits for this.
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
        let mut socket = [PollFd::new(&socket, PollFlags::empty())];
        while poll(&mut socket, None) == Err(rustix::io::Errno::INTR) {}
        lost.note(&io::ErrorKind::UnexpectedEof.into());
    };
    thread::Builder::new().name("sw-keeper".to_owned()).spawn(wait)?;
    id.recv().map(i32::cast_unsigned).map_err(io::Error::other)
}

impl Lost {
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn note(&self, error: &io::Error) {
        if self.is_stored.load(Ordering::Acquire) {
            // As a crash, which the next keeper expects.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            tracing::error!(
                %error,
                "nothing is kept any more, because the keeper is gone: a crash of this process would end its mounts"
            );
        }
    }
}

fn not_held(error: io::Error) -> Failure {
    Failure::failed(format!("the keeper cannot hold it: {error}")).advise("use it without --keep")
}

fn receive_settings(link: &Link) -> io::Result<BTreeMap<String, String>> {
    match link.receive()? {
        Some((ToServer::Settings { settings }, _)) => Ok(settings),
        _ => Err(io::Error::other("the keeper sends no settings")),
    }
}

/// The next volume that the keeper sends.
fn receive_volume(link: &Link) -> io::Result<InheritedVolume> {
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (ToServer::Volume(volume), descriptors) = link.receive()?.ok_or_else(gone)? else {
        return Err(io::Error::other("it sends something else than a volume"));
    };
    let parts = Parts::of(&volume.parts, descriptors)?;
    let numbers = |_| match link.receive()?.ok_or_else(gone)? {
        (ToServer::Files { numbers }, _) => Ok(numbers),
        _ => Err(io::Error::other("it sends something else than files")),
    };
    let files: io::Result<Vec<_>> = (0..volume.files).map(numbers).collect();
    let mut nodes = Vec::new();
    for _ in 0..volume.nodes {
        match link.receive()?.ok_or_else(gone)? {
            (ToServer::Nodes { numbers }, descriptors) => nodes.extend(numbers.into_iter().zip(descriptors)),
            _ => return Err(io::Error::other("it sends something else than nodes")),
        }
    }
    Ok(InheritedVolume { volume: *volume, parts, files: files?.concat(), nodes })
}

impl InheritedVolume {
    /// Whether a program can still reach the volume.
    pub(crate) fn is_connected(&self) -> bool {
        self.parts.is_connected()
    }
}

impl KeptVolume {
    pub(crate) fn keeper(&self) -> &Arc<KeeperClient> {
        &self.client
    }

    /// Hands everything to the keeper that the volume consists of.
    ///
    /// # Errors
    /// The keeper has not taken it.
    pub(crate) fn hold(&self, entry: &Entry, options: &VolumeSpec, parts: &Parts) -> Result<(), Failure> {
        let (parts, descriptors) = parts.listed();
        let (number, entry) = (self.number, Box::new(entry.clone()));
        let (options, settings) = wire::split(options);
        let at_once = settings.iter().cloned().collect();
        let message = ToKeeper::HoldVolume { number, entry, options, settings: at_once, parts };
        self.client.talk.ask(message, &descriptors, ANSWERS_WITHIN).map_err(not_held)?;
        settings.iter().for_each(|(key, value)| self.set(key, value));
        Ok(())
    }

    /// Records a setting that was changed, for a successor.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.client.talk.tell(ToKeeper::Set { volume: Some(self.number), key, value }, &[]);
    }

    /// Records where the volume is mounted, for a successor.
    pub(crate) fn set_places(&self, places: Vec<Place>) {
        self.client.talk.tell(ToKeeper::Places { volume: self.number, places }, &[]);
    }

    /// Says that the volume has ended. The keeper has dropped it when this returns, its locks included, unless it is silent.
    pub(crate) fn ended(&self) {
        // If the keeper is gone, so is what it held.
        let _ = self.client.talk.request(ToKeeper::DropVolume { number: self.number }, &[]);
    }
}

impl Keeper for KeptVolume {
    fn keep(&self, number: u64, file: OwnedFd) -> io::Result<()> {
        self.client.talk.request(ToKeeper::KeepFile { volume: self.number, number }, &[file.as_fd()])
    }

    fn release(&self, number: u64) {
        self.client.talk.tell(ToKeeper::ReleaseFile { volume: self.number, number }, &[]);
    }

    fn keep_node(&self, number: u64, node: OwnedFd) {
        self.client.talk.tell(ToKeeper::KeepNode { volume: self.number, number }, &[node.as_fd()]);
    }

    fn release_nodes(&self, numbers: &[u64]) {
        for some in numbers.chunks(NUMBERS_MAX) {
            self.client.talk.tell(ToKeeper::ReleaseNodes { volume: self.number, numbers: some.to_vec() }, &[]);
        }
    }
}
