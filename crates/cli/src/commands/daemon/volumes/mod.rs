//! The volumes of a daemon: one engine, one pool of FUSE threads, and a mount for each volume.
//!
//! # Life of a volume
//! *Reserved*: its name, source and mount point are taken. *Mounted*: programs can use it. A thread that unmounts it
//! for a client releases it, if everything is written back: then the answer need not wait for another thread, and the
//! name is free. Otherwise, or if something else ended it, the thread `sw-ends` is notified. It starts a thread that
//! waits until everything is written back and then releases the volume. So a volume whose source hangs delays no other.
//!
//! # Invariants
//! D1. A name stays taken from its reservation until nothing of the volume is left: its registry entry, its lock on the
//!     source. An unmount is answered after that.
//! D2. No thread waits for a source or for a mount while it holds `state`.
//! D3. Once the daemon is ending, no name is reserved, and a volume that was being mounted is unmounted by the thread
//!     that mounted it.

mod mount;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use slackwater::{Engine, SuperBlock};
use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::name::VolumeName;
use slackwater_control::os::mount_table::MountTable;
use slackwater_control::output::shell;
use slackwater_control::parallel::for_each_parallel;
use slackwater_control::protocol::{EventKind, List, Listed, VolumeRef};
use slackwater_control::spec::settings;
use slackwater_fuse::Pool;
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::tenants::TenantConfig;
use slackwater_mount::{MountedError, MountedVolume, Tenancy, UmountRequest};

use crate::commands::daemon::events::Events;
use crate::commands::daemon::kept;
use crate::commands::daemon::leftovers::Leftovers;
use crate::keeper::client::KeeperClient;
use crate::metrics::Snapshot;
use crate::pods;
use crate::registry::{Entry, Registry};
use crate::source::opened::Opened;
use crate::source::ownership::{self, Ownership};
use crate::volume::mounting;
use crate::volume::session::{Ended, Session, Tally};

/// The parts that all volumes share.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) pool: Pool,
    pub(super) tenancy: Option<Arc<Tenancy>>,
    /// The settings of tenants.
    pub(super) tenants: Mutex<BTreeMap<PathBuf, TenantConfig>>,
    pub(super) registry: Registry,
    pub(super) socket: PathBuf,
    pub(super) arena: PathBuf,
    pub(super) cache_bytes: u64,
    pub(super) tally: Tally,
    pub(super) events: Events,
    pub(super) left: Leftovers,
    /// If the volumes outlive this process.
    pub(super) keeper: Option<Arc<KeeperClient>>,
    /// Read-only mounts of object volumes so far.
    pub(super) readers: AtomicU64,
}

pub(crate) struct Volumes {
    pub(super) shared: Shared,
    state: Mutex<State>,
    pub(super) changed: Condvar,
    ends: Sender<(VolumeName, Weak<Session>)>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) by_name: BTreeMap<VolumeName, Slot>,
    /// D3.
    is_ending: bool,
    /// This process exits for a successor, so nothing is released.
    pub(super) is_handing_over: bool,
}

pub(super) enum Slot {
    Reserved(Arc<Entry>),
    Mounted(Volume),
}

/// A volume that programs can use.
pub(super) struct Volume {
    session: Arc<Session>,
    /// Present until a thread takes it, which then releases the volume.
    held: Option<Held>,
}

/// The possessions of a volume until nothing of it is left.
pub(super) struct Held {
    pub(super) source: Opened,
    pub(super) ownership: Ownership,
}

/// A taken name; dropping it frees the name.
pub(super) struct Reservation<'v> {
    volumes: &'v Volumes,
    name: VolumeName,
    is_kept: bool,
}

