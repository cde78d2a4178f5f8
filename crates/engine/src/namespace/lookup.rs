//! From a path to a mount, without a lock; and to a file.
//!
//! # Memory ordering
//! O1. What the walk finds is true of one moment if the pin at its end is sure: [`SeqRefs`](slackwater_sync::SeqRefs) against
//!     the count of an unmount. Which mount's place it passed does not matter then: all of them were in the tree at once.
//!
//! # Kernel counterpart
//! `path_lookupat` with `legitimize_mnt`; `mntput`.

use std::ops::Deref;
use std::path::Path;

use slackwater_sync::rcu::Guard;
use slackwater_sync::shim::Arc;
use slackwater_sync::{Put, gate};

use crate::error::{NamespaceError, UmountError};
use crate::file::File;
use crate::namespace::mount::{Mount, Slot};
use crate::namespace::path::{Place, check};
use crate::namespace::{Core, Namespace};
use crate::super_block::SuperBlock;
use crate::umount::UmountOptions;

/// Attempts without the lock: whoever meets that many changes looks under it, before which there is an end to them.
const ATTEMPTS: u32 = 8;

/// A reference to a mount. It stays usable until this is dropped, even if it is detached meanwhile.
///
/// # Blocking
/// Dropping the last reference to a mount that was lazily detached unmounts its volume: for the backend.
pub struct MountRef<'n> {
    core: &'n Arc<Core>,
    slot: &'n Slot,
}

/// A file that was opened by its path. Its mount cannot be unmounted meanwhile, but lazily.
pub struct PathFile<'n> {
    file: File,
    _mount: MountRef<'n>,
}

impl Deref for PathFile<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Namespace {
    /// The mount that `path` leads into, and the rest of the path there.
    ///
    /// # Errors
    /// `BadPath`.
    ///
    /// # Blocking
    /// Never for long: for another's change of the tree, if it meets one.
    pub(super) fn find<'n, 'p>(&'n self, path: &'p Path) -> Result<(MountRef<'n>, &'p Path), NamespaceError> {
        let core = &self.0;
        check(path)?;
        for _ in 0..ATTEMPTS {
            let seen = core.lock.begin();
            let section = core.domain().read_lock();
            let (mount, rest) = core.walk(&section, path);
            let slot = core.slots.at(mount.slot);
            gate::pass("namespace.found");
            if slot.refs.pin(&section, &core.lock, seen) {
                return Ok((MountRef::new(core, slot), rest));
            }
        }
        let _held = core.lock.lock();
        let section = core.domain().read_lock();
        let (mount, rest) = core.walk(&section, path);
        let slot = core.slots.at(mount.slot);
        slot.refs.get();
        Ok((MountRef::new(core, slot), rest))
    }

    /// The volume that `path` leads into, and the rest of the path there.
    ///
    /// # Errors
    /// `BadPath`; `NotFound` if no volume is on the way.
    ///
    /// # Blocking
    /// Never for long: for another's change of the tree, if it meets one.
    pub fn resolve<'n, 'p>(&'n self, path: &'p Path) -> Result<(MountRef<'n>, &'p Path), NamespaceError> {
        let (mount, rest) = self.find(path)?;
        if mount.is_root() { Err(NamespaceError::NotFound(path.into())) } else { Ok((mount, rest)) }
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As [`Namespace::resolve`], and those of looking up and opening.
    ///
    /// # Blocking
    /// For the backend.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<PathFile<'_>, NamespaceError> {
        let (mount, rest) = self.resolve(path.as_ref())?;
        let inode = mount.super_block().walk(rest.as_os_str())?;
        Ok(PathFile { file: File::open(&inode)?, _mount: mount })
    }
}

impl Core {
    /// The last mount on the way of `path`, and what is left of the path from there.
    fn walk<'s, 'p>(&'s self, section: &'s Guard<'_>, path: &'p Path) -> (&'s Arc<Mount>, &'p Path) {
        let mut ahead = path.components();
        let _root = ahead.next();
        let mut mount = &self.root;
        let mut rest = ahead.clone();
        let mut place = Place::root_of(mount.id, ahead.clone(), &self.table.random);
        loop {
            if let Some(found) = self.table.find(section, &place) {
                mount = found;
                rest = ahead.clone();
                place = Place::root_of(mount.id, ahead.clone(), &self.table.random);
            }
            let Some(name) = ahead.next() else { return (mount, rest.as_path()) };
            place.go_to(name);
        }
    }
}

impl<'n> MountRef<'n> {
    /// Has a reference in `slot` from now on.
    pub(super) fn new(core: &'n Arc<Core>, slot: &'n Slot) -> Self {
        Self { core, slot }
    }

    /// Leaves the reference to the caller.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }

    /// The references to the mount, this one among them.
    pub(super) fn count(&self) -> u64 {
        self.slot.refs.count(&self.core.lock.lock())
    }

    pub(super) fn mount(&self) -> Arc<Mount> {
        self.slot.mount.load(self.core.domain())
    }

    fn is_root(&self) -> bool {
        let section = self.core.domain().read_lock();
        self.slot.mount.read(&section).sb.is_none()
    }

    /// The volume.
    ///
    /// # Panics
    /// Never: what is mounted on nothing is not given out.
    pub fn super_block(&self) -> Arc<SuperBlock> {
        match &self.mount().sb {
            Some(sb) => Arc::clone(sb),
            None => unreachable!("the root of the namespace stays inside"),
        }
    }
}

impl Drop for MountRef<'_> {
    fn drop(&mut self) {
        if self.slot.refs.put(self.core.domain(), &self.core.lock) == Put::Last {
            self.core.end(&self.mount());
        }
    }
}

impl Core {
    /// Nobody refers any more to a mount that was lazily detached: its volume is unmounted. Kernel: `cleanup_mnt`.
    pub(super) fn end(&self, mount: &Mount) {
        let Some(sb) = &mount.sb else { unreachable!("the root is never detached") };
        match sb.umount(UmountOptions::default()) {
            // By itself, before it was taken out of the tree.
            Ok(()) | Err(UmountError::NotMounted) => {}
            // It can be found among the engine's volumes, and unmounted there.
            Err(error) => {
                tracing::error!(target: "slackwater::umount", volume = sb.name(), %error, "detached, and still mounted");
            }
        }
        self.give_slot(mount);
    }
}
