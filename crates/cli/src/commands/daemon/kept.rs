//! A daemon with `--keep`: how it takes the volumes of a predecessor over ([`crate::keeper`]).
//!
//! # Steps of a takeover
//! 1. Inherit the lock of the socket, the socket and the arena. The configuration is the one with which the first
//!    daemon was started.
//! 2. Volumes whose connection has ended are left to [`super::leftovers`], which writes back what they have in the
//!    arena.
//! 3. Mount the others, each on its own thread, and serve their connections. A source that hangs delays its volume
//!    only.
//! 4. Answer requests. Mount configured volumes that the predecessor had not mounted yet.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use slackwater_control::exit::Failure;
use slackwater_control::name::VolumeName;
use slackwater_control::os::detach::detach;
use slackwater_control::parallel::for_each_within;
use slackwater_control::protocol::MountRequest;
use slackwater_control::spec::MountSpec;
use slackwater_control::spec::settings;
use slackwater_host::Printable as _;
use slackwater_mount::tenants::TenantConfig;

use crate::arguments::DaemonArguments;
use crate::commands::daemon::config;
use crate::commands::daemon::socket::Socket;
use crate::commands::daemon::volumes::{Held, Volumes};
use crate::keeper::client::InheritedVolume;
use crate::keeper::process;
use crate::keeper::protocol::Part;
use crate::os::memory_file;
use crate::registry::Entry;
use crate::server::kept::KeptServer;
use crate::server::start::Start;
use crate::volume::keeping;
use crate::volume::session::Session;

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

impl KeptServer {
    /// The configuration with which the first daemon was started; for that one, the file at `path`.
    ///
    /// # Errors
    /// The configuration cannot be read, or the keeper cannot have it.
    pub(super) fn configuration(&mut self, path: Option<&Path>) -> Result<String, Failure> {
        if let Some(fd) = self.inherited(Part::Configuration)? {
            let text = memory_file::read(fd, CONFIGURATION_BYTES_MAX);
            let text = text.and_then(|text| String::from_utf8(text).map_err(std::io::Error::other));
            return text.map_err(|error| self.not_taken_over(error));
        }
        let text = path.map(config::read).transpose()?.unwrap_or_default();
        self.add(Part::Configuration, || memory_file::write("slackwater-configuration", text.as_bytes()))?;
        Ok(text)
    }

    /// The socket at `path`, with its lock at `lock`. If it is that of a predecessor, it stays if this process fails
    /// before it serves.
    ///
    /// # Errors
    /// As [`Socket::listen`], or there are no descriptors left.
    pub(super) fn socket(
        &mut self,
        path: &Path,
        lock: &Path,
        group: Option<&str>,
    ) -> Result<(Socket, UnixListener), Failure> {
        if let (Some(lock), Some(listener)) = (self.inherited(Part::Lock)?, self.inherited(Part::Control)?) {
            return Ok((Socket::inherited(path, lock.into()), listener.into()));
        }
        let (socket, listener) = Socket::listen(path, lock, group)?;
        self.add(Part::Lock, || Ok(socket.lock()))?;
        self.add(Part::Control, || Ok(&listener))?;
        Ok((socket, listener))
    }

    /// Leaves the volumes that no program can reach any more to the write-back of leftovers: the keeper forgets them,
    /// and their entries count as those of a dead process.
    pub(super) fn leave_unreachable(&mut self) {
        for volume in self.volumes.extract_if(.., |volume| !volume.is_connected()) {
            self.keeper.iter().for_each(|keeper| keeper.inherited(&volume.volume).ended());
        }
    }

    /// The entries of the volumes to take over.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.volumes.iter().map(|inherited| &inherited.volume.entry)
    }

    /// The settings of tenants that were changed since the start of the first daemon, over those of the configuration.
    ///
    /// # Errors
    /// A setting has a value that is not known here.
    pub(super) fn change_tenants(&self, tenants: &mut BTreeMap<PathBuf, TenantConfig>) -> Result<(), Failure> {
        for (name, value) in self.predecessor.iter().flat_map(|predecessor| &predecessor.settings) {
            let Some((key, tenant)) = name.split_once(' ') else { continue };
            let config = tenants.entry(tenant.into()).or_default();
            *config = settings::changed(*config, key, value)?;
        }
        Ok(())
    }

    /// Takes all volumes over. Those whose source does not answer in time are taken over when it does.
    ///
    /// # Errors
    /// A thread cannot be started, or the keeper is gone.
    pub(super) fn take_over(&mut self, volumes: &Arc<Volumes>) -> Result<(), Failure> {
        let inherited = std::mem::take(&mut self.volumes);
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
        self.serves()
    }

    /// The configured volumes that the predecessor, if there was one, had not mounted when it died.
    pub(super) fn not_mounted(&self, configured: Vec<MountRequest>, volumes: &Volumes) -> Vec<MountRequest> {
        let Some(predecessor) = &self.predecessor else { return configured };
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
        self.keeper.iter().for_each(|keeper| keeper.set(STARTED, "yes"));
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

impl Volumes {
    /// Takes a volume over.
    ///
    /// # Errors
    /// The cause of the failure; the keeper has the volume as before.
    ///
    /// # Blocking
    /// For the source.
    fn take_over(&self, inherited: &InheritedVolume) -> Result<(), Failure> {
        let held = &inherited.volume;
        let keeper = self.shared.keeper.as_ref().ok_or_else(|| keeping::not_taken_over("there is no keeper"))?;
        let entry = Arc::new(held.entry.clone().of_successor(keeper.pid));
        let name = VolumeName::new(entry.volume.as_deref().unwrap_or_default())?;
        let reservation = self.reserve(&name, &entry)?;
        let mut ownership = keeping::ownership(inherited, &self.shared.registry, &entry)?;
        let (options, kept) = (held.changed(held.options.clone())?, keeper.inherited(held));
        let spec = MountSpec::of_volume(options.clone());
        let session = Session::new(entry, Some(kept.clone()), spec, self.shared.tally.clone());
        let (source, mounted) = self.open(&name, &session, &options, Some(keeping::taken_over(inherited, &kept)?))?;
        Session::inherit(&mounted, held);
        ownership.registered.own();
        let is_ending = self.serve(reservation, &session, &mounted, Held { source, ownership });
        // The shutdown has not seen this volume.
        if is_ending { self.umount(&name, &session, true) } else { Ok(()) }
    }

    /// Ends the mount of a volume that cannot be taken over. Its data stays in the arena, and a later mount of the
    /// source writes it back.
    fn give_up(&self, inherited: InheritedVolume) {
        let mountpoint = inherited.volume.entry.mountpoint.clone();
        if let Some(keeper) = &self.shared.keeper {
            keeper.inherited(&inherited.volume).ended();
        }
        // The last descriptor of the connection.
        drop(inherited);
        if let Err(error) = detach(&mountpoint) {
            tracing::error!("cannot free {}, the mount point of a volume given up: {error}", mountpoint.printable());
        }
    }

    /// Whether a volume has this name.
    fn has(&self, name: &str) -> bool {
        VolumeName::new(name).is_ok_and(|name| self.state().by_name.contains_key(&name))
    }
}
