//! `slackwater mount`: from two directories to a volume, and back.
//!
//! # Steps
//! 1. What must be so: the kernel, `/dev/fuse`, the two directories (`ends`).
//! 2. The source becomes ours (`claim`), and the command can ask how it goes (`session`).
//! 3. What a dead predecessor left is brought into the source (`arena_file`).
//! 4. A new arena, an engine, a volume, the mount (`door`). Now it is announced.
//! 5. Until somebody ends it (`vigil`), in any way; then everything is given back.
//!
//! A signal before step 4 ends the process at once: it has taken nothing from anybody yet, and what it brings in stays
//! in the old arena until it is in the source. So does one while the new arena is made, which has no name before it is
//! whole. A later one unmounts.

pub(crate) mod arena_file;
mod background;
pub(crate) mod claim;
pub(crate) mod door;
pub(crate) mod ends;
pub(crate) mod find_nodes;
pub(crate) mod helper;
mod holders;
pub(crate) mod options;
pub(crate) mod place;

pub(crate) mod pressure;
pub(crate) mod rescued;
pub(crate) mod session;
mod shrinkers;
mod source_lock;
mod tenants;
pub(crate) mod trial;
pub(crate) mod vigil;
mod would_lose;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit, setrlimit, umask};
use slackwater::{Engine, SuperBlock, Tunables};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::arguments::MountArguments;
use crate::control::server;
use crate::exit::{Failure, Reason};
use crate::progress::Meter;
use crate::registry::{Entry, Registry};
use crate::sys::Signals;
use crate::terminal::{say, tell};
use crate::{abandon, doctor, kernel, metrics, shell};

use self::arena_file::CACHE_BYTES_MIN;
use self::background::Departure;
use self::claim::Claim;
use self::door::Door;
pub(crate) use self::door::TenantBy;
pub(crate) use self::ends::name_of;
use self::session::{Session, Tally};
pub(crate) use self::tenants::{fit_reply, lines as tenant_lines, of_all as tenants_of_all, time};
use self::vigil::{End, Vigil};
pub(crate) use self::would_lose::Loss;

/// Descriptors for files of the source, up to three each, and for all else. While they are short, clean files are closed.
const DESCRIPTORS: u64 = 64 << 10;
/// Of the descriptors that the process may have, one in so many is a file that must stay open since nothing else leads to it, and
/// one in so many a dirty file. Each may take two more for its data, also when half of all are in use by clean files.
const DESCRIPTORS_FOR_EACH_HELD: u64 = 8;
const DESCRIPTORS_FOR_EACH_DIRTY: u64 = 16;

/// Mounts, and stays until it is unmounted.
///
/// # Errors
/// What stood in the way; nothing is mounted then.
pub(crate) fn run(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let arguments = options::taken_in(arguments)?;
    match arguments.background {
        true => background::start(&arguments, true),
        false => serve(&arguments).map(|()| ExitCode::SUCCESS),
    }
}

