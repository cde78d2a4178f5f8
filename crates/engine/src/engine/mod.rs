//! The engine: one arena, one clock, a few flusher threads, and the volumes mounted on them.
//!
//! # Lifetime
//! [`Engine`] is a handle, and clones share one engine. Dropping the last clone stops the flusher threads. Unmount all
//! volumes first: the data of a volume that is still mounted stays in the arena, as after a crash.
//!
//! # Shared state
//! [`Shared`] owns the state that all volumes of an engine share. Where possible, a module gets only the parts that it
//! needs, so that it can be tested without an engine.
//!
//! | Part | Used by | How it is passed |
//! |---|---|---|
//! | `clock` | all modules | [`WaitTable`], [`Progress`] and the flusher pool own a reference; `backend::call_and_wait` takes it as an argument |
//! | `progress` | `cgroup`, `super_block`, `filemap` | alone: a tenant holds a reference, because it may outlive its volumes |
//! | `pool` | `writeback`, `reclaim` | alone: each wb holds a reference, because it is queued without its volume |
//! | `gates` | `super_block`, at mount | a volume gets the one gate of its device |
//! | `tenants` | `cgroup`, `reclaim`, `writeback` | alone: reclaim visits all tenants, and a frame records its tenant by slot number |
//! | `reclaim` | the flusher pool, `filemap` | alone: it owns references to the arena, the tenants and the pool, and needs no volume. The pool's threads hold a reference to it, and none to the engine |
//! | `arena`, `owners`, `waits`, `tunables`, `landing`, `switches` | `inode`, `super_block`, `writeback`, `filemap` | through the volume. Every path there starts at an inode, which has its volume; separate references would make each inode larger |
//! | the table of volumes | `reclaim` (waking flushers), `super_block`, `cgroup` | through [`Shared::super_blocks`]: to free frames or release open nodes, all volumes are asked |

mod status;

pub use status::EngineStatus;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use slackwater_arena::{Arena, Survivors};
use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::{Domain, Options};
use slackwater_sync::shim::atomic::AtomicU32;
use slackwater_sync::shim::{Arc, thread};

use crate::backend::Backend;
use crate::cgroup::{FrameOwners, HeldNodes, Memcg, TenantFinder, Tenants};
use crate::clock::Clock;
use crate::error::{InsideScan, MountError};
use crate::lock_order::LEAVES;
use crate::page_cache::LandingStock;
use crate::reclaim::Reclaim;
use crate::shrink::{Shrinker, ShrinkerForm, ShrinkerRegistration, ShrinkerStatus, Shrinkers};
use crate::super_block::SuperBlock;
use crate::tunables::Tunables;
use crate::units::Tick;
use crate::wait::{Progress, WaitTable};
use crate::writeback::check::check_charges;
use crate::writeback::{
    BdiWriteback, DeviceGates, DontcacheForm, DrainStats, FlusherPool, Pages, StartWriteback, SwitchQueue, UmountForm,
};

/// The state that all volumes of an engine share. The head of this file says which module gets which part of it, and why.
pub(crate) struct Shared {
    pub(crate) arena: Arc<Arena>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tunables: Tunables,
    pub(crate) pool: Arc<FlusherPool>,
    pub(crate) waits: WaitTable,
    pub(crate) progress: Arc<Progress>,
    pub(crate) landing: LandingStock,
    pub(crate) survivors: Mutex<Survivors>,
    pub(crate) tenants: Arc<Tenants>,
    pub(crate) tenant_finder: TenantFinder,
    pub(crate) owners: FrameOwners,
    pub(crate) held: HeldNodes,
    /// Nodes pinned by dirty inodes of all volumes.
    pub(crate) pinned_nodes: Arc<AtomicU32>,
    pub(crate) switches: SwitchQueue,
    pub(crate) reclaim: Arc<Reclaim>,
    pub(crate) dontcache: &'static dyn StartWriteback,
    pub(crate) shrinkers: Shrinkers,
    volumes: Mutex<Volumes>,
    pub(crate) gates: DeviceGates,
}

