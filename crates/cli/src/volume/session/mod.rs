//! A mount as the threads of its process share it, and the answers to requests about it. A mount process has one
//! session, a daemon one for each of its volumes.
//!
//! # Invariants
//! S1. Figures are those of `volume`: the predecessor's volume while its data is written back, then ours.
//! S2. An unmount is answered after everything is released: the arena, the lock on the source, the entry; or when it is
//!     clear that something stays, with the reason. A client that reads "done" can mount the same source again at once.
//! S3. A mount is [`Stage::Left`] after it is gone from every namespace. Unwritten data then stays in the arena: a mount
//!     process ends and the next one writes it back; a daemon continues to flush.

mod places;
mod remount;
mod restart;
mod umount;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackwater::{Engine, SuperBlock};
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::mount_table::MountTable;
use slackwater_control::parallel::while_running;
use slackwater_control::protocol::{
    Dontcache, Listed, ObjectRole, ObjectStatus, Phase, Reads, Reply, Request, Status, Switches, VolumeRef, Writers,
};
use slackwater_control::spec::wire::Stated;
use slackwater_control::spec::{MountSpec, VolumeSpec};
use slackwater_mount::MountedVolume;

use crate::control::Respond;
use crate::keeper::client::KeptVolume;
use crate::metrics::{Snapshot, Unmounts};
use crate::pods::Pods;
use crate::registry::Entry;
use crate::source::opened::Opened;
use crate::volume::rescued::{self, Removed};
use crate::volume::{arena_file, mounting, pressure, shrinkers, tenants, unwritten_files};

pub(crate) use self::umount::{STALL, UmountRequest};

/// Interval between progress reports.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Common to all mounts of a process: counts, and the names of pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pressure: Arc<pressure::Figures>,
    pub(crate) unmounts: Unmounts,
    pub(crate) pods: Arc<Pods>,
}

/// A mount, from its registration to its release.
pub(crate) struct Session {
    pub(crate) entry: Arc<Entry>,
    /// The volume as its keeper has it, if the mount outlives this process.
    pub(crate) kept: Option<KeptVolume>,
    tally: Tally,
    /// The options of the mount, with their defaults.
    spec: Mutex<MountSpec>,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the volume gets a place or loses one; before `state` and `spec`.
    placing: Mutex<()>,
}

/// How far a mount is. Each stage follows the one before it; `Discarding` and `Left` are left out if everything is written
/// back, and a failed unmount leads back from `Discarding` to `Mounted`.
#[derive(Default)]
enum Stage {
    /// Not mounted yet.
    #[default]
    Mounting,
    /// Mounted, or unmounted and being written back.
    Mounted,
    /// The same, and an unmount discards what is not written back.
    Discarding,
    /// S3.
    Left,
    /// Nothing here refers to the volume any more.
    Ended,
    /// S2: the outcome of the release.
    Released(Result<(), Failure>),
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// S1.
    volume: Option<Arc<SuperBlock>>,
    /// From the mount until the end.
    served: Option<Served>,
    /// Threads that unmount it. Only they release it.
    unmounting: u32,
    /// Called when the last of them has ended.
    after_unmounting: Option<Box<dyn FnOnce() + Send>>,
}

impl State {
    /// Enters another stage of a mounted volume. One that is released stays so.
    fn enter(&mut self, stage: Stage) {
        if self.served.is_some() && !matches!(self.stage, Stage::Released(_)) {
            self.stage = stage;
        }
    }
}

/// A mounted volume, with everything that it consists of.
struct Served {
    engine: Engine,
    mounted: Arc<MountedVolume>,
    source: Opened,
}

/// The end of a volume.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ended {
    /// Bytes that stay in the arena.
    pub(crate) bytes_left: u64,
    /// Whether what was not written back is discarded.
    pub(crate) discards: bool,
}

impl Tally {
    /// The data for a metrics page, with the label of each volume.
    pub(crate) fn snapshot(&self, engine: Option<&Engine>, volumes: Vec<(String, Status)>) -> Snapshot {
        Snapshot {
            engine: engine.map(Engine::status),
            tenants: engine.map(|engine| tenants::of_all(engine, &self.pods)).unwrap_or_default(),
            shrinkers: engine.map(shrinkers::all).unwrap_or_default(),
            memory_pressure: self.pressure.report(),
            volumes,
            unmounts: self.unmounts.clone(),
        }
    }
}

