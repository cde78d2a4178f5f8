//! `slackwater daemon`: many volumes in one process, mounted and unmounted over a socket.
//!
//! ```text
//! config                the configuration file
//! socket, responder     the socket, and the answers to requests
//! startup, leftovers    the volumes at start, and what a dead daemon left
//! volumes               the volumes, from mount to unmount
//! events                events for `slackwater events`
//! web                   the page for operators
//! kept                  the takeover of a daemon that outlives its process
//! serving, systemd      the end of the daemon, the service manager
//! ```
//!
//! # Steps
//! 1. Check the requirements: the kernel, `/dev/fuse`, the configuration.
//! 2. Take the socket ([`socket`]).
//! 3. Take over or write back what a dead daemon left ([`leftovers`]); otherwise create a new arena. A successor of a
//!    daemon with `--keep` has its arena and its volumes from the keeper ([`kept`]).
//! 4. Start the engine and the FUSE threads; from here on requests are answered.
//! 5. Mount the volumes of the configuration. A volume that fails to mount is reported and does not stop the others.
//! 6. Serve until the end is requested ([`serving`]).

mod config;
mod events;
mod kept;
mod leftovers;
mod responder;
mod serving;
mod socket;
mod startup;
mod systemd;
mod volumes;
mod web;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use slackwater::{Engine, Tunables};
use slackwater_backends::SystemClock;
use slackwater_control::daemon::VOLUMES_MAX;
use slackwater_control::exit::Failure;
use slackwater_control::os::sys::Signals;
use slackwater_control::protocol::EventKind;
use slackwater_control::spec::ServerSpec;
use slackwater_control::spec::values::Address;
use slackwater_control::{errln, outln};
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::tenants::TenantConfig;

use crate::arguments::DaemonArguments;
use crate::commands::doctor;
use crate::control;
use crate::keeper::client::KeeperClient;
use crate::keeper::protocol::Part;
use crate::os::kernel;
use crate::pods::Pods;
use crate::registry::{Entry, Found, Registry};
use crate::server::kept::KeptServer;
use crate::server::main_loop::{End, MainLoop};
use crate::volume::arena_file;
use crate::volume::process::{prepare_process, tunables};
use crate::volume::session::Tally;
use crate::volume::{mounting, pressure};
use crate::{http, log, metrics};

use self::leftovers::Leftovers;
use self::responder::Responder;
use self::volumes::{Shared, Volumes};
use self::web::Web;

/// Each volume needs some of them.
const DESCRIPTORS: u64 = 256 << 10;

/// Serves volumes until the end is requested.
///
/// # Errors
/// The cause of the failure; nothing is mounted then.
pub(crate) fn run(arguments: &DaemonArguments) -> Result<ExitCode, Failure> {
    match arguments.keep && !arguments.kept {
        true => kept::keep(arguments),
        false => serve(arguments),
    }
}