/// Mechanisms that exist in more than one form. Use the default.
#[doc(hidden)]
#[derive(Default)]
pub struct Forms {
    /// How an unmount waits for switches.
    pub umount: UmountForm,
    /// Which thread writes back the pages of a DONTCACHE write.
    pub dontcache: DontcacheForm,
    /// How shrinkers are registered and walked.
    pub shrinkers: ShrinkerForm,
    /// Which fences are used, and how long a normal grace period waits for others to share it.
    pub rcu: Options,
}

/// By name; `None` while the root is being opened.
type Volumes = BTreeMap<String, Option<Arc<SuperBlock>>>;

/// A page cache with writeback, shared by any number of volumes.
#[derive(Clone)]
pub struct Engine(Arc<Owner>);

struct Owner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Registers this process for the barriers that its engines use. Does nothing but save time: it takes a microsecond while
/// the process has one thread, and ten milliseconds in [`Engine::new`] otherwise.
pub fn register_barriers() {
    drop(Domain::new());
}

impl Engine {
    /// Creates an engine on a new, empty arena.
    pub fn new(arena: Arc<Arena>, clock: Arc<dyn Clock>, tunables: Tunables) -> Self {
        Self::recover(arena, Survivors::default(), clock, tunables)
    }

    /// Creates an engine on an arena that an earlier process left behind. The surviving data of a volume stays in the
    /// arena until a volume of the same name is mounted, which takes it over.
    pub fn recover(arena: Arc<Arena>, survivors: Survivors, clock: Arc<dyn Clock>, tunables: Tunables) -> Self {
        Self::with_forms(arena, survivors, clock, tunables, Forms::default())
    }

    /// Recovers as [`Engine::recover`] does, with older forms of some mechanisms, for experiments.
    #[doc(hidden)]
    pub fn with_forms(
        arena: Arc<Arena>,
        survivors: Survivors,
        clock: Arc<dyn Clock>,
        tunables: Tunables,
        forms: Forms,
    ) -> Self {
        let frames = u64::from(arena.frames());
        let Forms { umount, dontcache, shrinkers, rcu } = forms;
        let coalesce = rcu.coalesce;
        let pool = FlusherPool::new(Arc::clone(&clock), tunables.clone(), frames, rcu);
        let progress = Arc::new(Progress::new(Arc::clone(&clock)));
        let tenants = Arc::new(Tenants::new(&tunables, Arc::clone(&progress)));
        let shared = Shared {
            owners: FrameOwners::new(arena.frames(), Arc::clone(&tenants)),
            held: HeldNodes::new(tunables.held_nodes),
            pinned_nodes: Arc::new(AtomicU32::new(0)),
            switches: SwitchQueue::new(umount),
            reclaim: Reclaim::new(Arc::clone(&arena), Arc::clone(&tenants), Arc::clone(&pool)),
            tenants,
            tenant_finder: TenantFinder::new(),
            dontcache: dontcache.start(),
            shrinkers: Shrinkers::new(shrinkers, &pool.rcu, coalesce),
            waits: WaitTable::new(Arc::clone(&clock)),
            arena,
            clock,
            tunables,
            pool,
            progress,
            landing: LandingStock::new(),
            survivors: Mutex::new(LEAVES, survivors),
            volumes: Mutex::new(LEAVES, Volumes::default()),
            gates: DeviceGates::new(),
        };
        let shared = Arc::new(shared);
        let threads = shared.pool.start(&shared.reclaim);
        Self(Arc::new(Owner { shared, threads: Mutex::new(LEAVES, threads) }))
    }