impl Session {
    pub(crate) fn new(entry: Arc<Entry>, kept: Option<KeptVolume>, spec: MountSpec, tally: Tally) -> Arc<Self> {
        let (state, placing) = (Mutex::default(), Mutex::default());
        Arc::new(Self { entry, kept, tally, spec: Mutex::new(spec), state, changed: Condvar::new(), placing })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked changed at most one field, and none depends on another.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spec(&self) -> MutexGuard<'_, MountSpec> {
        // It is changed by one option at a time.
        self.spec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of memory pressure.
    pub(crate) fn pressure(&self) -> Arc<pressure::Figures> {
        Arc::clone(&self.tally.pressure)
    }

    /// Shows the figures of the volume of a predecessor; none between two volumes.
    pub(crate) fn show(&self, volume: Option<&Arc<SuperBlock>>) {
        self.state().volume = volume.cloned();
    }

    /// Marks the volume as mounted.
    pub(crate) fn set_mounted(&self, engine: &Engine, mounted: &Arc<MountedVolume>, source: &Opened) {
        let mut state = self.state();
        state.stage = Stage::Mounted;
        state.volume = Some(Arc::clone(mounted.super_block()));
        state.served = Some(Served { engine: engine.clone(), mounted: Arc::clone(mounted), source: source.clone() });
        self.changed.notify_all();
    }

    /// Drops every reference to the volume, its engine and its source.
    pub(crate) fn end(&self) -> Ended {
        let ended = Ended { bytes_left: self.bytes_left_at_end(), discards: self.discards() };
        let mut state = self.state();
        (state.stage, state.served, state.volume) = (Stage::Ended, None, None);
        self.changed.notify_all();
        ended
    }

    /// Answers all who wait for the end (S2).
    pub(crate) fn set_released(&self, outcome: Result<(), Failure>) {
        self.state().stage = Stage::Released(outcome);
        self.changed.notify_all();
    }

    /// The mounted volume, until its end.
    pub(crate) fn mounted(&self) -> Option<Arc<MountedVolume>> {
        self.state().served.as_ref().map(|served| Arc::clone(&served.mounted))
    }

    /// The engine of a mounted volume.
    fn engine(&self) -> Option<Engine> {
        self.state().served.as_ref().map(|served| served.engine.clone())
    }

    fn source(&self) -> Option<Opened> {
        self.state().served.as_ref().map(|served| served.source.clone())
    }

    /// S1.
    fn volume(&self) -> Option<Arc<SuperBlock>> {
        self.state().volume.clone()
    }

    fn discards(&self) -> bool {
        matches!(self.state().stage, Stage::Discarding)
    }

    /// The state of an object volume.
    pub(crate) fn object(&self) -> Option<ObjectStatus> {
        self.source().and_then(|source| source.status())
    }

    /// Whether another process has taken the object volume over.
    pub(crate) fn is_fenced(&self) -> bool {
        self.object().is_some_and(|object| object.role == ObjectRole::Fenced)
    }

    /// Bytes that stay in the arena when the volume has ended. Data that was in flight when it was discarded is dropped
    /// when the source answers.
    pub(crate) fn bytes_left_at_end(&self) -> u64 {
        if self.discards() {
            return 0;
        }
        let removed = self.removed();
        if let Some(removed) = &removed {
            tracing::error!(target: "slackwater::umount", "{}: lost, since this process ends", removed.text);
        }
        self.figures().0.saturating_sub(removed.map_or(0, |removed| removed.bytes))
    }

    /// The files that other programs removed in the source and that no file there has the data of.
    pub(crate) fn removed(&self) -> Option<Removed> {
        let volume = self.volume()?;
        let status = Some(volume.status()).filter(|status| status.removed_files > 0)?;
        let paths = rescued::removed_paths(&volume);
        Some(Removed::new(status.removed_files, status.removed_bytes, paths, self.entry.source.name()))
    }

    /// Unwritten bytes, and bytes written back since the mount.
    pub(crate) fn figures(&self) -> (u64, u64) {
        self.volume().map_or((0, 0), |volume| (volume.status().bytes_left(), volume.status().written_bytes))
    }

    /// The same after `time`; `None` when there is no volume any more.
    pub(crate) fn figures_after(&self, time: Duration) -> Option<(u64, u64)> {
        let gone = |state: &mut State| state.volume.is_some();
        let waited = self.changed.wait_timeout_while(self.state(), time, gone);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let volume = self.volume()?;
        Some((volume.status().bytes_left(), volume.status().written_bytes))
    }

    /// The files that giving up now would leave unwritten.
    pub(crate) fn would_lose(&self) -> unwritten_files::UnwrittenFiles {
        let source = self.source();
        let of = |volume| unwritten_files::of(&volume, &self.entry.source, source.as_ref());
        self.volume().map(of).unwrap_or_default()
    }

    /// The phase that a client sees.
    fn phase(&self, mounts: &MountTable) -> Phase {
        let state = self.state();
        let unmounting = state.unmounting > 0;
        let mounted = match (&state.served, &state.stage) {
            (Some(served), _) => Arc::clone(&served.mounted),
            (None, Stage::Ended | Stage::Released(_)) => return Phase::Flushing,
            (None, _) => return Phase::Starting,
        };
        drop(state);
        match () {
            () if mounted.is_unmounted() => Phase::Flushing,
            () if unmounting => Phase::Unmounting,
            () if !places::are_known(&mounted, mounts) => Phase::Elsewhere,
            () => Phase::Mounted,
        }
    }

    /// The short form for a list.
    pub(crate) fn listed(&self, name: &str, mounts: &MountTable) -> Listed {
        let phase = self.phase(mounts);
        let status = self.volume().map(|volume| volume.status());
        Listed {
            name: name.to_owned(),
            source: self.entry.source.name().to_path_buf(),
            mountpoint: self.mountpoints().remove(0),
            phase,
            bytes_left: status.as_ref().map_or(0, slackwater::VolumeStatus::bytes_left),
            failing: status.and_then(|status| status.failing).map(|kind| kind.to_string()),
            object: self.object(),
            label: self.spec().volume.label.clone(),
        }
    }

    /// The status with all its tenants, even if they do not fit into a reply, and without its shrinker. In a mount
    /// process, these are all tenants; in a daemon, those with data on the volume.
    pub(crate) fn status(&self) -> Status {
        let phase = self.phase(&MountTable::now());
        let (volume, mounted, engine) = (self.volume(), self.mounted(), self.engine());
        let tenants = {
            let own = engine.as_ref().filter(|_| self.entry.volume.is_none());
            let pods = &self.tally.pods;
            let of_volume = || volume.as_deref().map(|volume| tenants::of(volume, pods)).unwrap_or_default();
            own.map_or_else(of_volume, |engine| tenants::of_all(engine, pods))
        };
        let memory = engine.and_then(|engine| arena_file::missing(engine.arena()));
        let features = mounted.iter().flat_map(|mounted| mounting::missing_features(mounted)).collect::<Vec<_>>();
        let removed_paths = volume.as_deref().map(rescued::removed_paths).unwrap_or_default();
        let figures = volume.map(|volume| volume.status());
        let rings = mounted.as_ref().map(|mounted| mounted.rings().map_err(|error| error.to_string()));
        let figure = |take: fn(&slackwater::VolumeStatus) -> u64| figures.as_ref().map_or(0, take);
        let mut mountpoints = self.mountpoints();
        Status {
            pid: self.entry.pid,
            name: self.entry.volume.clone(),
            phase,
            source: self.entry.source.name().to_path_buf(),
            mountpoint: mountpoints.remove(0),
            more_mountpoints: mountpoints,
            device: mounted.as_ref().map(|mounted| mounted.device()).unwrap_or_default(),
            arena: self.entry.arena.clone(),
            cache_bytes: self.entry.cache_bytes,
            share_bytes: figures.as_ref().map(|status| status.share_bytes),
            dirty_bytes: figure(|status| status.dirty_bytes),
            writeback_bytes: figure(|status| status.writeback_bytes),
            unstable_bytes: figure(|status| status.unstable_bytes),
            bytes_left: figure(slackwater::VolumeStatus::bytes_left),
            written_bytes: figure(|status| status.written_bytes),
            open_files: figure(|status| status.open_files),
            inodes: figure(|status| status.inodes),
            removed_files: figure(|status| status.removed_files),
            removed_bytes: figure(|status| status.removed_bytes),
            removed_paths,
            failing: figures.as_ref().and_then(|status| status.failing).map(|kind| kind.to_string()),
            failures: figure(|status| status.failures),
            oldest_ms: figures.as_ref().and_then(|status| status.oldest).map(tenants::ms),
            reads: Reads {
                hits: figure(|status| status.read_hits),
                misses: figure(|status| status.read_misses),
                filled_bytes: figure(|status| status.filled_bytes),
            },
            dontcache: Dontcache {
                dirty_bytes: figure(|status| status.dontcache_dirty_bytes),
                kicks: figure(|status| status.dontcache_kicks),
                passes: figure(|status| status.dontcache_passes),
            },
            writers: Writers {
                paused_ms: figure(|status| tenants::ms(status.paused)),
                ..mounted.as_deref().map(waiting_writers).unwrap_or_default()
            },
            switches: Switches {
                done: figure(|status| status.inodes_switched),
                in_flight: figure(|status| status.switches_in_flight.into()),
            },
            transport: match &rings {
                None => String::new(),
                Some(Ok(_)) => "uring".to_owned(),
                Some(Err(_)) => "dev".to_owned(),
            },
            no_uring: rings.and_then(Result::err),
            missing_features: features.into_iter().chain(memory).collect(),
            tenants,
            more_tenants: 0,
            shrinkers: Vec::new(),
            memory_pressure: self.tally.pressure.report(),
            object: self.object(),
            kept: self.kept.as_ref().map(|kept| kept.keeper().status()),
        }
    }

    /// Whether the cache exists.
    pub(crate) fn has_engine(&self) -> bool {
        self.state().served.is_some()
    }

    /// The data for a metrics page.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let volumes = vec![(self.entry.mountpoint.to_string_lossy().into_owned(), self.status())];
        self.tally.snapshot(self.engine().as_ref(), volumes)
    }

