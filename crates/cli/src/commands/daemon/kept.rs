//! A daemon with `--keep`: the descriptors for its keeper, and how it takes the volumes of a predecessor over
//! ([`crate::keeper`]).
//!
//! # Steps of a takeover
//! 1. Inherit the lock of the socket, the socket and the arena. The configuration is the one with which the first daemon
//!    was started.
//! 2. Volumes whose connection has ended are left to [`super::leftovers`], which writes back what they have in the arena.
//! 3. Mount the others, each on its own thread, and serve their connections. A source that hangs delays its volume only.
//! 4. Answer requests. Mount configured volumes that the predecessor had not mounted yet.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use slackwater_arena::Arena;
use slackwater_mount::tenants::TenantConfig;

use crate::arguments::DaemonArguments;
use crate::commands::daemon::socket::Socket;
use crate::commands::daemon::volumes::Volumes;
use crate::control::protocol::MountRequest;
use crate::exit::Failure;
use crate::keeper::client::{Inheritance, InheritedVolume, KeeperClient, monotonic_ns};
use crate::keeper::protocol::{Part, Predecessor};
use crate::keeper::{Parts, Program, process};
use crate::os::memory_file;
use crate::parallel::{for_each_parallel, for_each_within};
use crate::registry::Entry;
use crate::spec::start::Start;
use crate::volume::keeping::Leaving;
use crate::volume::settings;

/// A configuration is no longer than this.
const CONFIGURATION_BYTES_MAX: u64 = 64 << 20;
/// How long a takeover waits for sources.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);
/// Attempts to take a volume over, and the pause between two.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);
/// The setting of the process that says that the configured volumes were mounted.
const STARTED: &str = "started";

/// Starts the keeper of a daemon, and stays until the end.
///
/// # Errors
/// As [`process::run`]; only root can keep a daemon.
///
/// # Blocking
/// For as long as it serves.
pub(super) fn keep(arguments: &DaemonArguments) -> Result<ExitCode, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::usage("--keep: only root can keep a daemon yet").advise("start it without --keep"));
    }
    debug_assert!(arguments.keep && !arguments.kept);
    let server = Start::Daemon(Box::new(DaemonArguments { kept: true, ..arguments.clone() }));
    process::run(process::Kept { server, mountpoint: None, is_detached: false })
}

/// A daemon, and what it has from a predecessor.
pub(super) struct Kept {
    pub(super) keeper: Arc<KeeperClient>,
    inheritance: Option<Inheritance>,
}

/// Everything that all volumes have in common and that must stay open.
pub(super) struct Open<'a> {
    pub(super) socket: &'a Socket,
    pub(super) listener: &'a UnixListener,
    pub(super) metrics: Option<&'a TcpListener>,
    pub(super) web: Option<&'a TcpListener>,
    pub(super) arena: &'a Arena,
    pub(super) configuration: &'a str,
}

