//! A mount as the threads of its process share it, and the answers to requests about it. A mount process has one
//! session, a daemon one for each of its volumes.
//!
//! # Invariants
//! S1. Figures are those of `volume`: the predecessor's volume while its data is written back, then ours.
//! S2. An unmount is answered after everything is released: the arena, the lock on the source, the entry; or when it is
//!     clear that something stays, with the reason. A client that reads "done" can mount the same source again at once.
//! S3. `is_left` is set after the mount is gone from every namespace. Unwritten data then stays in the arena: a mount
//!     process ends and the next one writes it back; a daemon continues to flush.

mod places;
mod remount;
mod restart;
mod umount;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use slackwater::{Engine, SuperBlock};

use crate::control::protocol::{
    Dontcache, Listed, ObjectRole, ObjectStatus, Phase, Reads, Reply, Request, Status, Switches, VolumeRef, Writers,
};
use crate::control::server::Respond;
use crate::exit::{Failure, Reason};
use crate::keeper::client::KeptVolume;
use crate::metrics::{Snapshot, Unmounts};
use crate::os::mount_table::MountTable;
use crate::pods::Pods;
use crate::registry::Entry;
use crate::source::opened::Opened;
use crate::spec::wire::Stated;
use crate::spec::{MountSpec, VolumeSpec};
use crate::volume::front_end::{FrontEnd, UmountRequest};
use crate::volume::rescued::{self, Removed};
use crate::volume::{arena_file, pressure, shrinkers, tenants, unwritten_files};

pub(crate) use self::umount::STALL;

/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(200);

/// Common to all mounts of a process: counts, and the names of pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pressure: Arc<pressure::Figures>,
    pub(crate) unmounts: Unmounts,
    pub(crate) pods: Arc<Pods>,
}

