//! The engine and the volume of a mount process, from the open source to the release of everything.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use slackwater::backend::Backend;
use slackwater::{Engine, SuperBlock};
use slackwater_backends::SystemClock;
use slackwater_control::errln;
use slackwater_control::exit::Failure;
use slackwater_control::spec::{MountSpec, VolumeSpec};
use slackwater_fuse::Pool;
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::{Kept, MountedVolume};

use crate::keeper::client::InheritedVolume;
use crate::keeper::protocol::Part;
use crate::progress::Meter;
use crate::server::kept::KeptServer;
use crate::server::main_loop::MainLoop;
use crate::source::opened::{Opened, Opening};
use crate::source::ownership::Ownership;
use crate::volume::arena_file::{self, Left};
use crate::volume::keeping::{self, Keeping, not_taken_over};
use crate::volume::process::tunables;
use crate::volume::session::{Ended, Session};
use crate::volume::{mounting, pressure, rescued};

/// How long the end of a mount waits for the last users of its directory, and how often it looks. They have only
/// references left to drop.
const LAST_USERS_WITHIN: Duration = Duration::from_millis(200);
const LAST_USERS_LOOK: Duration = Duration::from_micros(100);

/// Opens the source, and writes back the data of an earlier mount.
pub(super) fn open_source(session: &Session, options: &VolumeSpec, wait: bool) -> Result<Opened, Failure> {
    let entry = &session.entry;
    let opening = Opening::New { keeper: entry.keeper, wait, say: &|text| errln!("{text}") };
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
pub(super) struct Running {
    pressure: Option<pressure::Listener>,
    pub(super) engine: Engine,
    volume: Arc<SuperBlock>,
    pub(super) mounted: Arc<MountedVolume>,
    /// The threads that serve it.
    pool: Pool,
    source: Opened,
    backend: Arc<dyn Backend>,
}

impl Running {
    /// A new mount, in a new arena.
    pub(super) fn open(
        session: &Session,
        source: Opened,
        spec: &MountSpec,
        keeping: Option<&mut Keeping>,
        main_loop: &MainLoop,
    ) -> Result<Self, Failure> {
        let entry = &session.entry;
        let kept = keeping.map(Keeping::front_end).transpose()?;
        let kept = kept.map(|kept| Kept { nodes_max: keeping::nodes_max(), ..kept });
        // Memory of an earlier mount is free only now.
        let MountSpec { server, volume: options } = spec;
        let cache_bytes = arena_file::cache_bytes(server.cache, &entry.arena);
        // The next mount may be on another machine.
        let released = |_: &Failure| source.clone().close_unused();
        let backend = source.backend(None).map_err(|error| Failure::failed(error.to_string())).inspect_err(released)?;
        let (arena, filler) =
            arena_file::create(&entry.arena, cache_bytes, 1, || main_loop.check()).inspect_err(released)?;
        let tunables = tunables(server.dirty_ratio(), options.dirty_expire());
        let engine = Engine::new(arena, Arc::new(SystemClock), tunables);
        // Nothing was written yet: the file is empty.
        let mounted = Self::mount(session, spec, engine, source.clone(), backend, kept, None)
            .inspect_err(|_| drop(arena_file::remove(&entry.arena)))
            .inspect_err(released)?;
        if let Some(filler) = filler {
            arena_file::fill(filler);
        }
        Ok(mounted)
    }

    /// The mount of a predecessor, with its data and its connection. It was started with `started`, and has `spec` now.
    pub(super) fn recover(
        session: &Session,
        mut inherited: InheritedVolume,
        started: &MountSpec,
        spec: &MountSpec,
        server: &KeptServer,
        main_loop: &MainLoop,
    ) -> Result<Self, Failure> {
        let entry = &session.entry;
        let keeper = session.kept.as_ref().ok_or_else(|| not_taken_over("there is no keeper"))?;
        let kept = keeping::taken_over(&inherited, keeper)?;
        let arena: OwnedFd =
            server.inherited(Part::Arena)?.ok_or_else(|| not_taken_over("the keeper does not hold the arena"))?;
        let (left, filler) = arena_file::open_inherited(arena, &entry.arena)?;
        let opening = Opening::Inherited { keeper: keeper.keeper().pid, check: &|| main_loop.check() };
        let source = Opened::new(entry, &spec.volume, left.has_data(), opening)?;
        let nodes = std::mem::take(&mut inherited.nodes);
        let (backend, nodes) = source.inherited_backend(&left.inodes(), nodes).map_err(not_taken_over)?;
        let kept = Kept { nodes_max: keeping::nodes_max(), nodes, ..kept };
        // The settings of the volume that have changed do not change those of the engine.
        let tunables = tunables(started.server.dirty_ratio(), started.volume.dirty_expire());
        let engine = left.recover(Arc::new(SystemClock), tunables);
        let mounted = Self::mount(session, spec, engine, source, backend, Some(kept), Some(&inherited))?;
        if let Some(filler) = filler {
            arena_file::fill(filler);
        }
        Ok(mounted)
    }

    fn mount(
        session: &Session,
        spec: &MountSpec,
        engine: Engine,
        source: Opened,
        backend: Arc<dyn Backend>,
        kept: Option<Kept>,
        inherited: Option<&InheritedVolume>,
    ) -> Result<Self, Failure> {
        let (entry, MountSpec { server, volume: options }) = (&session.entry, spec);
        // First, because it finds the tenants of unwritten data.
        let tenancy = mounting::tenancy(server.tenant_by(), server.tenants(), &engine)?;
        let volume = engine.mount(&entry.identity, Arc::clone(&backend)).map_err(|error| match inherited {
            Some(_) => not_taken_over(error),
            None => Failure::failed(format!("cannot open the source: {error}")),
        })?;
        let pool = mounting::pool(kept.is_some())?;
        let (name, mountpoint) = (entry.source.name(), &entry.mountpoint);
        let mounted = mounting::mount(&pool, &volume, name, mountpoint, options, tenancy, kept)?;
        let pressure = pressure::Listener::start(session.pressure(), engine.clone());
        if let Some(inherited) = inherited {
            source.inherited_all();
            Session::inherit(&mounted, &inherited.volume);
        }
        session.set_mounted(&engine, &mounted, &source);
        Ok(Self { pressure, engine, volume, mounted, pool, source, backend })
    }

    /// Releases the arena, the lock and the entry of a volume that has ended with everything written back. Returns what
    /// takes a while to free and no command should wait for: the memory, and threads that do nothing any more.
    pub(super) fn close(self, session: &Session, ownership: Ownership) -> (Result<(), Failure>, Option<Memory>) {
        let Ended { bytes_left: left, discards } = session.end();
        let is_closed_last = left == 0 && !discards && self.source.is_directory();
        let backend = is_closed_last.then_some(self.backend);
        drop((self.mounted, self.volume, self.pool));
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
        let closed = self.source.close(discards);
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
pub(super) struct Memory {
    /// Dropped first: it makes the engine shrink.
    _pressure: Option<pressure::Listener>,
    _engine: Engine,
}