impl Kept {
    /// Joins the keeper.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn join() -> Result<Self, Failure> {
        let (keeper, inheritance) = KeeperClient::join()?;
        Ok(Self { keeper, inheritance })
    }

    /// The predecessor, if there was one.
    pub(super) fn predecessor(&self) -> Option<&Predecessor> {
        self.inheritance.as_ref().map(|left| &left.predecessor)
    }

    fn part(&self, part: Part) -> Option<Result<OwnedFd, Failure>> {
        let left = self.inheritance.as_ref().filter(|left| left.parts.has(part))?;
        Some(left.parts.duplicate(part).map_err(not_taken_over))
    }

    /// The configuration with which the predecessor was started.
    pub(super) fn configuration(&self) -> Option<Result<String, Failure>> {
        let read = |fd| {
            let text = memory_file::read(fd, CONFIGURATION_BYTES_MAX)?;
            String::from_utf8(text).map_err(std::io::Error::other)
        };
        Some(self.part(Part::Configuration)?.and_then(|fd| read(fd).map_err(not_taken_over)))
    }

    /// The socket of the predecessor. It stays if this process fails before it serves.
    pub(super) fn socket(&self, path: &Path) -> Option<Result<(Leaving<Socket>, UnixListener), Failure>> {
        let (lock, listener) = self.part(Part::Lock).zip(self.part(Part::Control))?;
        Some(lock.and_then(|lock| Ok((Leaving::new(Socket::inherited(path, lock.into())), listener?.into()))))
    }

    /// The socket on which the predecessor served metrics.
    pub(super) fn metrics(&self) -> Option<Result<TcpListener, Failure>> {
        Some(self.part(Part::Metrics)?.map(Into::into))
    }

    /// The socket on which the predecessor served the page for operators.
    pub(super) fn web(&self) -> Option<Result<TcpListener, Failure>> {
        Some(self.part(Part::Web)?.map(Into::into))
    }

    /// The arena of the predecessor.
    pub(super) fn arena(&self) -> Option<Result<OwnedFd, Failure>> {
        self.part(Part::Arena)
    }

    /// Leaves the volumes that no program can reach any more to the write-back of leftovers: the keeper forgets them,
    /// and their entries count as those of a dead process.
    pub(super) fn leave_unreachable(&mut self) {
        let Some(left) = &mut self.inheritance else { return };
        let (reachable, ended) = std::mem::take(&mut left.volumes).into_iter().partition(InheritedVolume::is_connected);
        left.volumes = reachable;
        let ended: Vec<_> = ended;
        for volume in &ended {
            self.keeper.inherited(&volume.volume).ended();
        }
    }

    /// The entries of the volumes to take over.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.inheritance.iter().flat_map(|left| &left.volumes).map(|inherited| &inherited.volume.entry)
    }

    /// The settings of tenants that were changed since the start of the first daemon, over those of the configuration.
    ///
    /// # Errors
    /// A setting has a value that is not known here.
    pub(super) fn change_tenants(&self, tenants: &mut BTreeMap<PathBuf, TenantConfig>) -> Result<(), Failure> {
        for (name, value) in self.predecessor().iter().flat_map(|predecessor| &predecessor.settings) {
            let Some((key, tenant)) = name.split_once(' ') else { continue };
            let config = tenants.entry(tenant.into()).or_default();
            *config = settings::changed(*config, key, value)?;
        }
        Ok(())
    }

    /// Hands everything to the keeper that does not belong to one volume. From now on a successor follows.
    ///
    /// # Errors
    /// The keeper has not taken it.
    pub(super) fn hold(&self, open: &Open<'_>) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::failed(format!("cannot keep the daemon: {error}"));
        let configuration = memory_file::write("slackwater-configuration", open.configuration.as_bytes());
        let configuration = configuration.map_err(failed)?;
        let arena = open.arena.try_clone_lock().map_err(std::io::Error::other).map_err(failed)?;
        let mut parts = Parts::default();
        let mut add = |part, fd: BorrowedFd<'_>| parts.add(part, fd).map_err(failed);
        add(Part::Configuration, configuration.as_fd())?;
        add(Part::Arena, arena.as_fd())?;
        add(Part::Lock, open.socket.lock().as_fd())?;
        add(Part::Control, open.listener.as_fd())?;
        open.metrics.map_or(Ok(()), |listener| add(Part::Metrics, listener.as_fd()))?;
        open.web.map_or(Ok(()), |listener| add(Part::Web, listener.as_fd()))?;
        self.keeper.hold(&parts)?;
        self.keeper.serves(None)
    }

    /// Takes all volumes over. Those whose source does not answer in time are taken over when it does.
    ///
    /// # Errors
    /// A thread cannot be started, or the keeper is gone.
    pub(super) fn take_over(&mut self, volumes: &Arc<Volumes>) -> Result<(), Failure> {
        let Some(Inheritance { predecessor, volumes: inherited, parts: _ }) = self.inheritance.as_mut() else {
            return Ok(());
        };
        let inherited = std::mem::take(inherited);
        let (taking, count) = (Arc::clone(volumes), inherited.len());
        let take_over = move |inherited| take_over_one(&taking, inherited);
        let taken = for_each_within("sw-takeover", inherited, TAKEN_OVER_WITHIN, take_over);
        let (taken, _) =
            taken.map_err(|error| Failure::failed(format!("cannot start the threads of the daemon: {error}")))?;
        if taken.len() < count {
            tracing::warn!(
                volumes = count - taken.len(),
                "some sources do not answer; their volumes are served when they do"
            );
        }
        self.keeper.serves(Some(predecessor))
    }

    /// The configured volumes that the predecessor, if there was one, had not mounted when it died.
    pub(super) fn not_mounted(&self, configured: Vec<MountRequest>, volumes: &Volumes) -> Vec<MountRequest> {
        let Some(predecessor) = self.predecessor() else { return configured };
        if predecessor.settings.contains_key(STARTED) {
            return Vec::new();
        }
        configured
            .into_iter()
            .filter(|request| !request.name.as_deref().is_some_and(|name| volumes.has(name)))
            .collect()
    }

    /// Records that the configured volumes were mounted.
    pub(super) fn started(&self) {
        self.keeper.set(STARTED, "yes");
    }
}

/// The name of a tenant's setting among those of the process.
pub(super) fn setting_of(tenant: &Path, key: &str) -> String {
    format!("{key} {}", tenant.to_string_lossy())
}

/// Tries it several times, as the keeper does with a mount process.
fn take_over_one(volumes: &Volumes, inherited: InheritedVolume) {
    let mut attempt = 1;
    while let Err(failure) = volumes.take_over(&inherited) {
        let mountpoint = &inherited.volume.entry.mountpoint;
        if attempt == ATTEMPTS {
            tracing::error!(?mountpoint, %failure, "the volume is given up; its data stays in the arena");
            volumes.give_up(inherited);
            return;
        }
        tracing::warn!(?mountpoint, %failure, "the volume cannot be taken over: trying again");
        attempt += 1;
        thread::sleep(PAUSE);
    }
}

/// Exits for a successor. Nothing is released: the keeper has all of it.
pub(super) fn hand_over(volumes: &Volumes, keeper: &KeeperClient, program: Option<&Program>) -> ! {
    volumes.refuse_changes();
    let stopped_ns = monotonic_ns();
    for_each_parallel(usize::MAX, volumes.sessions().into_iter(), |(_, session)| {
        if let Some((front_end, _)) = session.served() {
            front_end.hand_over();
        }
    });
    keeper.hand_over(stopped_ns, program);
    exit(0)
}

fn not_taken_over(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot take the daemon over: {error}"))
}