/// One mount.
pub(crate) struct Session {
    pub(crate) entry: Arc<Entry>,
    tally: Tally,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while the volume gets a place or loses one; before `state`.
    placing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// S1.
    volume: Option<Arc<SuperBlock>>,
    /// Present from the mount on.
    engine: Option<Engine>,
    front_end: Option<Arc<FrontEnd>>,
    source: Option<Opened>,
    /// If the mount outlives this process.
    kept: Option<KeptVolume>,
    /// The options of the mount.
    spec: MountSpec,
    unmounting: u32,
    /// Called when the last thread that unmounts it has ended, unless the volume is released by then.
    after_unmounting: Option<Box<dyn FnOnce() + Send>>,
    /// An unmount has discarded what was not written back.
    has_discarded: bool,
    /// It was mounted, and everything is written back.
    is_over: bool,
    /// S2: the outcome of the release.
    released: Option<Result<(), Failure>>,
    /// S3.
    is_left: bool,
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
    pub(crate) fn new(entry: Arc<Entry>, tally: Tally) -> Arc<Self> {
        Arc::new(Self { entry, tally, state: Mutex::default(), changed: Condvar::new(), placing: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked changed at most one field, and none depends on another.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of memory pressure.
    pub(crate) fn pressure(&self) -> Arc<pressure::Figures> {
        Arc::clone(&self.tally.pressure)
    }

    /// Shows the figures of `volume` from now on; none between two volumes.
    pub(crate) fn show(&self, volume: Option<&Arc<SuperBlock>>) {
        self.state().volume = volume.cloned();
    }

    /// The mount outlives this process.
    pub(crate) fn set_kept(&self, volume: &KeptVolume) {
        self.state().kept = Some(volume.clone());
    }

    /// The volume as its keeper has it, if there is a keeper.
    pub(crate) fn kept(&self) -> Option<KeptVolume> {
        self.state().kept.clone()
    }

    /// Marks it as mounted.
    pub(crate) fn set_mounted(&self, engine: &Engine, front_end: &Arc<FrontEnd>, source: &Opened) {
        let mut state = self.state();
        (state.engine, state.front_end) = (Some(engine.clone()), Some(Arc::clone(front_end)));
        state.source = Some(source.clone());
        self.changed.notify_all();
    }

    /// Drops every reference to the volume, its engine and its source.
    pub(crate) fn drop_references(&self) {
        let mut state = self.state();
        (state.engine, state.front_end, state.volume, state.source) = (None, None, None, None);
        state.is_over = true;
        self.changed.notify_all();
    }

    /// Answers all who wait for the end (S2).
    pub(crate) fn set_released(&self, outcome: Result<(), Failure>) {
        self.state().released = Some(outcome);
        self.changed.notify_all();
    }

    /// The front end and the volume, once it is mounted.
    pub(crate) fn served(&self) -> Option<(Arc<FrontEnd>, Arc<SuperBlock>)> {
        let state = self.state();
        state.front_end.clone().zip(state.volume.clone())
    }

    /// Whether an unmount has discarded what was not written back.
    pub(crate) fn has_discarded(&self) -> bool {
        self.state().has_discarded
    }

    /// The state of an object volume.
    pub(crate) fn object(&self) -> Option<ObjectStatus> {
        let source = self.state().source.clone();
        source.and_then(|source| source.status())
    }

    /// Whether another process has taken the object volume over.
    pub(crate) fn is_fenced(&self) -> bool {
        self.object().is_some_and(|object| object.role == ObjectRole::Fenced)
    }

    /// Bytes that stay in the arena when the volume has ended. Data that was in flight when it was discarded is dropped when
    /// the source answers.
    pub(crate) fn bytes_left_at_end(&self) -> u64 {
        let removed = self.removed();
        if let Some(removed) = removed.as_ref().filter(|_| !self.has_discarded()) {
            tracing::error!(target: "slackwater::umount", "{}: lost, since this process ends", removed.text);
        }
        match self.has_discarded() {
            true => 0,
            false => self.figures().0.saturating_sub(removed.map_or(0, |removed| removed.bytes)),
        }
    }

    /// The files that other programs removed in the source and that no file there has the data of.
    pub(crate) fn removed(&self) -> Option<Removed> {
        let volume = self.state().volume.clone();
        let volume = volume?;
        let status = Some(volume.status()).filter(|status| status.removed_files > 0)?;
        let paths = rescued::removed_paths(&volume);
        Some(Removed::new(status.removed_files, status.removed_bytes, paths, self.entry.source.name()))
    }

    /// Unwritten bytes, and bytes written back since the mount.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let volume = self.state().volume.clone();
        volume.map_or((0, 0), |volume| (volume.status().bytes_left(), volume.status().written_bytes))
    }

    /// The same after `time`; `None` when there is no volume any more.
    pub(crate) fn figures_after(&self, time: Duration) -> Option<(u64, u64)> {
        let gone = |state: &mut State| state.volume.is_some();
        let waited = self.changed.wait_timeout_while(self.state(), time, gone);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let volume = self.state().volume.clone()?;
        Some((volume.status().bytes_left(), volume.status().written_bytes))
    }

    /// The files that giving up now would leave unwritten.
    pub(crate) fn would_lose(&self) -> unwritten_files::UnwrittenFiles {
        let (volume, source) = {
            let state = self.state();
            (state.volume.clone(), state.source.clone())
        };
        volume.map(|volume| unwritten_files::of(&volume, &self.entry.source, source.as_ref())).unwrap_or_default()
    }

    /// Its phase.
    fn phase(&self, mounts: &MountTable) -> Phase {
        let state = self.state();
        let (front_end, is_over, unmounting) = (state.front_end.clone(), state.is_over, state.unmounting > 0);
        drop(state);
        match front_end {
            None if is_over => Phase::Flushing,
            None => Phase::Starting,
            Some(front_end) if front_end.is_unmounted() => Phase::Flushing,
            Some(_) if unmounting => Phase::Unmounting,
            Some(front_end) if !places::are_known(&front_end, mounts) => Phase::Elsewhere,
            Some(_) => Phase::Mounted,
        }
    }

    /// The short form for a list.
    pub(crate) fn listed(&self, name: &str, mounts: &MountTable) -> Listed {
        let phase = self.phase(mounts);
        let volume = self.state().volume.clone();
        let status = volume.map(|volume| volume.status());
        Listed {
            name: name.to_owned(),
            source: self.entry.source.name().to_path_buf(),
            mountpoint: self.mountpoints().remove(0),
            phase,
            bytes_left: status.as_ref().map_or(0, slackwater::VolumeStatus::bytes_left),
            failing: status.and_then(|status| status.failing).map(|kind| kind.to_string()),
            object: self.object(),
            label: self.state().spec.volume.label.clone(),
        }
    }

    /// The status with all its tenants, even if they do not fit into a reply, and without its shrinker. In a mount
    /// process, these are all tenants; in a daemon, those with data on the volume.
    pub(crate) fn status(&self) -> Status {
        let phase = self.phase(&MountTable::now());
        let (volume, front_end) = {
            let state = self.state();
            (state.volume.clone(), state.front_end.clone())
        };
        let tenants = {
            let own = self.state().engine.clone().filter(|_| self.entry.volume.is_none());
            let pods = &self.tally.pods;
            let of_volume = || volume.as_deref().map(|volume| tenants::of(volume, pods)).unwrap_or_default();
            own.as_ref().map_or_else(of_volume, |engine| tenants::of_all(engine, pods))
        };
        let memory = self.state().engine.as_ref().and_then(|engine| arena_file::missing(engine.arena()));
        let features = front_end.iter().flat_map(|front_end| front_end.missing_features()).collect::<Vec<_>>();
        let removed_paths = volume.as_deref().map(rescued::removed_paths).unwrap_or_default();
        let figures = volume.map(|volume| volume.status());
        let rings = front_end.as_ref().map(|front_end| front_end.rings());
        let figure = |take: fn(&slackwater::VolumeStatus) -> u64| figures.as_ref().map_or(0, take);
        let mut mountpoints = self.mountpoints();
        Status {
            pid: self.entry.pid,
            name: self.entry.volume.clone(),
            phase,
            source: self.entry.source.name().to_path_buf(),
            mountpoint: mountpoints.remove(0),
            more_mountpoints: mountpoints,
            device: front_end.as_ref().map(|front_end| front_end.device()).unwrap_or_default(),
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
                ..front_end.as_deref().map(FrontEnd::waiting_writers).unwrap_or_default()
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
            kept: self.kept().map(|kept| kept.keeper().status()),
        }
    }

    /// Whether the cache exists.
    pub(crate) fn has_engine(&self) -> bool {
        self.state().engine.is_some()
    }

    /// The data for a metrics page.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let engine = self.state().engine.clone();
        let volumes = vec![(self.entry.mountpoint.to_string_lossy().into_owned(), self.status())];
        self.tally.snapshot(engine.as_ref(), volumes)
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
    fn front_end(&self, deadline: Option<Instant>, tick: &mut dyn FnMut(u64, u64)) -> Result<Arc<FrontEnd>, Failure> {
        let front_end = self.wait_for(deadline, tick, |state| match &state.front_end {
            Some(front_end) => Some(Ok(Arc::clone(front_end))),
            None if state.is_over => Some(Err(Failure::new(Reason::NotMounted, "the volume has just been unmounted"))),
            None => None,
        });
        front_end.unwrap_or_else(|| {
            let what = "the deadline passed while the mount writes back what an earlier one left";
            Err(Failure::new(Reason::Deadline, what).advise("nothing is lost: the mount process continues"))
        })
    }

    /// Does `work` on another thread, and reports figures meanwhile.
    pub(crate) fn watch<T: Send>(&self, work: impl FnOnce() -> T + Send, tick: &mut dyn FnMut(u64, u64)) -> T {
        thread::scope(|scope| {
            let (done, outcome) = channel();
            let working = scope.spawn(move || {
                // The receiver exists until it has received this.
                let _ = done.send(work());
            });
            loop {
                match outcome.recv_timeout(TICK) {
                    Ok(outcome) => return outcome,
                    Err(RecvTimeoutError::Timeout) => {
                        let (left, written) = self.figures();
                        tick(left, written);
                    }
                    Err(RecvTimeoutError::Disconnected) => match working.join() {
                        Err(panic) => std::panic::resume_unwind(panic),
                        Ok(()) => unreachable!("it sends before it ends"),
                    },
                }
            }
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
                let volume = self.state().volume.clone();
                status.shrinkers = volume.as_deref().map(shrinkers::of).unwrap_or_default();
                status.more_tenants = tenants::fit_reply(&mut status.tenants);
                Ok(Reply::Status(Box::new(status)))
            }
            Request::WouldLose => Ok(self.would_lose().into_reply(self.entry.source.name().to_path_buf())),
            Request::Sync => {
                let front_end = self.front_end(None, &mut tick)?;
                let volume = self.state().volume.clone();
                let rescued = || volume.as_ref().map_or_else(Vec::new, |volume| volume.rescued());
                let known = rescued().len();
                let synced = self.watch(|| front_end.sync(), &mut tick);
                synced.map_err(|failure| self.with_location(failure))?;
                rescued::after("synced", rescued().get(known..).unwrap_or_default(), self.entry.source.name())?;
                Ok(Reply::Done)
            }
            Request::Umount { deadline_ms, force, discard, park } => {
                let within = Duration::from_millis(deadline_ms);
                let request = UmountRequest { deadline: Some(within), stall: None, force, discard };
                self.umount_at(volume, request, park, release, &mut tick)?;
                Ok(Reply::Done)
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
                let front_end = self.front_end(None, &mut tick)?;
                let mut state = self.state();
                state.spec.volume.change(&key, &value)?;
                front_end.apply(&state.spec.volume);
                drop(state);
                if let Some(kept) = self.kept() {
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

impl Respond for Session {
    fn respond(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply {
        if !volume.is_empty() {
            return Reply::Failed(Failure::usage("this is a mount process, which has no named volumes"));
        }
        // The main thread releases it.
        self.answer(volume, request, &|| {}, progress).unwrap_or_else(Reply::Failed)
    }
}
