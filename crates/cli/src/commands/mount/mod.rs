//! `slackwater mount`: from a source and a mount point to a mounted volume, and back.
//!
//! # Steps
//! 1. Check the requirements: the kernel, `/dev/fuse`, source and mount point (`endpoints`).
//! 2. Take ownership of the source (`ownership`), and answer queries of the command (`session`). If a live process has
//!    the source, have it mounted here as well (`attach`), and end. Open the source (`opened`).
//! 3. Write back what a dead predecessor left (`arena_file`).
//! 4. Create a new arena, an engine, a volume and the mount ([`running`]), and announce it.
//! 5. Serve until the end is requested in any way ([`serving`]); then release everything.
//!
//! A signal before step 4 ends the process at once: it has changed nothing yet, and data that it writes back stays in
//! the old arena until it is in the source. So does a signal while the new arena is allocated, which has no name before
//! it is complete. A later signal unmounts.
//!
//! # Steps of a takeover
//! The successor in a mount with `--keep` ([`crate::keeper`]) has the things that another process opens
//! ([`crate::server::kept`]), and other steps 1 to 4:
//!
//! 1. Nothing is checked: the mount exists.
//! 2. Inherit the registry entry and the lock of the source, and answer queries.
//! 3. Open the arena, recover the engine, and mount the volume in it: dirty data is served and written back from then
//!    on.
//! 4. Serve the connection, which the kernel makes send the unanswered requests again, and notify the keeper. After a
//!    failure before that, the next process tries again.

pub(crate) mod attach;
pub(crate) mod background;
pub(crate) mod in_daemon;
pub(crate) mod mount_helper;
pub(crate) mod options;
pub(crate) mod remount;
mod running;
mod serving;

use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use humantime::format_duration;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::mountpoint;
use slackwater_control::os::sys::Signals;
use slackwater_control::output::shell;
use slackwater_control::protocol::ObjectRole;
use slackwater_control::spec::values::Address;
use slackwater_control::spec::{MountSpec, Transport, VolumeSpec};
use slackwater_control::{errln, outln};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::arguments::MountArguments;
use crate::commands::doctor;
use crate::control::{self, Unanswered};
use crate::keeper::client::InheritedVolume;
use crate::keeper::process;
use crate::keeper::protocol::Part;
use crate::os::{early_exit, kernel};
use crate::registry::{Entry, Found, Registry};
use crate::server::kept::KeptServer;
use crate::server::main_loop::{End, MainLoop};
use crate::server::start::Start;
use crate::source::ownership::{self, Ownership};
use crate::volume::keeping::{self, Keeping};
use crate::volume::process::{prepare_process, tunables};
use crate::volume::session::{Session, Tally};
use crate::volume::{arena_file, endpoints, mounting};
use crate::{http, metrics};

use self::background::Departure;
use self::running::Running;
use self::serving::OneMount;

/// Descriptors for files of the source, up to three each, and for everything else. When they are short, clean files are
/// closed.
const DESCRIPTORS: u64 = 64 << 10;

/// Mounts, and stays until it is unmounted.
///
/// # Errors
/// The cause of the failure; nothing is mounted then.
pub(crate) fn run(arguments: &MountArguments) -> Result<ExitCode, Failure> {
    let arguments = options::with_option_lists(arguments)?;
    match arguments.background {
        true => background::start(&checked(arguments)?, true),
        false => serve(arguments),
    }
}

