//! `slackwater mount`: from a source and a mount point to a mounted volume, and back.
//!
//! # Steps
//! 1. Check the requirements: the kernel, `/dev/fuse`, source and mount point (`endpoints`).
//! 2. Take ownership of the source (`ownership`), and answer queries of the command (`session`). If a live process has
//!    the source, have it mounted here as well (`attach`), and end. Open the source (`opened`).
//! 3. Write back what a dead predecessor left (`arena_file`).
//! 4. Create a new arena, an engine, a volume and the mount (`front_end`), and announce it.
//! 5. Serve until the end is requested in any way (`main_loop`); then release everything.
//!
//! A signal before step 4 ends the process at once: it has changed nothing yet, and data that it writes back stays in
//! the old arena until it is in the source. So does a signal while the new arena is allocated, which has no name before
//! it is complete. A later signal unmounts.

pub(crate) mod attach;
pub(crate) mod background;
pub(crate) mod in_daemon;
mod kept;
mod main_loop;
pub(crate) mod mount_helper;
pub(crate) mod options;
pub(crate) mod remount;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use humantime::format_duration;
use slackwater::backend::Backend;
use slackwater::{Engine, SuperBlock};
use slackwater_backends::SystemClock;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::MountArguments;
use crate::commands::doctor;
use crate::control::protocol::ObjectRole;
use crate::control::server::{self, Unanswered};
use crate::exit::{Failure, Reason};
use crate::keeper::client::KeeperClient;
use crate::keeper::protocol::Part;
use crate::os::sys::Signals;
use crate::os::{early_exit, kernel};
use crate::output::progress::Meter;
use crate::output::shell;
use crate::output::terminal::{errln, outln};
use crate::registry::{Entry, Found, Registry};
use crate::source::opened::{Opened, Opening};
use crate::source::ownership::{self, Ownership};
use crate::spec::values::Address;
use crate::spec::{MountSpec, VolumeSpec};
use crate::volume::arena_file::{self, Left};
use crate::volume::front_end::{self, FrontEnd, Kept};
use crate::volume::keeping::nodes_max;
use crate::volume::process::{prepare_process, tunables};
use crate::volume::session::{Session, Tally};
use crate::volume::shutdown::End;
use crate::volume::{endpoints, pressure, rescued};
use crate::{http, metrics};

use self::background::Departure;
use self::kept::Keeping;
use self::main_loop::MainLoop;

/// Descriptors for files of the source, up to three each, and for everything else. When they are short, clean files are
/// closed.
const DESCRIPTORS: u64 = 64 << 10;

/// How long the end of a mount waits for the last users of its directory, and how often it looks. They have only references
/// left to drop.
const LAST_USERS_WITHIN: Duration = Duration::from_millis(200);
const LAST_USERS_LOOK: Duration = Duration::from_micros(100);

/// Mounts, and stays until it is unmounted.
///
/// # Errors
/// The cause of the failure; nothing is mounted then.
pub(crate) fn run(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let arguments = options::with_option_lists(arguments)?;
    match arguments.background {
        true => background::start(&kept::checked(arguments)?, true),
        false => serve(arguments),
    }
}

/// Mounts in this process or, if the mount is kept, in one of its own, whose keeper this process becomes.
///
/// # Errors
/// As [`run`].
pub(crate) fn serve(arguments: MountArguments) -> Result<ExitCode, Failure> {
    let arguments = kept::checked(arguments)?;
    match arguments.keep && !arguments.kept {
        true => kept::keep(&arguments),
        false => mount(&arguments).map(|()| ExitCode::SUCCESS),
    }
}