impl Volumes {
    /// Without volumes. The thread that is notified of ends lives as long as the process.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(shared: Shared) -> std::io::Result<Arc<Self>> {
        let (ends, ended) = channel();
        let volumes = Arc::new(Self { shared, state: Mutex::default(), changed: Condvar::new(), ends });
        let releasing = Arc::clone(&volumes);
        thread::Builder::new().name("sw-ends".into()).spawn(move || releasing.release_ended(&ended))?;
        Ok(volumes)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has changed one slot or none.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reserve(&self, name: &VolumeName, entry: &Arc<Entry>) -> Result<Reservation<'_>, Failure> {
        let mut state = self.state();
        if state.is_ending {
            return Err(ending());
        }
        if state.is_handing_over {
            return Err(Failure::busy("another process takes the daemon over").advise("try again"));
        }
        if let Some(slot) = state.by_name.get(name) {
            let (other, word) = (slot.entry(), shell::word(Path::new(name.as_str())));
            return Err(Failure::busy(format!(
                "the name {name} is taken by the volume at {} (source {})",
                other.mountpoint.printable(),
                other.source.name().printable()
            ))
            .advise(format!("unmount it first (slackwater umount {word}), or choose another --name")));
        }
        let mut others = state.by_name.values().map(Slot::entry);
        let in_the_way =
            others.find(|other| other.source.conflicts_with(&entry.source) || other.mountpoint == entry.mountpoint);
        if let Some(other) = in_the_way {
            return Err(ownership::taken_by(other, &entry.source));
        }
        state.by_name.insert(name.clone(), Slot::Reserved(Arc::clone(entry)));
        Ok(Reservation { volumes: self, name: name.clone(), is_kept: false })
    }

    /// The entries of all volumes, including those that are about to be mounted.
    fn entries(&self) -> Vec<Arc<Entry>> {
        self.state().by_name.values().map(|slot| Arc::clone(slot.entry())).collect()
    }

    /// The volume that a request is about, with its name.
    ///
    /// # Errors
    /// `NotMounted`, if there is no such volume; `Busy`, if it is still being mounted.
    pub(crate) fn find(&self, volume: &VolumeRef) -> Result<(VolumeName, Arc<Session>), Failure> {
        let state = self.state();
        let is_there = |slot: &Slot| Some(&slot.entry().mountpoint) == volume.mountpoint.as_ref();
        let named = || state.by_name.get_key_value(volume.name.as_deref()?);
        // Mount points beside the first.
        let has_place = |slot: &Slot| match (slot, &volume.mountpoint) {
            (Slot::Mounted(mounted), Some(path)) => mounted.session.has_place(volume.peer, path),
            _ => false,
        };
        let further = || state.by_name.iter().find(|(_, slot)| has_place(slot));
        match state.by_name.iter().find(|(_, slot)| is_there(slot)).or_else(named).or_else(further) {
            Some((name, Slot::Mounted(mounted))) => Ok((name.clone(), Arc::clone(&mounted.session))),
            Some((name, Slot::Reserved(_))) => {
                Err(Failure::busy(format!("{name} is being mounted")).advise("try again once it is mounted"))
            }
            None => {
                let mountpoint = volume.mountpoint.as_ref().map(|path| path.to_string_lossy());
                let word = volume.name.as_deref().or(mountpoint.as_deref()).unwrap_or_default();
                let shown: String = word.chars().take(100).flat_map(char::escape_default).collect();
                Err(Failure::new(Reason::NotMounted, format!("no volume is named {shown}"))
                    .advise("slackwater ls lists the volumes"))
            }
        }
    }

    /// Returns once the state lock could be taken, which is what the watchdog checks.
    pub(super) fn is_answering(&self) -> bool {
        drop(self.state());
        true
    }

    /// Changes a setting of a tenant, or of the cgroups of a pod, or names a pod.
    ///
    /// # Errors
    /// The tenant or the setting does not exist, or the name is refused.
    ///
    /// # Blocking
    /// For files of cgroups.
    pub(crate) fn set_tenant(&self, tenant: &Path, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            settings::NAME => self.shared.tally.pods.set_name(tenant, value),
            _ => pods::tenants_of(tenant)?.iter().try_for_each(|tenant| self.configure(tenant, key, value)),
        }
    }

    /// Changes a setting of one tenant.
    fn configure(&self, tenant: &Path, key: &str, value: &str) -> Result<(), Failure> {
        let tenancy = self.shared.tenancy.as_ref().ok_or_else(|| {
            Failure::usage("this daemon has no tenants").advise("set tenant-by in its configuration and restart it")
        })?;
        // A thread that panicked has changed one entry or none.
        let mut tenants = self.shared.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let config = settings::changed(tenants.get(tenant).copied().unwrap_or_default(), key, value)?;
        let refused = |error: &dyn std::fmt::Display| Failure::usage(format!("tenant {}: {error}", tenant.printable()));
        tenancy.set_config(tenant, config).map_err(|error| refused(&error))?;
        if config == TenantConfig::default() {
            tenants.remove(tenant);
        } else {
            tenants.insert(tenant.to_path_buf(), config);
        }
        if let Some(keeper) = &self.shared.keeper {
            keeper.set(&kept::setting_of(tenant, key), value);
        }
        Ok(())
    }

    /// All mounted volumes, by name.
    pub(crate) fn mounted(&self) -> Vec<(VolumeName, Arc<Session>)> {
        let mounted = |(name, slot): (&VolumeName, &Slot)| match slot {
            Slot::Mounted(volume) => Some((name.clone(), Arc::clone(&volume.session))),
            Slot::Reserved(_) => None,
        };
        self.state().by_name.iter().filter_map(mounted).collect()
    }

    /// The super blocks of all volumes.
    pub(crate) fn super_blocks(&self) -> Vec<Arc<SuperBlock>> {
        self.shared.engine.volumes()
    }

    /// The data for a metrics page.
    pub(super) fn snapshot(&self) -> Snapshot {
        let volumes = self.mounted().into_iter().map(|(name, session)| (name.to_string(), session.status()));
        self.shared.tally.snapshot(Some(&self.shared.engine), volumes.collect())
    }

    pub(crate) fn list(&self) -> List {
        let mounts = MountTable::now();
        let volumes: Vec<Listed> =
            self.mounted().iter().map(|(name, session)| session.listed(name.as_str(), &mounts)).collect();
        let Shared { arena, cache_bytes, .. } = &self.shared;
        let kept = self.shared.keeper.as_ref().map(|keeper| keeper.status());
        let (pid, left) = (std::process::id(), self.left());
        List { pid, arena: arena.clone(), cache_bytes: *cache_bytes, volumes, left, kept }
    }

    /// Sources with data that an earlier daemon left, and that have not been mounted since.
    pub(super) fn left(&self) -> Vec<String> {
        let Shared { left, engine, .. } = &self.shared;
        let mut sources = left.sources_outside_the_arena();
        sources.extend(engine.surviving_volumes().iter().map(|identity| left.source_of(identity)));
        sources.into_iter().collect()
    }

    /// Sets `is_ending` (D3), then unmounts all volumes at the same time. With `insist`, also those in use. Returns how
    /// many stay mounted, and how many are unmounted with unwritten data in the arena.
    ///
    /// # Blocking
    /// For all sources.
    pub(super) fn umount_all(&self, insist: bool) -> (usize, usize) {
        self.state().is_ending = true;
        self.changed.notify_all();
        let (failures, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for_each_parallel(usize::MAX, self.mounted().into_iter(), |(name, session)| {
            if let Err(failure) = self.umount(&name, &session, insist) {
                let count = if failure.reason == Reason::Left { &left } else { &failures };
                count.fetch_add(1, Ordering::Relaxed);
                errln!("{failure}");
            }
        });
        (failures.into_inner(), left.into_inner())
    }

    pub(super) fn umount(&self, name: &VolumeName, session: &Session, insist: bool) -> Result<(), Failure> {
        let umount = || session.umount_patiently(insist, |_| {}, &mut |_, _| {});
        self.shared.events.report_umount(name.as_str(), umount)
    }

    /// Unwritten bytes, and bytes written back since the start.
    pub(super) fn figures(&self) -> (u64, u64) {
        let sum = |(left, written), volume: Arc<SuperBlock>| {
            let status = volume.status();
            (left + status.bytes_left(), written + status.written_bytes)
        };
        self.super_blocks().into_iter().fold((0, 0), sum)
    }

    /// Waits at most `time` until at most `left` volumes exist and no more can come. Returns whether that is so.
    pub(super) fn wait_ended(&self, left: usize, time: Duration) -> bool {
        let has_ended = |state: &State| state.is_ending && state.by_name.len() <= left;
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !has_ended(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        has_ended(&state)
    }

    fn release_ended(self: &Arc<Self>, ended: &Receiver<(VolumeName, Weak<Session>)>) {
        for (name, session) in ended {
            let Some(session) = session.upgrade().filter(|session| session.mounted().is_some()) else { continue };
            let volumes = Arc::clone(self);
            let release = {
                let (name, session) = (name.clone(), Arc::clone(&session));
                move || volumes.release(&name, &session)
            };
            if let Err(error) = thread::Builder::new().name("sw-end".into()).spawn(release) {
                tracing::warn!(%error, "cannot start a thread: other volumes that end wait for this one");
                self.release(&name, &session);
            }
        }
    }

    /// Waits until a volume that no program can reach is written back, and releases it (D1).
    fn release(&self, name: &VolumeName, session: &Session) {
        // A reference to the mount keeps the source open: when a client learns that it is released, there is none.
        session.wait_while_unmounting();
        let Some(mounted) = self.to_release(session) else { return };
        mounting::wait_ended(&mounted);
        drop(mounted);
        self.release_ended_volume(name, session);
    }

    /// Releases the volume of a directory if no program can reach it and everything is written back. An object volume
    /// has to wait for its store, so another thread does it.
    ///
    /// # Blocking
    /// Never for data.
    pub(super) fn release_if_ended(&self, name: &VolumeName, session: &Session) {
        if session.entry.source.directory().is_none() {
            return;
        }
        let now = UmountRequest { deadline: Some(Duration::ZERO), ..UmountRequest::default() };
        let is_left = |mounted: &MountedVolume| matches!(mounted.wait_ended(now), Err(MountedError::Left { .. }));
        if self.to_release(session).is_some_and(|mounted| !is_left(&mounted)) {
            self.release_ended_volume(name, session);
        }
    }

    /// A volume that is not released, unless it goes on in another process.
    fn to_release(&self, session: &Session) -> Option<Arc<MountedVolume>> {
        session.mounted().filter(|_| !self.state().is_handing_over)
    }

    /// Releases an ended volume, unless another thread does.
    fn release_ended_volume(&self, name: &VolumeName, session: &Session) {
        let held = {
            let mut state = self.state();
            let slot = state.by_name.get_mut(name);
            slot.and_then(|slot| slot.take_held(session))
        };
        let Some(Held { source, ownership }) = held else { return };
        let Ended { bytes_left: left, discards } = session.end();
        let text = match left {
            0 => String::new(),
            left => format!("{} unwritten, kept in {}", size::text(left), self.shared.arena.printable()),
        };
        // With data left, it keeps the claim: another writer would make the data older than the volume.
        let closed = if left == 0 { source.close(discards) } else { Ok(()) };
        if let Err(failure) = &closed {
            tracing::error!(volume = name.as_str(), %failure, "the volume is not closed");
        }
        if let Some(kept) = &session.kept {
            kept.ended();
        }
        match left == 0 && closed.is_ok() {
            true => drop(ownership),
            false => {
                self.shared.left.note_log(&session.entry);
                ownership.registered.leave();
            }
        }
        self.state().by_name.remove(name);
        self.changed.notify_all();
        self.shared.events.send(EventKind::Unmounted, Some(name.as_str()), text);
        session.set_released(closed);
    }
}

impl Slot {
    fn entry(&self) -> &Arc<Entry> {
        match self {
            Self::Reserved(entry) => entry,
            Self::Mounted(volume) => &volume.session.entry,
        }
    }

    /// The possessions of the volume of `session`, once.
    fn take_held(&mut self, session: &Session) -> Option<Held> {
        match self {
            Self::Mounted(volume) if std::ptr::eq(Arc::as_ptr(&volume.session), session) => volume.held.take(),
            Self::Reserved(_) | Self::Mounted(_) => None,
        }
    }
}

impl Reservation<'_> {
    /// Marks the volume as mounted. Returns whether the daemon has begun to end since the reservation.
    fn fill(mut self, volume: Volume) -> bool {
        self.is_kept = true;
        let mut state = self.volumes.state();
        state.by_name.insert(self.name.clone(), Slot::Mounted(volume));
        self.volumes.changed.notify_all();
        state.is_ending
    }
}

fn ending() -> Failure {
    Failure::busy("the daemon is shutting down").advise("start it again")
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.volumes.state().by_name.remove(&self.name);
            self.volumes.changed.notify_all();
        }
    }
}
