//! Volumes in a tree of paths: for programs that serve many volumes, and to open files by path.
//!
//! A mount is a volume at a place. The place is the root of the namespace, which has nothing else, or a directory of
//! another volume. A lookup takes no lock and writes to no word that another lookup writes to. It returns a reference,
//! and the mount stays usable until that is dropped. An unmount takes its mounts out of the tree, waits for *one grace
//! period* for all of them, and ends each volume before it returns.
//!
//! Reading order: [`path`], [`mount`], [`table`] (what is where), [`lookup`], [`umount`], [`grace`].
//!
//! # Invariants
//! N1. A mount is in the table exactly as long as its references are attached and its parent counts it. Both change
//!     together, with `sem` and `lock` held.
//! N2. Lookups wait for `lock` at most, and its holder waits for nothing: neither a grace period nor a backend.
//! N3. A mount is not detached if others are mounted on it, or if anything but the unmount refers to it, unless lazily.
//!
//! # Lock order
//! `NAMESPACE_SEM` > `MOUNT_LOCK`. Neither is held while a volume is mounted or flushed.
//!
//! # Kernel counterpart
//! `fs/namespace.c`: `namespace_sem`, `mount_lock`. Differs: symbolic links and `..` are not followed, a place
//! has one mount, and nothing expires or propagates.

mod grace;
mod lookup;
mod mount;
mod path;
mod table;
mod umount;

use std::path::{Path, PathBuf};

use slackwater_sync::SeqLock;
use slackwater_sync::lock::Mutex;
use slackwater_sync::rcu::Domain;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

pub use self::grace::UmountGrace;
pub use self::lookup::{MountRef, PathFile};
use self::mount::{Mount, MountId, Slots};
use self::path::Place;
use self::table::MountTable;
use crate::backend::{Backend, NodeKind};
use crate::engine::Engine;
use crate::error::NamespaceError;
use crate::lock_order::{LEAVES, MOUNT_LOCK, NAMESPACE_SEM};
use crate::super_block::SuperBlock;
use crate::umount::UmountOptions;

/// The volumes of an engine by path: see the head of `namespace`. Volumes still mounted when it is dropped stay mounted
/// in the engine. mounted in the engine.
pub struct Namespace(Arc<Core>);

struct Core {
    engine: Engine,
    grace: UmountGrace,
    /// Serialises changes. The value is the number of the last mount. Kernel: `namespace_sem`.
    sem: Mutex<u64>,
    /// Kernel: `mount_lock`.
    lock: SeqLock<()>,
    table: MountTable,
    slots: Slots,
    free_slots: Arc<Mutex<FreeSlots>>,
    root: Arc<Mount>,
    grace_periods: AtomicU64,
}

/// Free slots, and the number of all slots.
struct FreeSlots {
    free: Vec<u32>,
    count: u32,
}

impl Core {
    fn domain(&self) -> &Domain {
        &self.engine.shared().pool.rcu
    }

    fn take_slot(&self) -> u32 {
        let mut slots = self.free_slots.lock();
        if let Some(slot) = slots.free.pop() {
            return slot;
        }
        let slot = slots.count;
        slots.count += 1;
        self.slots.add(slot, self.domain(), &self.root);
        slot
    }

    /// Called when the last reference to `mount` was dropped: its slot can be reused (M2).
    fn give_slot(&self, mount: &Mount) {
        let (slot, slots) = (mount.slot, Arc::clone(&self.free_slots));
        let again = move || slots.lock().free.push(slot);
        self.slots.at(slot).mount.replace_then(self.domain(), Arc::clone(&self.root), again);
    }
}

impl Namespace {
    /// An empty namespace for volumes of `engine`. `grace` says how its unmounts wait for lookups.
    pub fn new(engine: &Engine, grace: UmountGrace) -> Self {
        let domain = &engine.shared().pool.rcu;
        let root = Arc::new(Mount::root());
        let slots = Slots::new();
        slots.add(root.slot, domain, &root);
        let lock = SeqLock::new(MOUNT_LOCK, ());
        slots.at(root.slot).refs.attach(&lock.lock());
        Self(Arc::new(Core {
            engine: engine.clone(),
            grace,
            sem: Mutex::new(NAMESPACE_SEM, root.id.0),
            lock,
            table: MountTable::new(domain),
            slots,
            free_slots: Arc::new(Mutex::new(LEAVES, FreeSlots { free: Vec::new(), count: root.slot + 1 })),
            root,
            grace_periods: AtomicU64::new(0),
        }))
    }

    /// Mounts `backend` under `name`, as [`Engine::mount`] does, at `path`: anywhere outside other volumes, or on a
    /// directory of one.
    ///
    /// # Errors
    /// `BadPath`; `AlreadyMounted` if something is mounted there; `NotADirectory`, or the error of looking the place
    /// up; `Unmounted` if the mount below was unmounted meanwhile; and those of [`Engine::mount`].
    ///
    /// # Blocking
    /// Waits for the backend, and for that of the volume below.
    pub fn mount(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        backend: Arc<dyn Backend>,
    ) -> Result<MountRef<'_>, NamespaceError> {
        let path = path.as_ref();
        let (on, rest) = self.find(path)?;
        let under = on.mount();
        if let Some(sb) = &under.sb {
            if rest.as_os_str().is_empty() {
                return Err(NamespaceError::AlreadyMounted(path.into()));
            }
            if sb.walk(rest.as_os_str())?.kind() != NodeKind::Directory {
                return Err(NamespaceError::NotADirectory(path.into()));
            }
        }
        let sb = self.0.engine.mount(name, backend)?;
        let attached = self.attach(path, under, rest, &sb);
        if attached.is_err() {
            // It has no dirty data, and no other thread has seen it.
            let _ = sb.umount(UmountOptions::default());
        }
        attached
    }

    /// Adds a mount to the tree (N1).
    fn attach(
        &self,
        path: &Path,
        under: Arc<Mount>,
        at: &Path,
        sb: &Arc<SuperBlock>,
    ) -> Result<MountRef<'_>, NamespaceError> {
        let core = &self.0;
        let domain = core.domain();
        let mut last_id = core.sem.lock();
        if !core.slots.at(under.slot).refs.is_attached() {
            return Err(NamespaceError::Unmounted(path.into()));
        }
        let place = Place::of(under.id, at, &core.table.random);
        if core.table.find(&domain.read_lock(), &place).is_some() {
            return Err(NamespaceError::AlreadyMounted(path.into()));
        }
        *last_id += 1;
        let number = core.take_slot();
        let mount = Arc::new(Mount::new(MountId(*last_id), number, Arc::clone(&under), at.into(), Arc::clone(sb)));
        let slot = core.slots.at(number);
        slot.mount.replace(domain, Arc::clone(&mount));
        let held = core.lock.lock();
        slot.refs.attach(&held);
        slot.refs.get(); // the caller's
        core.table.insert(place.hash(), &mount);
        under.add_children(1, 0);
        Ok(MountRef::new(core, slot))
    }

    /// The paths of all mounts with the names of their volumes, sorted by path.
    pub fn mounts(&self) -> Vec<(PathBuf, String)> {
        let core = &self.0;
        let _sem = core.sem.lock();
        let mounts = core.table.all(core.domain());
        let mut mounts: Vec<_> =
            mounts.iter().filter_map(|mount| Some((mount.path(), mount.sb.as_ref()?.name().to_owned()))).collect();
        mounts.sort();
        mounts
    }

    /// The number of grace periods that unmounts have waited for.
    pub fn grace_periods(&self) -> u64 {
        self.0.grace_periods.load(Ordering::Relaxed)
    }
}