fn mount(arguments: &MountArguments) -> Result<(), Failure> {
    // The variable may be set for other commands.
    if arguments
        .at
        .socket
        .as_ref()
        .is_some_and(|path| std::env::var_os("SLACKWATER_SOCKET").as_deref() != Some(path.as_os_str()))
    {
        return Err(Failure::usage("--socket names a daemon, and this mount gets a process of its own")
            .advise("add --daemon to have the daemon mount it, or leave --socket out"));
    }
    slackwater::register_barriers();
    // Before the first thread, because all threads inherit the mask.
    let main_loop = MainLoop::begin(Signals::block());
    if arguments.detached && !arguments.kept {
        background::end_with_starter()?;
    }
    prepare_process(DESCRIPTORS);
    let mut keeping = match arguments.kept.then(KeeperClient::join).transpose()? {
        Some((keeper, Some(inheritance))) => return kept::take_over(arguments, main_loop, &keeper, inheritance),
        joined => joined.map(|(keeper, _)| Keeping::new(&keeper)),
    };

    kernel::check(kernel::Version::running())?;
    doctor::check_fuse()?;
    let registry = Registry::open()?;
    let mounts = registry.entries()?;
    let mounts: Vec<_> = mounts.iter().filter(|found| found.is_alive).map(|found| &found.entry).collect();
    let MountSpec { server, volume: options } = &arguments.spec;
    let endpoints =
        endpoints::find(&arguments.source, &arguments.mountpoint, options, arguments.credentials.as_deref(), &mounts)?;
    let identity = endpoints
        .source
        .identity(&mounts)
        .map_err(|error| Failure::failed(format!("cannot identify the source: {error}")))?;
    let arena_path = match &server.arena {
        Some(path) => arena_file::named(path)?,
        // A reader has no data for a later mount, and several may run at the same time.
        None if endpoints.source.is_reader() => {
            arena_file::default_path(&format!("{identity}-reader-{}", std::process::id()))?
        }
        None => arena_file::default_path(&identity)?,
    };

    arena_file::check_cache_bytes(server.cache)?;
    let shown_bytes = arena_file::cache_bytes(server.cache, &arena_path);
    let entry = Entry::of_this_process(endpoints.source, identity, endpoints.mountpoint, arena_path, shown_bytes)
        .kept_by(keeping.as_mut().map(|keeping| keeping.volume().volume().keeper().pid));
    let attach = |found: &Found| attach::attach(found, &entry, arguments);
    let say = |text: &str| errln!("{text}");
    let acquired = ownership::acquire(&registry, &entry, endpoints.source_fd, arguments.wait, &attach, &say)?;
    let Some(ownership) = acquired else { return Ok(()) };
    // Before anything is written back or mounted, because the port may be in use.
    let metrics = server.metrics.map(|Address(address)| http::listen("--metrics", address)).transpose()?;
    let departure = match arguments.detached {
        true => Some(
            Departure::prepare(&registry.log_file(entry.number()))
                .map_err(|error| Failure::failed(format!("cannot detach from the terminal: {error}")))?,
        ),
        false => None,
    };
    let session = Session::new(Arc::new(entry), Tally::default());
    session.set_spec(attach::running(&arguments.spec, &session.entry));
    let not_listening =
        |error: io::Error| Failure::failed(format!("cannot listen for slackwater umount and status: {error}"));
    let listener = UnixListener::bind(ownership.registered.socket()).map_err(not_listening)?;
    if let Some(keeping) = &mut keeping {
        session.set_kept(keeping.volume().volume());
        keeping.add(Part::Control, &listener)?;
        metrics.as_ref().map_or(Ok(()), |listener| keeping.add(Part::Metrics, listener))?;
        departure.as_ref().map_or(Ok(()), |departure| keeping.add(Part::Log, departure.log()))?;
    }
    let unanswered = server::start(listener, server::PRIVATE, Arc::clone(&session) as _).map_err(not_listening)?;

    let metrics = metrics.map(|listener| serve_metrics(listener, &session)).transpose()?;

    let opening = Opening::New { keeper: session.entry.keeper, wait: arguments.wait, say: &|text| errln!("{text}") };
    let source = match open_source(&session, options, opening) {
        Ok(source) => source,
        Err(failure) => {
            // The entry says to which source the data there belongs.
            if arena_file::may_hold_data(&session.entry.arena) || session.entry.has_log() {
                ownership.registered.leave();
            }
            return Err(failure);
        }
    };
    main_loop.mounting();
    let kept = keeping.as_mut().map(|keeping| keeping.volume().front_end()).transpose()?;
    let kept = kept.map(|kept| Kept { nodes_max: nodes_max(), ..kept });
    let mounted = Mounted::open(&session, source, &arguments.spec, kept, &main_loop)?;
    if let Some(keeping) = keeping
        && let Err(failure) = keeping.hold(&session.entry, options, &mounted, &ownership)
    {
        mounted.front_end.abort();
        // A program may have written to it.
        ownership.registered.leave();
        return Err(failure);
    }
    announce(&session, &mounted, arguments, metrics.as_ref());
    if let Some(departure) = departure {
        departure.leave();
    }
    serve_until_end(main_loop, &session, mounted, ownership, &unanswered, metrics, arguments.detached)
}

/// Serves a mounted volume until its end, and releases everything.
fn serve_until_end(
    main_loop: MainLoop,
    session: &Arc<Session>,
    mounted: Mounted,
    ownership: Ownership,
    unanswered: &Unanswered,
    metrics: Option<http::Server>,
    is_detached: bool,
) -> Result<(), Failure> {
    let end = main_loop.run(session, &mounted.front_end, is_detached);
    if let Some(kept) = session.kept() {
        kept.keeper().done();
    }
    match end {
        End::Flushed => {}
        end @ (End::Left | End::GivenUp) => end_with_data_left(session, end, unanswered),
    }
    drop(metrics); // it holds the engine during a scrape
    // Dropped after the last answer.
    let (closed, _memory) = mounted.close(session, ownership);
    session.set_released(closed.clone());
    unanswered.wait_for_none();
    closed?;
    if !is_detached {
        outln!(
            "Unmounted {}: everything is written back to {}.",
            session.entry.mountpoint.printable(),
            session.entry.source.name().printable()
        );
    }
    Ok(())
}