fn serve(arguments: &DaemonArguments) -> Result<ExitCode, Failure> {
    slackwater::register_barriers();
    // Before the first thread, because all threads inherit the mask.
    let signals = Signals::block();
    prepare_process(DESCRIPTORS);
    let mut kept = KeptServer::join("daemon", arguments.kept)?;
    let is_successor = kept.is_successor();
    if !is_successor {
        kernel::check(kernel::Version::running())?;
        doctor::check_fuse()?;
    }
    let config = config_of(arguments, &kept.configuration(arguments.config.as_deref())?)?;
    let registry = Registry::open()?;
    let socket_path = arguments.at.path()?;
    let name = socket::name_of(&socket_path)?;
    let (mut socket, listener) = kept.socket(&socket_path, &registry.lock_of(&name), config.socket_group.as_deref())?;
    let main_loop = MainLoop::begin(signals, false, "Interrupted before anything was mounted: nothing is lost.");
    let arena_path = match &config.arena {
        Some(path) => arena_file::named(path)?,
        None => arena_file::default_path(&name)?,
    };

    let listen = |Address(address)| kept.part(Part::Metrics, || http::listen("--metrics", address));
    let metrics = config.metrics.map(listen).transpose()?;
    let web = match Web::open(&config, |address| kept.part(Part::Web, || http::listen("--web", address))) {
        // Such as a file with the token that is gone: no reason to give the volumes up.
        Err(failure) if is_successor => {
            tracing::warn!(%failure, "the page for operators is not served any more");
            None
        }
        web => web?,
    };

    kept.leave_unreachable();
    let dead = leftovers::of_dead(&registry, &arena_path)?;
    if !is_successor {
        leftovers::free_mount_points(&dead);
    }
    let (engine, left) = match kept.inherited(Part::Arena)? {
        Some(arena) => recover_engine(&config, arena, &arena_path, &dead, kept.entries())?,
        None => start_engine(&config, &arena_path, &dead, &main_loop)?,
    };
    kept.add(Part::Arena, || engine.arena().try_clone_lock().map_err(std::io::Error::other))?;
    let mut tenants = config.tenants();
    kept.change_tenants(&mut tenants)?;
    let pods = registry.pods_of(&name);
    let at = Place { socket: socket_path.clone(), arena: arena_path.clone(), pods };
    let volumes = start_volumes(&config, tenants, &engine, registry, at, left, kept.keeper.clone());
    // Nothing was written yet: apart from the data of a dead daemon, the file is empty.
    let volumes = volumes.inspect_err(|_| drop(remove_if_empty(&engine, &Leftovers::default(), &arena_path)))?;
    let listens = pressure::Listener::start(Arc::clone(&volumes.shared.tally.pressure), engine.clone());
    let weak_volumes = Arc::downgrade(&volumes);
    log::forward_to(move |line| {
        if let Some(volumes) = weak_volumes.upgrade() {
            volumes.shared.events.send(EventKind::Warning, None, line);
        }
    });
    if is_successor {
        kept.take_over(&volumes)?;
        leftovers::free_mount_points(&dead);
    } else {
        kept.hold()?;
        kept.serves()?;
    }
    socket.own();
    let seen = Arc::clone(&volumes);
    let metrics = metrics.map(|listener| metrics::serve(listener, move || seen.snapshot(), || true)).transpose();
    let metrics = metrics.map_err(|error| Failure::failed(format!("cannot serve metrics: {error}")))?;
    let web = web.map(|web| web.serve(&volumes)).transpose();
    let web = web.map_err(|error| Failure::failed(format!("cannot serve the page for operators: {error}")))?;
    let configured = kept.not_mounted(config::mounts(&config).collect(), &volumes);
    // Before the first answer, because the end of such a volume may be asked for.
    let left = startup::leftovers(&volumes, &configured, dead);
    let unanswered = control::start(listener, responder::LIMITS, Arc::new(Responder::new(Arc::clone(&volumes))))
        .map_err(|error| Failure::failed(format!("cannot listen at {}: {error}", socket_path.printable())))?;
    let mounted = startup::mount_volumes(&volumes, &engine, &configured, left)
        .map_err(|error| Failure::failed(format!("cannot start the threads of the daemon: {error}")))?;
    let watched = Arc::clone(&volumes);
    systemd::ready(volumes.mounted().len(), move || watched.is_answering());
    kept.started();
    if !is_successor {
        outln!(
            "Listening at {}: {mounted} of {} volumes mounted, cache {}.",
            socket_path.printable(),
            configured.len(),
            size::text(volumes.shared.cache_bytes)
        );
        if let Some(metrics) = &metrics {
            outln!("Metrics: http://{}/metrics", metrics.address());
        }
        if let Some(web) = &web {
            outln!("Page for operators: http://{}/", web.address());
        }
        outln!("End with Ctrl-C or SIGTERM; slackwater ls lists the volumes.");
    }

    let end = main_loop.run(&volumes);
    volumes.shared.events.end();
    unanswered.wait_for_none();
    if let Some(keeper) = &kept.keeper {
        keeper.done();
    }
    if end != End::Flushed {
        serving::end_with_data_left(&volumes, end);
    }
    drop((listens, metrics, web));
    volumes.shared.tally.pods.end();
    if remove_if_empty(&engine, &volumes.shared.left, &arena_path)? {
        outln!("Ended: everything is written back.");
    } else {
        errln!("Ended; data that an earlier daemon left stays in {}.", arena_path.printable());
    }
    drop(socket);
    Ok(ExitCode::SUCCESS)
}

