//! A mount with `--keep`, as its server sees it: the descriptors for its keeper, and how it takes the mount over from a
//! predecessor ([`crate::keeper`]).
//!
//! # Steps of a takeover
//! 1. Inherit the registry entry and the lock of the source, and answer queries.
//! 2. Open the arena, recover the engine, and mount the volume in it: dirty data is served and written back from then on.
//! 3. Serve the connection, which the kernel makes send the unanswered requests again, and hand everything to the keeper.
//!    After a failure before that, the next process tries again.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::exit;
use std::sync::Arc;

use slackwater::Engine;
use slackwater_backends::SystemClock;
use slackwater_fuse::MountRecord;

use crate::arguments::MountArguments;
use crate::commands::mount::background::Departure;
use crate::commands::mount::main_loop::MainLoop;
use crate::commands::mount::{Mounted, attach, options, serve_metrics, serve_until_end};
use crate::control::protocol::Transport;
use crate::control::server;
use crate::exit::Failure;
use crate::keeper::Parts;
use crate::keeper::client::{Inheritance, KeeperClient};
use crate::keeper::protocol::Part;
use crate::registry::{Entry, Registry};
use crate::source;
use crate::source::opened::Opened;
use crate::source::ownership::Ownership;
use crate::volume::front_end::{self, FrontEnd, Kept};
use crate::volume::process::tunables;
use crate::volume::session::{Session, Tally};
use crate::volume::{arena_file, pressure, settings};

/// The arguments for a mount that is kept.
///
/// # Errors
/// Such a mount cannot be kept.
pub(super) fn checked(mut arguments: MountArguments) -> Result<MountArguments, Failure> {
    if !arguments.keep {
        return Ok(arguments);
    }
    let refused = |what: &str| Failure::usage(format!("--keep: {what}")).advise("mount it without --keep");
    if source::is_url(&arguments.source) {
        return Err(refused("an object volume cannot be kept yet, only a directory"));
    }
    if arguments.transport == Transport::Uring {
        return Err(refused("requests over io_uring cannot be taken over by another process"));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(refused("only root can keep a mount yet"));
    }
    arguments.transport = Transport::Dev;
    Ok(arguments)
}

/// The descriptors that the server collects for its keeper while it mounts.
pub(super) struct Keeping {
    client: Arc<KeeperClient>,
    parts: Parts,
}

impl Keeping {
    pub(super) fn new(client: Arc<KeeperClient>) -> Self {
        Self { client, parts: Parts::default() }
    }

    pub(super) fn keeper(&self) -> &Arc<KeeperClient> {
        &self.client
    }

    pub(super) fn add(&mut self, part: Part, fd: impl AsFd) -> Result<(), Failure> {
        self.parts.add(part, fd).map_err(failed)
    }

    /// The part of the front end.
    pub(super) fn front_end(&mut self) -> Result<Kept, Failure> {
        let record = MountRecord::create().map_err(failed)?;
        self.add(Part::Record, record.fd())?;
        Ok(Kept { record, keeper: Arc::clone(&self.client) as _, device: None, files: Vec::new() })
    }