/// Ends the process as a crash would, but without a dead mount. The entry stays and says where the data is.
fn end_with_data_left(session: &Session, end: End, unanswered: &Unanswered) -> ! {
    let (source, arena) = (session.entry.source.name().printable(), session.entry.arena.printable());
    let (left, mountpoint) = (size::text(session.bytes_left_at_end()), session.entry.mountpoint.printable());
    let (what, reason) = match end {
        End::GivenUp => (format!("Given up: {left} not written back to {source}."), Reason::Failed),
        End::Left | End::Flushed => {
            (format!("Unmounted {mountpoint} by force: {left} not written back to {source}."), Reason::Left)
        }
    };
    let next = match session.object().filter(|object| object.role == ObjectRole::Fenced) {
        Some(object) => {
            let by = object.fenced_by.as_deref().unwrap_or("another process");
            format!("{by} has taken over {source}, so it accepts nothing from here. The data is kept in {arena}.")
        }
        None => format!("The data is kept in {arena}: mount {source} again to write it back."),
    };
    errln!("{what} {next}");
    session.set_released(Err(Failure::new(reason, format!("{left} not written back to {source}")).advise(next)));
    unanswered.wait_for_none();
    early_exit::exit_now(reason, session.entry.source.device().as_slice())
}

fn serve_metrics(listener: TcpListener, session: &Arc<Session>) -> Result<http::Server, Failure> {
    let (session, ready) = (Arc::clone(session), Arc::clone(session));
    metrics::serve(listener, move || session.snapshot(), move || ready.has_engine())
        .map_err(|error| Failure::failed(format!("cannot serve metrics: {error}")))
}

/// Opens the source, and writes back the data of an earlier mount.
fn open_source(session: &Session, options: &VolumeSpec, opening: Opening<'_>) -> Result<Opened, Failure> {
    let entry = &session.entry;
    // First, because the local log of an object volume belongs to the process that has the arena.
    let left = arena_file::open_left(&entry.arena, &entry.identity)?;
    let has_data = left.as_ref().is_some_and(Left::has_data);
    let source = Opened::new(entry, options, has_data, opening)?;
    if let Some(left) = left {
        write_back(session, &source, left)?;
    }
    Ok(source)
}

fn write_back(session: &Session, source: &Opened, left: Left) -> Result<(), Failure> {
    let entry = &session.entry;
    let bytes = left.bytes;
    if bytes > 0 {
        let text = size::text(bytes);
        errln!("An earlier mount of {} died with {text} unwritten: writing it back.", entry.source.name().printable());
    }
    let mut meter = Meter::new("writing back");
    let rescued = session.watch(
        || arena_file::write_back(left, entry, source, |volume| session.show(Some(volume))),
        &mut |left, written| meter.update(left, written),
    )?;
    session.show(None);
    rescued::print_all(&rescued, entry.source.name());
    Ok(())
}

/// Everything that is released at the end.
struct Mounted {
    pressure: Option<pressure::Listener>,
    engine: Engine,
    volume: Arc<SuperBlock>,
    front_end: Arc<FrontEnd>,
    source: Opened,
    backend: Arc<dyn Backend>,
}

impl Mounted {
    fn open(
        session: &Session,
        source: Opened,
        spec: &MountSpec,
        kept: Option<Kept>,
        main_loop: &MainLoop,
    ) -> Result<Self, Failure> {
        let entry = &session.entry;
        // Memory of an earlier mount is free only now.
        let MountSpec { server, volume: options } = spec;
        let cache_bytes = arena_file::cache_bytes(server.cache, &entry.arena);
        // The next mount may be on another machine.
        let released = |_: &Failure| source.clone().close_unused();
        let backend = source.backend(None).map_err(|error| Failure::failed(error.to_string())).inspect_err(released)?;
        let (arena, filler) =
            arena_file::create(&entry.arena, cache_bytes, 1, || main_loop.check()).inspect_err(released)?;
        let opened = || -> Result<Self, Failure> {
            let tunables = tunables(server.dirty_ratio(), options.dirty_expire());
            let engine = Engine::new(arena, Arc::new(SystemClock), tunables);
            let mount = engine.mount(&entry.identity, Arc::clone(&backend));
            let volume = mount.map_err(|error| Failure::failed(format!("cannot open the source: {error}")))?;
            let tenancy = front_end::tenancy(server.tenant_by(), server.tenants(), &engine)?;
            let (name, mountpoint) = (entry.source.name(), &entry.mountpoint);
            let front_end =
                FrontEnd::open(&front_end::pool(kept.is_some())?, &volume, name, mountpoint, options, tenancy, kept)?;
            let shrunk = engine.clone();
            let shrink = move |priority| shrunk.shrink(priority);
            let pressure = pressure::Listener::start(session.pressure(), shrink);
            Ok(Self { pressure, engine, volume, front_end, source: source.clone(), backend })
        };
        // Nothing was written yet: the file is empty.
        let mounted = opened().inspect_err(|_| drop(arena_file::remove(&entry.arena))).inspect_err(released)?;
        session.show(Some(&mounted.volume));
        session.set_mounted(&mounted.engine, &mounted.front_end, &mounted.source);
        if let Some(filler) = filler {
            arena_file::fill(filler);
        }
        Ok(mounted)
    }

