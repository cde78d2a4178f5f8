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
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{ExitCode, exit};
use std::sync::Arc;

use slackwater::Engine;
use slackwater_backends::SystemClock;

use crate::arguments::MountArguments;
use crate::commands::mount::background::Departure;
use crate::commands::mount::main_loop::MainLoop;
use crate::commands::mount::{Mounted, attach, serve_metrics, serve_until_end};
use crate::control::server;
use crate::exit::Failure;
use crate::keeper::client::{Inheritance, KeeperClient};
use crate::keeper::protocol::Part;
use crate::keeper::{Parts, Program, process};
use crate::registry::{Entry, Registry};
use crate::source::opened::{Opened, Opening};
use crate::source::ownership::Ownership;
use crate::spec::start::Start;
use crate::spec::{MountSpec, Transport, VolumeSpec};
use crate::volume::front_end::{self, FrontEnd, Kept};
use crate::volume::keeping::{self, not_taken_over, taken_over};
use crate::volume::node_search::Numbered;
use crate::volume::process::tunables;
use crate::volume::session::{Session, Tally};
use crate::volume::{arena_file, endpoints, pressure};

/// The arguments for a mount that is kept.
///
/// # Errors
/// Such a mount cannot be kept.
pub(super) fn checked(mut arguments: MountArguments) -> Result<MountArguments, Failure> {
    if !arguments.keep {
        return Ok(arguments);
    }
    let refused = |what: &str| Failure::usage(format!("--keep: {what}")).advise("mount it without --keep");
    if let Some(why) = keeping::refusal(&arguments.source, &arguments.spec.volume) {
        return Err(refused(why));
    }
    arguments.spec.volume.transport = Transport::Dev;
    Ok(arguments)
}

/// Starts the keeper of a mount, and stays until the end.
///
/// # Errors
/// As [`process::run`].
///
/// # Blocking
/// For as long as it is mounted.
pub(super) fn keep(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let mountpoint = endpoints::name_of(&arguments.mountpoint).unwrap_or_else(|_| arguments.mountpoint.clone());
    process::run(process::Kept {
        server: Start::Mount(Box::new(MountArguments { kept: true, ..arguments.clone() })),
        mountpoint: Some(mountpoint),
        is_detached: arguments.detached,
    })
}

/// The descriptors that the server collects for its keeper while it mounts.
pub(super) struct Keeping {
    process: Parts,
    volume: keeping::Keeping,
}

impl Keeping {
    pub(super) fn new(keeper: &Arc<KeeperClient>) -> Self {
        Self { process: Parts::default(), volume: keeping::Keeping::new(keeper) }
    }

    pub(super) fn volume(&mut self) -> &mut keeping::Keeping {
        &mut self.volume
    }