    /// Mounts `backend` under `name`: 1 to 128 bytes that identify the volume in the arena.
    ///
    /// # Errors
    /// The name is taken or unusable, the backend's root cannot be opened, or an inode whose data survived cannot be
    /// reopened. In the last case nothing is lost, and mounting may be tried again.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn mount(&self, name: &str, backend: Arc<dyn Backend>) -> Result<Arc<SuperBlock>, MountError> {
        let shared = &self.0.shared;
        if shared.shrinkers.is_walking() {
            return Err(InsideScan.into());
        }
        match shared.volumes.lock().entry(name.to_owned()) {
            Entry::Occupied(_) => return Err(MountError::NameTaken(name.into())),
            Entry::Vacant(vacant) => vacant.insert(None),
        };
        // The backend may block forever, so other volumes can be mounted meanwhile.
        let mounted = SuperBlock::mount(shared, name, backend);
        let mut volumes = shared.volumes.lock();
        match (&mounted, volumes.get_mut(name)) {
            (Ok(sb), Some(place)) => *place = Some(Arc::clone(sb)),
            (Ok(_), None) => unreachable!("a name that is being mounted stays"),
            (Err(_), _) => drop(volumes.remove(name)),
        }
        mounted
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The mounted volumes, by name.
    pub fn volumes(&self) -> Vec<Arc<SuperBlock>> {
        self.0.shared.super_blocks()
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.0.shared.arena
    }

    /// Names of volumes whose data survived in the arena and that have not been mounted since.
    pub fn surviving_volumes(&self) -> Vec<String> {
        let survivors = self.0.shared.survivors.lock();
        survivors.volumes.iter().map(|volume| String::from_utf8_lossy(volume.record.id.as_slice()).into()).collect()
    }

    /// The root tenant, which is charged for everything that is charged to no other tenant.
    pub fn root_memcg(&self) -> &Arc<Memcg> {
        self.0.shared.tenants.root()
    }

    /// Creates a tenant below `parent`, or below the root if that is `None`. `limit_bytes` limits the dirty data of the
    /// tenant and its descendants, over all volumes. `None`: it has no limit of its own.
    pub fn memcg_create(&self, name: &str, parent: Option<&Arc<Memcg>>, limit_bytes: Option<u64>) -> Arc<Memcg> {
        self.0.shared.owners.add_tenant(name, parent.cloned(), limit_bytes)
    }

    /// Finds the tenants of data that survived an earlier process, for volumes that are mounted from now on. `find` gets
    /// the [key](Memcg::set_key) that the tenant had there. The data of a file is charged to the tenant that it returns,
    /// or else to the root.
    pub fn find_tenants_by(&self, find: impl Fn(u64) -> Option<Arc<Memcg>> + Send + Sync + 'static) {
        self.0.shared.tenant_finder.set(find);
    }

    /// Takes a tenant offline: no more writes will be charged to it. Its dirty data stays charged until it is written
    /// back. Then its files move to the nearest ancestor that is online. Returns false if the tenant is offline
    /// already, or is the root.
    ///
    /// # Blocking
    /// Never.
    pub fn memcg_offline(&self, memcg: &Arc<Memcg>) -> bool {
        let Some(wbs) = memcg.begin_offline() else { return false };
        wbs.iter().for_each(BdiWriteback::kill);
        memcg.set_offline();
        let heirs = memcg.self_and_heirs(self.0.shared.tenants.root()).skip(1);
        memcg.lruvec.close(heirs.map(|heir| &heir.lruvec));
        self.0.shared.tenants.note_offline(memcg);
        true
    }

    /// The tenants that are not released yet, the root first.
    pub fn memcgs(&self) -> Vec<Arc<Memcg>> {
        self.0.shared.tenants.release_unused();
        self.0.shared.tenants.all()
    }

    /// Inodes moved to another wb so far, because other tenants write to them or their tenant went offline.
    pub fn inodes_switched(&self) -> u64 {
        self.0.shared.switches.switched()
    }

    /// Batches of inodes being moved to another wb, on all volumes.
    pub fn switches_in_flight(&self) -> u32 {
        self.0.shared.switches.in_flight()
    }

    /// The time that unmounts have waited for such moves.
    pub fn drain_stats(&self) -> DrainStats {
        self.0.shared.switches.costs.stats()
    }

    /// Switches that found their volume unmounted: none, unless [`Forms::umount`] is a wrong form.
    #[doc(hidden)]
    pub fn dead_volume_uses(&self) -> u64 {
        self.0.shared.switches.dead_uses()
    }