    /// Hands everything to the keeper. From now on the mount outlives this process.
    pub(super) fn hold(mut self, entry: &Entry, mounted: &Mounted, ownership: &Ownership) -> Result<(), Failure> {
        self.add(Part::Device, mounted.front_end.try_clone_device().map_err(failed)?)?;
        self.add(Part::Arena, mounted.engine.arena().try_clone_lock().map_err(failed)?)?;
        self.add(Part::Entry, ownership.registered.file())?;
        if let Some(lock) = ownership.lock() {
            self.add(Part::Source, lock)?;
        }
        self.client.hold(entry, &self.parts, None)
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot keep the mount: {error}"))
}

/// Takes the mount over from a predecessor, and serves it until its end.
///
/// # Errors
/// The cause of the failure. Before the mount was taken over, nothing has changed.
pub(super) fn take_over(
    arguments: &MountArguments,
    main_loop: MainLoop,
    keeper: &Arc<KeeperClient>,
    inheritance: Inheritance,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot take the mount over: {error}"));
    // A signal unmounts it.
    main_loop.mounting();
    let Inheritance { predecessor, parts, files } = inheritance;
    let part = |part| parts.duplicate(part).map_err(failed);
    let registry = Registry::open()?;
    let entry = predecessor.entry.clone().of_successor();
    if arguments.detached {
        Departure::prepare(&registry.log_file(entry.number())).map_err(failed)?.leave();
    }
    let registered = registry.inherit(&entry, part(Part::Entry)?).map_err(failed)?;
    // A failure leaves everything to the next process.
    let ownership = Leaving(Some(Ownership::inherited(part(Part::Source)?, registered)));
    let session = Session::new(Arc::new(entry), Tally::default());
    session.set_keeper(keeper);
    session.set_options(attach::running(arguments, &session.entry));
    let unanswered =
        server::start(UnixListener::from(part(Part::Control)?), server::PRIVATE, Arc::clone(&session) as _)
            .map_err(failed)?;
    let metrics = match parts.has(Part::Metrics) {
        true => Some(serve_metrics(TcpListener::from(part(Part::Metrics)?), &session)?),
        false => None,
    };

    let mounted = recover(arguments, &session, keeper, &parts, files)?;
    if let Some(value) = predecessor.settings.get("dontcache") {
        mounted.front_end.set_dontcache(settings::on_or_off(value)?);
    }
    Session::inherit_places(&mounted.front_end, &predecessor.places);
    session.show(Some(&mounted.volume));
    session.set_mounted(&mounted.engine, &mounted.front_end, &mounted.source);
    keeper.hold(&session.entry, &parts, Some(&predecessor))?;
    drop(parts);
    let status = keeper.status();
    let (before, takeovers, pause_ms) = (predecessor.entry.pid, status.takeovers, status.last_pause_ms);
    match predecessor.has_handed_over {
        true => tracing::info!(before, takeovers, pause_ms, "this process has taken the mount over"),
        false => tracing::warn!(before, takeovers, pause_ms, "this process has taken the mount over"),
    }
    serve_until_end(main_loop, &session, mounted, ownership.take(), &unanswered, metrics, arguments.detached)
}

/// The volume of a predecessor, with its data and its connection.
fn recover(
    arguments: &MountArguments,
    session: &Session,
    keeper: &Arc<KeeperClient>,
    parts: &Parts,
    files: Vec<u64>,
) -> Result<Mounted, Failure> {
    let failed = |error: String| Failure::failed(format!("cannot take the mount over: {error}"));
    let part = |part| parts.duplicate(part).map_err(|error| failed(error.to_string()));
    let entry = &session.entry;
    let (left, filler) = arena_file::open_inherited(part(Part::Arena)?, &entry.arena)?;
    let options = options::of_volume(arguments);
    let source = Opened::new(entry, &options, false, &|_| {})?;
    let backend = source.backend(Some(&left.inodes())).map_err(|error| failed(error.to_string()))?;
    let engine = left.recover(Arc::new(SystemClock), tunables(arguments.dirty_ratio(), arguments.dirty_expire()));
    let volume = engine.mount(&entry.identity, backend).map_err(|error| failed(error.to_string()))?;
    let tenancy = front_end::tenancy(arguments.tenant_by(), options::of_tenants(arguments), &engine)?;
    let record = MountRecord::open(part(Part::Record)?).map_err(|error| failed(error.to_string()))?;
    let kept = Kept { record, keeper: Arc::clone(keeper) as _, device: Some(part(Part::Device)?), files };
    let (name, mountpoint) = (entry.source.name(), &entry.mountpoint);
    let front_end = FrontEnd::open(&front_end::pool(true)?, &volume, name, mountpoint, options, tenancy, Some(kept))?;
    let shrunk: Engine = engine.clone();
    let pressure = pressure::Listener::start(session.pressure(), move |priority| shrunk.shrink(priority));
    if let Some(filler) = filler {
        arena_file::fill(filler);
    }
    Ok(Mounted { pressure, engine, volume, front_end, source })
}

/// An ownership that stays with the keeper unless it is taken out.
struct Leaving(Option<Ownership>);

impl Leaving {
    fn take(mut self) -> Ownership {
        self.0.take().unwrap_or_else(|| unreachable!("it is taken once"))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(ownership) = self.0.take() {
            ownership.registered.leave();
        }
    }
}

/// Exits for a successor. Nothing is released: the keeper has all of it.
pub(super) fn hand_over(session: &Session, front_end: &FrontEnd) -> ! {
    let stopped_ns = crate::keeper::client::monotonic_ns();
    front_end.hand_over();
    if let Some(keeper) = session.keeper() {
        keeper.hand_over(stopped_ns, session.next_program().as_deref());
    }
    exit(0)
}