    /// Waits until `look` finds something in the state, and calls `tick` with bytes left and written meanwhile. `None`:
    /// the deadline passed.
    fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        tick: &mut dyn FnMut(u64, u64),
        look: impl Fn(&State) -> Option<T>,
    ) -> Option<T> {
        loop {
            let waited = self.changed.wait_timeout_while(self.state(), TICK, |state| look(state).is_none());
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = look(&state) {
                return Some(found);
            }
            drop(state);
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let (left, written) = self.figures();
            tick(left, written);
        }
    }

    /// Waits for the mount, which may first have to write back what an earlier one left.
    fn wait_mounted(
        &self,
        deadline: Option<Instant>,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<Arc<MountedVolume>, Failure> {
        let mounted = self.wait_for(deadline, tick, |state| match (&state.served, &state.stage) {
            (Some(served), _) => Some(Ok(Arc::clone(&served.mounted))),
            (None, Stage::Ended | Stage::Released(_)) => {
                Some(Err(Failure::new(Reason::NotMounted, "the volume has just been unmounted")))
            }
            (None, _) => None,
        });
        mounted.unwrap_or_else(|| {
            let what = "the deadline passed while the mount writes back what an earlier one left";
            Err(Failure::new(Reason::Deadline, what).advise("nothing is lost: the mount process continues"))
        })
    }

    /// Makes everything written so far durable, shared mappings included.
    ///
    /// # Blocking
    /// For the source.
    fn sync(&self, mounted: &MountedVolume, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let synced = self.watch(|| mounted.sync(), tick);
        synced.map_err(|error| mounting::failed_at(mounted.place().path(), &error))
    }

    /// Does `work` on another thread, and reports figures meanwhile.
    pub(crate) fn watch<T: Send>(&self, work: impl FnOnce() -> T + Send, tick: &mut dyn FnMut(u64, u64)) -> T {
        while_running(TICK, work, &mut || {
            let (left, written) = self.figures();
            tick(left, written);
        })
    }

    /// Answers a request about the volume. `release` is called when an unmount for this request has succeeded: if
    /// everything is written back, it may release the volume, which another thread does otherwise.
    ///
    /// # Errors
    /// The cause of the failure; or the request is not about a volume.
    ///
    /// # Blocking
    /// Until the request is carried out.
    pub(crate) fn answer(
        &self,
        volume: &VolumeRef,
        request: Request,
        release: &dyn Fn(),
        progress: &dyn Fn(Reply) -> bool,
    ) -> Result<Reply, Failure> {
        // A peer that does not read must not hold the request up again and again.
        let mut is_read = true;
        let mut tick = |bytes_left, written_bytes| {
            is_read = is_read && progress(Reply::Progress { bytes_left, written_bytes });
        };
        match request {
            Request::Status => {
                let mut status = self.status();
                status.shrinkers = self.volume().as_deref().map(shrinkers::of).unwrap_or_default();
                status.more_tenants = tenants::fit_reply(&mut status.tenants);
                Ok(Reply::Status(Box::new(status)))
            }
            Request::WouldLose => Ok(self.would_lose().into_reply(self.entry.source.name().to_path_buf())),
            Request::Sync => {
                let mounted = self.wait_mounted(None, &mut tick)?;
                let rescued = || mounted.super_block().rescued();
                let known = rescued().len();
                self.sync(&mounted, &mut tick).map_err(|failure| self.with_location(failure))?;
                rescued::after("synced", rescued().get(known..).unwrap_or_default(), self.entry.source.name())?;
                Ok(Reply::Done)
            }
            Request::Umount { deadline_ms, force, discard, park } => {
                // A deadline beyond the range of the clock is none.
                let deadline = Instant::now().checked_add(Duration::from_millis(deadline_ms));
                let request = UmountRequest { deadline, stall: None, force, discard, park };
                self.umount_at(volume, request, release, &mut tick).map(|()| Reply::Done)
            }
            Request::Restart { next } => self.restart(volume.peer, next, &mut tick).map(|()| Reply::Done),
            Request::Attach { mountpoint, options, is_repeated } => {
                let place = places::place_of(volume.peer, mountpoint);
                self.attach(place, &Stated::of_texts(&options), is_repeated, &mut tick).map(|()| Reply::Done)
            }
            Request::PrepareRemount { read_only, options } => {
                self.prepare_remount(read_only, options, &mut tick).map(|()| Reply::Done)
            }
            Request::Remounted { read_only } => self.remounted(volume, read_only, &mut tick).map(|()| Reply::Done),
            Request::Detach => self.detach(volume, &mut tick).map(|()| Reply::Done),
            Request::Set { key, value } => {
                // First, because a wrong setting need not wait for the mount.
                VolumeSpec::default().change(&key, &value)?;
                let mounted = self.wait_mounted(None, &mut tick)?;
                let mut spec = self.spec();
                spec.volume.change(&key, &value)?;
                mounting::apply(&mounted, &spec.volume);
                drop(spec);
                if let Some(kept) = &self.kept {
                    kept.set(&key, &value);
                }
                Ok(Reply::Done)
            }
            Request::Mount(_) | Request::List | Request::Tenants | Request::SetTenant { .. } | Request::Events => {
                Err(Failure::usage("only a daemon answers this request, and this is a mount process"))
            }
        }
    }
}

/// The writers that wait in the front end now; the volume has the total time.
fn waiting_writers(mounted: &MountedVolume) -> Writers {
    Writers {
        paused_ms: 0,
        paused: mounted.paused_writes() as u64,
        parked: mounted.parked_writes() as u64,
        parked_bytes: mounted.parked_bytes() as u64,
        refused_mapped_bytes: mounted.refused_bytes(),
    }
}

impl Respond for Session {
    fn respond(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply {
        if !volume.is_empty() {
            return Reply::Failed(Failure::usage("this is a mount process, which has no named volumes"));
        }
        // The main thread releases it.
        self.answer(volume, request, &|| {}, progress).unwrap_or_else(Reply::Failed)
    }
}