    /// Registers a shrinker. Volumes register their own.
    ///
    /// # Errors
    /// The call comes from inside a scan.
    ///
    /// # Blocking
    /// Never.
    pub fn register_shrinker(&self, shrinker: Box<dyn Shrinker>) -> Result<ShrinkerRegistration, InsideScan> {
        self.0.shared.shrinkers.register(shrinker)
    }

    /// Unregisters a shrinker. When this returns, none of its methods is running, and none will be called again.
    ///
    /// # Errors
    /// The call comes from inside a scan, of this or another shrinker. Nothing changes, and the registration is
    /// returned.
    ///
    /// # Blocking
    /// Waits while a walk is at this shrinker, but for no scan of another.
    pub fn unregister_shrinker(&self, registration: ShrinkerRegistration) -> Result<(), ShrinkerRegistration> {
        self.0.shared.shrinkers.unregister(registration)
    }

    /// Asks all shrinkers to free objects. A lower `priority` asks for more, from [`shrink::LIGHTEST`] or above down to
    /// 0. Returns the number of objects freed, which is 0 inside a scan. Call it again at the same priority if
    /// necessary: amounts too small for a batch add up.
    ///
    /// [`shrink::LIGHTEST`]: crate::shrink::LIGHTEST
    ///
    /// # Blocking
    /// As long as the shrinkers do. Those of volumes do not block.
    pub fn shrink(&self, priority: u32) -> u64 {
        self.0.shared.shrinkers.shrink(priority)
    }

    /// The shrinkers, and the number of objects that each could free.
    pub fn shrinkers(&self) -> Vec<ShrinkerStatus> {
        self.0.shared.shrinkers.status()
    }

    /// Compares all page counts of all volumes and tenants with the pages. Exact only while nothing changes.
    ///
    /// # Errors
    /// The first difference.
    #[doc(hidden)]
    pub fn check_counts(&self) -> Result<(), String> {
        let shared = &self.0.shared;
        let mut owners = Vec::new();
        let mut pages = Pages::default();
        for sb in shared.super_blocks() {
            owners.extend(sb.check_and_collect()?);
            pages = pages.plus(sb.pages());
        }
        check_charges(&shared.tenants.all(), &owners)?;
        let global = &shared.pool.global;
        let counted = (global.nr_dirty.sum() as i64, global.nr_writeback.sum() as i64);
        if counted != (pages.reclaimable, pages.writeback + pages.unstable) {
            return Err(format!("of all volumes {counted:?} pages are counted, and they have {pages:?}"));
        }
        Ok(())
    }

    /// Runs every flusher that is due on this thread, and frees frames if few are free. Returns when the next flusher
    /// is due. For engines without flusher threads ([`Tunables::flusher_threads`] is 0).
    pub fn step(&self) -> Option<Tick> {
        self.0.shared.pool.run_due(&self.0.shared.reclaim)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.pool.stop();
        for thread in self.threads.get_mut().drain(..) {
            // A flusher that panicked has printed its message already.
            let _ = thread.join();
        }
        if self.shared.switches.in_flight() != 0 {
            self.shared.pool.rcu.barrier(); // no switch returns from its grace period after this
        }
        let abandoned = std::mem::take(&mut *self.shared.volumes.lock());
        for sb in abandoned.values().flatten() {
            sb.abandon();
        }
        self.shared.landing.free_kept();
        self.shared.progress.note(); // wakes waiting writers, which find the volume unmounted
    }
}

impl Shared {
    pub(crate) fn super_blocks(&self) -> Vec<Arc<SuperBlock>> {
        self.volumes.lock().values().flatten().cloned().collect()
    }

    /// Removes a volume from the list of mounted volumes.
    pub(crate) fn detach(&self, sb: &Arc<SuperBlock>) {
        self.volumes.lock().remove(sb.name());
    }

    /// Runs what is due, in an engine without flusher threads.
    pub(crate) fn run_by_hand(&self) {
        if self.tunables.flusher_threads == 0 {
            self.pool.run_due(&self.reclaim);
        }
    }
}