fn serve(arguments: &MountArguments) -> Result<(), Failure> {
    // The variable may be there for other commands.
    if arguments
        .at
        .socket
        .as_ref()
        .is_some_and(|path| std::env::var_os("SLACKWATER_SOCKET").as_deref() != Some(path.as_os_str()))
    {
        return Err(Failure::usage("--socket names a daemon, and this mount gets a process of its own")
            .advise("add --daemon to have the daemon mount it, or leave --socket out"));
    }
    // Before the first thread: all of them inherit it.
    let vigil = Vigil::begin(Signals::block());
    if arguments.detached {
        background::end_with_starter()?;
    }
    prepare_process(DESCRIPTORS);

    kernel::check(kernel::Version::running())?;
    doctor::check_fuse()?;
    let registry = Registry::open()?;
    let mounts = registry.entries()?;
    let mounts: Vec<_> = mounts.iter().filter(|found| found.is_alive).map(|found| &found.entry).collect();
    let ends = ends::find(&arguments.source, &arguments.mountpoint, &mounts)?;
    let identity = ends
        .source
        .identity(&mounts)
        .map_err(|error| Failure::failed(format!("cannot identify the source: {error}")))?;
    let arena_path = match &arguments.arena {
        Some(path) => arena_file::named(path)?,
        None => arena_file::default_path(&identity)?,
    };

    let cache_bytes = arguments.cache;
    if let Some(bytes) = cache_bytes.filter(|bytes| *bytes < CACHE_BYTES_MIN) {
        let what = format!("a cache of {} is too small", size::text(bytes));
        return Err(Failure::usage(what).advise(format!("give it {} at least", size::text(CACHE_BYTES_MIN))));
    }
    let shown_bytes = cache_bytes.unwrap_or_else(|| arena_file::default_cache_bytes(&arena_path));
    let entry = Entry::of_this_process(ends.source, identity, ends.mountpoint, arena_path, shown_bytes);
    // Before anything is anybody's: the port may be taken.
    let metrics = arguments.metrics.map(metrics::listen).transpose()?;
    let claim = claim::claim(&registry, &entry, ends.source_fd, arguments.wait, &|text| say!("{text}"))?;
    let departure = match arguments.detached {
        true => Some(
            Departure::prepare(&registry.log_file(entry.pid))
                .map_err(|error| Failure::failed(format!("cannot leave the terminal: {error}")))?,
        ),
        false => None,
    };
    let session = Session::new(Arc::new(entry), Tally::default());
    let unanswered = UnixListener::bind(claim.registered.socket())
        .and_then(|listener| server::start(listener, server::PRIVATE, Arc::clone(&session) as _))
        .map_err(|error| Failure::failed(format!("cannot listen for slackwater umount and status: {error}")))?;

    let metrics = metrics.map(|listener| serve_metrics(listener, &session)).transpose()?;

    if let Err(failure) = bring_in_what_was_left(&session) {
        // The entry says whose data it is that stays there.
        if arena_file::may_hold_data(&session.entry.arena) {
            claim.registered.leave();
        }
        return Err(failure);
    }
    vigil.mounting();
    let mounted = Mounted::open(&session, arguments, cache_bytes, &vigil)?;
    announce(&session, &mounted, arguments, metrics.as_ref());
    if let Some(departure) = departure {
        departure.leave();
    }
    match vigil.keep(&session, &mounted.door, arguments.detached) {
        End::Flushed => {}
        end @ (End::Left | End::GivenUp) => {
            unanswered.wait_for_none();
            end_with_data_left(&session, end);
        }
    }
    drop(metrics); // it has the engine while somebody scrapes
    mounted.close(&session, claim)?;
    session.set_released();
    unanswered.wait_for_none();
    if !arguments.detached {
        tell!(
            "Unmounted {}: everything is in {}.",
            session.entry.mountpoint.printable(),
            session.entry.source.path.printable()
        );
    }
    Ok(())
}

/// Ends the process as a crash would, but without a dead mount. The entry stays and says where the data is.
fn end_with_data_left(session: &Session, end: End) -> ! {
    let (source, arena) = (session.entry.source.path.printable(), session.entry.arena.printable());
    let (left, mountpoint) = (size::text(session.figures().0), session.entry.mountpoint.printable());
    let (what, reason) = match end {
        End::GivenUp => (format!("Given up: {left} are not in {source}."), Reason::Failed),
        End::Left | End::Flushed => {
            (format!("Unmounted {mountpoint} by force, with {left} not in {source}."), Reason::Left)
        }
    };
    say!("{what} They are kept in {arena}: mount {source} again to write them back.");
    abandon::exit_now(reason, &[session.entry.source.id.dev])
}

fn serve_metrics(listener: TcpListener, session: &Arc<Session>) -> Result<metrics::Server, Failure> {
    let (session, ready) = (Arc::clone(session), Arc::clone(session));
    metrics::serve(listener, move || session.snapshot(), move || ready.has_engine())
        .map_err(|error| Failure::failed(format!("cannot serve metrics: {error}")))
}