    pub(super) fn add(&mut self, part: Part, fd: impl AsFd) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::failed(format!("cannot keep the mount: {error}"));
        self.process.add(part, fd).map_err(failed)
    }

    /// Hands everything to the keeper. From now on the mount outlives this process.
    pub(super) fn hold(
        mut self,
        entry: &Entry,
        options: &VolumeSpec,
        mounted: &Mounted,
        ownership: &Ownership,
    ) -> Result<(), Failure> {
        let lock = mounted.engine.arena().try_clone_lock();
        self.add(Part::Arena, lock.map_err(|error| Failure::failed(format!("cannot keep the mount: {error}")))?)?;
        let keeper = Arc::clone(self.volume.volume().keeper());
        keeper.hold(&self.process)?;
        self.volume.hold(entry, options, &mounted.front_end, ownership)?;
        keeper.serves(None)
    }
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
    let failed = |error: io::Error| not_taken_over(error);
    // A signal unmounts it.
    main_loop.mounting();
    let Inheritance { predecessor, parts, mut volumes } = inheritance;
    let mut inherited = volumes.pop().ok_or_else(|| not_taken_over("the keeper does not hold it"))?;
    let options = inherited.volume.changed(arguments.spec.volume.clone())?;
    let kept = keeper.inherited(&inherited.volume);
    let part = |part| parts.duplicate(part).map_err(failed);
    let registry = Registry::open()?;
    let entry = inherited.volume.entry.clone().of_successor(keeper.pid);
    if arguments.detached {
        Departure::prepare(&registry.log_file(entry.number())).map_err(failed)?.leave();
    }
    let ownership = keeping::ownership(&inherited, &registry, &entry)?;
    let session = Session::new(Arc::new(entry), Tally::default());
    session.set_kept(&kept);
    let running = MountSpec { volume: options.clone(), ..arguments.spec.clone() };
    session.set_spec(attach::running(&running, &session.entry));
    let unanswered =
        server::start(UnixListener::from(part(Part::Control)?), server::PRIVATE, Arc::clone(&session) as _)
            .map_err(failed)?;
    let metrics = match parts.has(Part::Metrics) {
        true => Some(serve_metrics(TcpListener::from(part(Part::Metrics)?), &session)?),
        false => None,
    };

    let nodes = std::mem::take(&mut inherited.nodes);
    let opening = Opening::Inherited { keeper: keeper.pid, check: &|| main_loop.check() };
    let front_end = taken_over(&inherited, &kept)?;
    let mounted = recover(&arguments.spec, &options, &session, part(Part::Arena)?, front_end, nodes, opening)?;
    mounted.source.inherited_all();
    Session::inherit(&mounted.front_end, &inherited.volume);
    session.show(Some(&mounted.volume));
    session.set_mounted(&mounted.engine, &mounted.front_end, &mounted.source);
    keeper.serves(Some(&predecessor))?;
    drop((parts, inherited));
    let status = keeper.status();
    let (before, takeovers, pause_ms) = (predecessor.pid, status.takeovers, status.last_pause_ms);
    match predecessor.has_handed_over {
        true => tracing::info!(before, takeovers, pause_ms, "this process has taken the mount over"),
        false => tracing::warn!(before, takeovers, pause_ms, "this process has taken the mount over"),
    }
    serve_until_end(main_loop, &session, mounted, ownership.take(), &unanswered, metrics, arguments.detached)
}

/// The volume of a predecessor, with its data and its connection.
fn recover(
    spec: &MountSpec,
    options: &VolumeSpec,
    session: &Session,
    arena: OwnedFd,
    mut kept: Kept,
    nodes: Numbered<OwnedFd>,
    opening: Opening<'_>,
) -> Result<Mounted, Failure> {
    let entry = &session.entry;
    let (left, filler) = arena_file::open_inherited(arena, &entry.arena)?;
    let source = Opened::new(entry, options, left.has_data(), opening)?;
    let (backend, nodes) = source.inherited_backend(&left.inodes(), nodes).map_err(not_taken_over)?;
    (kept.nodes, kept.nodes_max) = (nodes, keeping::nodes_max());
    // The settings of the volume that have changed do not change those of the engine.
    let MountSpec { server, volume } = spec;
    let engine = left.recover(Arc::new(SystemClock), tunables(server.dirty_ratio(), volume.dirty_expire()));
    // First, because it finds the tenants of unwritten data.
    let tenancy = front_end::tenancy(server.tenant_by(), server.tenants(), &engine)?;
    let volume = engine.mount(&entry.identity, Arc::clone(&backend)).map_err(not_taken_over)?;
    let (name, mountpoint) = (entry.source.name(), &entry.mountpoint);
    let front_end = FrontEnd::open(&front_end::pool(true)?, &volume, name, mountpoint, options, tenancy, Some(kept))?;
    let shrunk: Engine = engine.clone();
    let pressure = pressure::Listener::start(session.pressure(), move |priority| shrunk.shrink(priority));
    if let Some(filler) = filler {
        arena_file::fill(filler);
    }
    Ok(Mounted { pressure, engine, volume, front_end, source, backend })
}

/// Exits for a successor. Nothing is released: the keeper has all of it.
pub(super) fn hand_over(session: &Session, front_end: &FrontEnd, program: Option<&Program>) -> ! {
    let stopped_ns = crate::keeper::client::monotonic_ns();
    front_end.hand_over();
    if let Some(kept) = session.kept() {
        kept.keeper().hand_over(stopped_ns, program);
    }
    exit(0)
}