/// The arguments, with what a mount that is kept cannot have.
///
/// # Errors
/// Such a mount cannot be kept.
fn checked(mut arguments: MountArguments) -> Result<MountArguments, Failure> {
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

/// Mounts in this process or, if the mount is kept, in one of its own, whose keeper this process becomes.
///
/// # Errors
/// As [`run`].
pub(crate) fn serve(arguments: MountArguments) -> Result<ExitCode, Failure> {
    let arguments = checked(arguments)?;
    if arguments.kept || !arguments.keep {
        return mount(&arguments).map(|()| ExitCode::SUCCESS);
    }
    let mountpoint = mountpoint::name_of(&arguments.mountpoint).unwrap_or_else(|_| arguments.mountpoint.clone());
    let is_detached = arguments.detached;
    let server = Start::Mount(Box::new(MountArguments { kept: true, ..arguments }));
    process::run(process::Kept { server, mountpoint: Some(mountpoint), is_detached })
}

/// A source that this process owns, and its mount until the engine exists.
struct Begun {
    session: Arc<Session>,
    ownership: Ownership,
    /// The options of the mount as it is now.
    spec: MountSpec,
    /// If a process in the background has still to leave.
    departure: Option<Departure>,
    /// For a keeper, if the mount is new.
    keeping: Option<Keeping>,
    /// The volume of a predecessor.
    inherited: Option<InheritedVolume>,
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
    let main_loop = MainLoop::begin(Signals::block(), true, "Interrupted before it was mounted: nothing is lost.");
    if arguments.detached && !arguments.kept {
        background::end_with_starter()?;
    }
    prepare_process(DESCRIPTORS);
    let mut kept = KeptServer::join("mount", arguments.kept)?;
    let begun = match kept.is_successor() {
        true => {
            // A signal unmounts it.
            main_loop.mounting();
            Some(begin_takeover(arguments, &mut kept)?)
        }
        false => begin(arguments, &kept)?,
    };
    let Some(begun) = begun else { return Ok(()) };
    let Begun { session, mut ownership, spec, departure, mut keeping, inherited } = begun;
    // Before anything is written back or mounted, because the port may be in use.
    let listen = |Address(address)| kept.part(Part::Metrics, || http::listen("--metrics", address));
    let metrics = arguments.spec.server.metrics.map(listen).transpose()?;
    if let Some(departure) = &departure {
        kept.add(Part::Log, || Ok(departure.log()))?;
    }
    let not_listening =
        |error: io::Error| Failure::failed(format!("cannot listen for slackwater umount and status: {error}"));
    let bind = || UnixListener::bind(ownership.registered.socket()).map_err(not_listening);
    let listener = kept.part(Part::Control, bind)?;
    let unanswered = control::start(listener, control::PRIVATE, Arc::clone(&session) as _).map_err(not_listening)?;
    let metrics = metrics.map(|listener| serve_metrics(listener, &session)).transpose()?;
    let running = match inherited {
        Some(inherited) => {
            let running = Running::recover(&session, inherited, &arguments.spec, &spec, &kept, &main_loop)?;
            kept.serves()?;
            log_takeover(&kept);
            ownership.registered.own();
            running
        }
        None => {
            let source = match running::open_source(&session, &spec.volume, arguments.wait) {
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
            let running = Running::open(&session, source, &spec, keeping.as_mut(), &main_loop)?;
            if let Err(failure) = hold(&mut kept, keeping, &session, &spec.volume, &running, &ownership) {
                running.mounted.abort();
                // A program may have written to it.
                ownership.registered.leave();
                return Err(failure);
            }
            announce(&session, &running, arguments, metrics.as_ref());
            running
        }
    };
    if let Some(departure) = departure {
        departure.leave();
    }
    serve_until_end(main_loop, &session, running, ownership, &unanswered, metrics, arguments.detached)
}

/// Steps 1 and 2. `None`, if a live process has mounted the source here as well.
fn begin(arguments: &MountArguments, kept: &KeptServer) -> Result<Option<Begun>, Failure> {
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
        .kept_by(kept.keeper.as_ref().map(|keeper| keeper.pid));
    let attach = |found: &Found| attach::attach(found, &entry, arguments);
    let say = |text: &str| errln!("{text}");
    let acquired = ownership::acquire(&registry, &entry, endpoints.source_fd, arguments.wait, &attach, &say)?;
    let Some(ownership) = acquired else { return Ok(None) };
    let keeping = kept.keeper.as_ref().map(Keeping::new);
    let spec = arguments.spec.clone();
    let volume = keeping.as_ref().map(|keeping| keeping.volume().clone());
    let departure = match arguments.detached {
        true => Some(
            Departure::prepare(&registry.log_file(entry.number()))
                .map_err(|error| Failure::failed(format!("cannot detach from the terminal: {error}")))?,
        ),
        false => None,
    };
    let known = spec.clone().of_process(entry.cache_bytes, &entry.arena);
    let session = Session::new(Arc::new(entry), volume, known, Tally::default());
    Ok(Some(Begun { session, ownership, spec, departure, keeping, inherited: None }))
}

/// The first steps of a takeover.
fn begin_takeover(arguments: &MountArguments, kept: &mut KeptServer) -> Result<Begun, Failure> {
    let inherited = kept.volumes.pop().zip(kept.keeper.as_ref());
    let (inherited, keeper) = inherited.ok_or_else(|| kept.not_taken_over("the keeper does not hold it"))?;
    let registry = Registry::open()?;
    let entry = inherited.volume.entry.clone().of_successor(keeper.pid);
    if arguments.detached {
        let departure = Departure::prepare(&registry.log_file(entry.number()));
        departure.map_err(|error| kept.not_taken_over(error))?.leave();
    }
    let ownership = keeping::ownership(&inherited, &registry, &entry)?;
    let volume = inherited.volume.changed(arguments.spec.volume.clone())?;
    let spec = MountSpec { volume, ..arguments.spec.clone() };
    let (volume, known) =
        (keeper.inherited(&inherited.volume), spec.clone().of_process(entry.cache_bytes, &entry.arena));
    let session = Session::new(Arc::new(entry), Some(volume), known, Tally::default());
    Ok(Begun { session, ownership, spec, departure: None, keeping: None, inherited: Some(inherited) })
}

/// Hands everything to the keeper, if there is one. From then on the mount outlives this process.
fn hold(
    kept: &mut KeptServer,
    keeping: Option<Keeping>,
    session: &Session,
    options: &VolumeSpec,
    running: &Running,
    ownership: &Ownership,
) -> Result<(), Failure> {
    let Some(keeping) = keeping else { return Ok(()) };
    kept.add(Part::Arena, || running.engine.arena().try_clone_lock().map_err(io::Error::other))?;
    kept.hold()?;
    keeping.hold(&session.entry, options, &running.mounted, ownership)?;
    kept.serves()
}

fn log_takeover(kept: &KeptServer) {
    let (Some(keeper), Some(predecessor)) = (&kept.keeper, &kept.predecessor) else { return };
    let status = keeper.status();
    let (before, takeovers, pause_ms) = (predecessor.pid, status.takeovers, status.last_pause_ms);
    match predecessor.has_handed_over {
        true => tracing::info!(before, takeovers, pause_ms, "this process has taken the mount over"),
        false => tracing::warn!(before, takeovers, pause_ms, "this process has taken the mount over"),
    }
}

/// Serves a mounted volume until its end, and releases everything.
fn serve_until_end(
    main_loop: MainLoop,
    session: &Arc<Session>,
    running: Running,
    ownership: Ownership,
    unanswered: &Unanswered,
    metrics: Option<http::Server>,
    is_detached: bool,
) -> Result<(), Failure> {
    let end = main_loop.run(&Arc::new(OneMount { session: Arc::clone(session), is_detached }));
    if let Some(kept) = &session.kept {
        kept.keeper().done();
    }
    match end {
        End::Flushed => {}
        end @ (End::Left | End::GivenUp) => end_with_data_left(session, end, unanswered),
    }
    drop(metrics); // it holds the engine during a scrape
    // Dropped after the last answer.
    let (closed, _memory) = running.close(session, ownership);
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

fn announce(session: &Session, running: &Running, arguments: &MountArguments, metrics: Option<&http::Server>) {
    let entry = &session.entry;
    let frames = u64::from(running.engine.arena().frames());
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
    for missing in mounting::missing_features(&running.mounted) {
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