/// What a process needs that others' writes go through.
pub(crate) fn prepare_process(descriptors: u64) {
    // Modes of files are made by those who make them.
    umask(rustix::fs::Mode::empty());
    // Memory that the flush needs must not wait for the flush. It takes CAP_SYS_RESOURCE; `doctor` says what is lost.
    let _ = configure_io_flusher_behavior(true);
    let mut limit = getrlimit(Resource::Nofile);
    if let Some(current) = limit.current.filter(|current| *current < descriptors) {
        limit.current = Some(limit.maximum.map_or(descriptors, |most| most.min(descriptors)).max(current));
        // What is too little shows where it matters, with the name of the file.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn bring_in_what_was_left(session: &Session) -> Result<(), Failure> {
    let entry = &session.entry;
    let Some(left) = arena_file::open_left(&entry.arena, &entry.identity)? else { return Ok(()) };
    let bytes = left.bytes;
    if bytes > 0 {
        let text = size::text(bytes);
        say!("An earlier mount of {} died with {text} not in it yet: bringing it in.", entry.source.path.printable());
    }
    let mut meter = Meter::new("bringing in");
    let rescued = session
        .watch(|| arena_file::bring_in(left, entry, |volume| session.show(Some(volume))), &mut |left, written| {
            meter.update(left, written)
        })?;
    session.show(None);
    rescued::say_all(&rescued, &entry.source.path);
    Ok(())
}

/// Everything that is given back at the end.
struct Mounted {
    /// Goes first: it has the engine shrink.
    pressure: Option<pressure::Listener>,
    engine: Engine,
    volume: Arc<SuperBlock>,
    door: Arc<Door>,
}

impl Mounted {
    fn open(session: &Session, arguments: &MountArguments, cache: Option<u64>, vigil: &Vigil) -> Result<Self, Failure> {
        let entry = &session.entry;
        // What an earlier mount had is free only now.
        let cache_bytes = cache.unwrap_or_else(|| arena_file::default_cache_bytes(&entry.arena));
        let backend = DirBackend::open(&entry.source.path).map_err(|error| Failure::failed(error.to_string()))?;
        let arena = arena_file::create(&entry.arena, cache_bytes, 1, || vigil.check())?;
        let opened = || -> Result<Self, Failure> {
            let engine =
                Engine::new(arena, Arc::new(SystemClock), tunables(arguments.dirty_ratio, arguments.dirty_expire));
            let mount = engine.mount(&entry.identity, Arc::new(backend));
            let volume = mount.map_err(|error| Failure::failed(format!("cannot open the source: {error}")))?;
            let options = options::of_volume(arguments);
            let tenancy = door::tenancy(arguments.tenant_by, options::of_tenants(arguments), &engine)?;
            let door = Door::open(&door::pool()?, &volume, &entry.source.path, &entry.mountpoint, options, tenancy)?;
            let shrunk = engine.clone();
            let shrink = move |priority| shrunk.shrink(priority);
            let pressure = pressure::Listener::start(session.pressure(), shrink);
            Ok(Self { pressure, engine, volume, door })
        };
        // Nobody has written yet: the file has nothing.
        let mounted = opened().inspect_err(|_| drop(arena_file::remove(&entry.arena)))?;
        session.show(Some(&mounted.volume));
        session.set_mounted(&mounted.engine, &mounted.door);
        Ok(mounted)
    }

    /// The volume has ended, with everything in the source: the arena, the lock and the entry go.
    fn close(self, session: &Session, claim: Claim) -> Result<(), Failure> {
        let left = self.volume.status().bytes_left();
        session.let_go();
        drop(self.pressure);
        drop((self.door, self.volume, self.engine));
        if left > 0 {
            claim.registered.leave();
            let arena = session.entry.arena.printable();
            return Err(Failure::failed(format!("{} are in {arena} alone", size::text(left)))
                .advise("the next mount of the source brings them in"));
        }
        let removed = arena_file::remove(&session.entry.arena);
        if removed.is_err() {
            // With the log that will say why.
            claim.registered.leave();
        }
        removed
    }
}

/// Writers wait at the ratio, write-back starts at half of it; old data is looked for at least as often as it gets old.
pub(crate) fn tunables(dirty_ratio: u32, dirty_expire: Duration) -> Tunables {
    let defaults = Tunables::default();
    let ratio = dirty_ratio;
    let least = Duration::from_millis(100);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    Tunables {
        held_nodes: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_HELD).unwrap_or(u32::MAX),
        pinned_nodes_of_all: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_DIRTY).unwrap_or(u32::MAX),
        dirty_percent: ratio,
        volume_share_percent: ratio,
        failed_share_percent: defaults.failed_share_percent.min(ratio),
        dirty_background_percent: (ratio / 2).max(1),
        dirty_expire,
        dirty_writeback: defaults.dirty_writeback.min(dirty_expire.max(least)),
        commit_interval: defaults.commit_interval.min(dirty_expire.max(least)),
        ..defaults
    }
}

fn announce(session: &Session, mounted: &Mounted, arguments: &MountArguments, metrics: Option<&metrics::Server>) {
    let entry = &session.entry;
    let frames = u64::from(mounted.engine.arena().frames());
    let cache = size::text(frames * slackwater_arena::FRAME_BYTES as u64);
    let tunables = tunables(arguments.dirty_ratio, arguments.dirty_expire);
    let age = format_duration(tunables.dirty_expire.saturating_add(tunables.dirty_writeback));
    let umount = format!("{} umount {}", shell::word(&command_name()), shell::word(&entry.mountpoint));
    tell!(
        "Mounted {} at {}: cache {cache}, what is written is in the source within {age}.",
        entry.source.path.printable(),
        entry.mountpoint.printable()
    );
    for missing in mounted.door.missing_features() {
        tell!("Note: {missing}");
    }
    if let Some(metrics) = metrics {
        tell!("Metrics: http://{}/metrics", metrics.address());
    }
    match arguments.detached {
        true => tell!("Unmount with: {umount}"),
        false => tell!("Unmount with Ctrl-C here, or with: {umount}"),
    }
}

/// How this command is called: by its name where a shell finds it, else as it was called now.
fn command_name() -> PathBuf {
    let own = std::env::current_exe().ok();
    let is_own = |folder: &Path| own.is_some() && folder.join("slackwater").canonicalize().ok() == own;
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| is_own(&folder)) {
        true => "slackwater".into(),
        false => own.unwrap_or_else(|| "slackwater".into()),
    }
}