    /// Releases the arena, the lock and the entry of a volume that has ended with everything written back. Returns what
    /// takes a while to free and no command should wait for: the memory, and threads that do nothing any more.
    fn close(self, session: &Session, ownership: Ownership) -> (Result<(), Failure>, Option<Memory>) {
        let left = session.bytes_left_at_end();
        session.drop_references();
        let is_closed_last = left == 0 && !session.has_discarded() && self.source.is_directory();
        let backend = is_closed_last.then_some(self.backend);
        drop((self.front_end, self.volume));
        let memory = Memory { _pressure: self.pressure, _engine: self.engine };
        if left > 0 {
            // The source keeps its claim: another writer would make the data older than the volume.
            drop(memory); // the next mount opens the arena
            ownership.registered.leave();
            let arena = session.entry.arena.printable();
            let failure = Failure::failed(format!("{} not written back, kept in {arena}", size::text(left)))
                .advise("the next mount of the source writes the data back");
            return (Err(failure), None);
        }
        if let Some(backend) = backend {
            close_directory(backend);
        }
        let closed = self.source.close(session.has_discarded());
        let removed = closed.and(arena_file::remove(&session.entry.arena));
        if removed.is_err() {
            // The log stays too, and will say why.
            ownership.registered.leave();
        }
        (removed, Some(memory))
    }
}

/// Closes the directory of a volume that has ended. Threads that have just worked for the volume may use it for another
/// moment. After that, its file system can be unmounted.
fn close_directory(backend: Arc<dyn Backend>) {
    let deadline = Instant::now() + LAST_USERS_WITHIN;
    while Arc::strong_count(&backend) > 1 && Instant::now() < deadline {
        thread::sleep(LAST_USERS_LOOK);
    }
}

/// The cache of a volume that has ended.
struct Memory {
    /// Dropped first: it makes the engine shrink.
    _pressure: Option<pressure::Listener>,
    _engine: Engine,
}

fn announce(session: &Session, mounted: &Mounted, arguments: &MountArguments, metrics: Option<&http::Server>) {
    let entry = &session.entry;
    let frames = u64::from(mounted.engine.arena().frames());
    let cache = size::text(frames * slackwater_arena::FRAME_BYTES as u64);
    let MountSpec { server, volume } = &arguments.spec;
    let tunables = tunables(server.dirty_ratio(), volume.dirty_expire());
    let age = tunables.dirty_expire.saturating_add(tunables.dirty_writeback);
    let promise = match (entry.source.is_reader(), volume.read_only) {
        (true, _) => format!("follows the writer within {}", format_duration(volume.follow())),
        (false, true) => "read-only".to_owned(),
        (false, false) => format!("dirty data is written back within {}", format_duration(age)),
    };
    let umount = format!("{} umount {}", shell::word(&command_name()), shell::word(&entry.mountpoint));
    outln!(
        "Mounted {} at {}: cache {cache}, {promise}.",
        entry.source.name().printable(),
        entry.mountpoint.printable()
    );
    for missing in mounted.front_end.missing_features() {
        outln!("Note: {missing}");
    }
    if let Some(metrics) = metrics {
        outln!("Metrics: http://{}/metrics", metrics.address());
    }
    match arguments.detached {
        true => outln!("Unmount with: {umount}"),
        false => outln!("Unmount with Ctrl-C here, or with: {umount}"),
    }
}

/// How to call this command: by name if a shell finds it, otherwise as it was called now.
fn command_name() -> PathBuf {
    let own = std::env::current_exe().ok();
    let is_own = |folder: &Path| own.is_some() && folder.join("slackwater").canonicalize().ok() == own;
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|folder| is_own(&folder)) {
        true => "slackwater".into(),
        false => own.unwrap_or_else(|| "slackwater".into()),
    }
}