/// Removes the arena unless it has data of volumes that were not mounted. Returns whether it was removed.
fn remove_if_empty(engine: &Engine, left: &Leftovers, arena_path: &Path) -> Result<bool, Failure> {
    // The order matters: data that returns to the arena does so before it counts as done (L2 of `leftovers`).
    let is_empty = !left.is_writing_back() && engine.surviving_volumes().is_empty();
    if is_empty {
        arena_file::remove(arena_path)?;
    }
    Ok(is_empty)
}

/// Where a daemon and its files are found.
struct Place {
    socket: PathBuf,
    arena: PathBuf,
    /// The file with the names of pods.
    pods: PathBuf,
}

/// Starts everything that volumes need, without volumes.
fn start_volumes(
    config: &ServerSpec,
    tenants: BTreeMap<PathBuf, TenantConfig>,
    engine: &Engine,
    registry: Registry,
    at: Place,
    left: Leftovers,
    keeper: Option<Arc<KeeperClient>>,
) -> Result<Arc<Volumes>, Failure> {
    let shared = Shared {
        engine: engine.clone(),
        pool: mounting::pool(keeper.is_some())?,
        tenancy: mounting::tenancy(config.tenant_by(), tenants.clone(), engine)?,
        tenants: Mutex::new(tenants),
        registry,
        socket: at.socket,
        arena: at.arena,
        cache_bytes: u64::from(engine.arena().frames()) * slackwater_arena::FRAME_BYTES as u64,
        tally: Tally { pods: Arc::new(Pods::load(at.pods)), ..Tally::default() },
        events: events::Events::default(),
        left,
        keeper,
        readers: AtomicU64::new(0),
    };
    Volumes::new(shared).map_err(|error| Failure::failed(format!("cannot start the threads of the daemon: {error}")))
}

/// The configuration file, overridden by the command line.
fn config_of(arguments: &DaemonArguments, configuration: &str) -> Result<ServerSpec, Failure> {
    let config = match &arguments.config {
        Some(path) => config::of(configuration, path)?,
        None => ServerSpec::default(),
    };
    let DaemonArguments { dirty_expire, web, web_token_file, .. } = arguments.clone();
    let config = config.override_by(&ServerSpec { dirty_expire, web, web_token_file, ..arguments.server.clone() })?;
    arena_file::check_cache_bytes(config.cache)?;
    Ok(config)
}

/// On the arena of a dead daemon if it has data, otherwise on a new one.
fn start_engine(
    config: &ServerSpec,
    arena_path: &Path,
    dead: &[Found],
    main_loop: &MainLoop,
) -> Result<(Engine, Leftovers), Failure> {
    let tunables: Tunables = tunables(config.dirty_ratio(), config.dirty_expire());
    if let Some((arena, survivors, left)) = leftovers::take_arena(arena_path, dead)? {
        return Ok((Engine::recover(arena, survivors, Arc::new(SystemClock), tunables), left));
    }
    let cache_bytes = arena_file::cache_bytes(config.cache, arena_path);
    let (arena, filler) = arena_file::create(arena_path, cache_bytes, VOLUMES_MAX, || main_loop.check())?;
    if let Some(filler) = filler {
        arena_file::fill(filler);
    }
    Ok((Engine::new(arena, Arc::new(SystemClock), tunables), Leftovers::default()))
}

/// On the arena of a predecessor, which has passed it on, with the volumes of `entries`.
fn recover_engine<'e>(
    config: &ServerSpec,
    arena: OwnedFd,
    arena_path: &Path,
    dead: &'e [Found],
    entries: impl Iterator<Item = &'e Entry>,
) -> Result<(Engine, Leftovers), Failure> {
    let (inherited, filler) = arena_file::open_inherited(arena, arena_path)?;
    let left = Leftovers::of(inherited.survivors(), dead.iter().map(|found| &found.entry).chain(entries));
    if let Some(filler) = filler {
        arena_file::fill(filler);
    }
    let tunables: Tunables = tunables(config.dirty_ratio(), config.dirty_expire());
    Ok((inherited.recover(Arc::new(SystemClock), tunables), left))
}
