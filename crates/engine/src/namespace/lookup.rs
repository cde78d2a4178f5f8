//! Lookup from a path to a mount, without a lock, and from there to a file.
//!
//! # Memory ordering
//! O1. The result of the walk was true at one moment if the pin at its end succeeds: see
//!     [`SeqRefs`](slackwater_sync::SeqRefs), against the count of an unmount. The mounts on the way do not matter
//!     then, because all of them were in the tree at once.
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

/// Attempts without the lock. A lookup that meets that many changes takes the lock, so that it ends.
const ATTEMPTS: u32 = 8;

/// A reference to a mount. The mount stays usable until this is dropped, even if it is detached meanwhile.
///
/// # Blocking
/// Dropping the last reference to a lazily detached mount unmounts its volume, which waits for the backend.
pub struct MountRef<'n> {
    core: &'n Arc<Core>,
    slot: &'n Slot,
}

/// A file opened by its path. While it exists, its mount can only be unmounted lazily.
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
    /// The mount that `path` leads to, and the rest of the path there.
    ///
    /// # Errors
    /// `BadPath`.
    ///
    /// # Blocking
    /// Only for a change of the tree in progress, which is short.
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

    /// The volume that `path` leads to, and the rest of the path there.
    ///
    /// # Errors
    /// `BadPath`; `NotFound` if there is no volume on the path.
    ///
    /// # Blocking
    /// Only for a change of the tree in progress, which is short.
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
    /// Waits for the backend.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<PathFile<'_>, NamespaceError> {
        let (mount, rest) = self.resolve(path.as_ref())?;
        let inode = mount.super_block().walk(rest.as_os_str())?;
        Ok(PathFile { file: File::open(&inode)?, _mount: mount })
    }
}

impl Core {
    /// The last mount on `path`, and the rest of the path from there.
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
    /// Takes over a reference in `slot`.
    pub(super) fn new(core: &'n Arc<Core>, slot: &'n Slot) -> Self {
        Self { core, slot }
    }

    /// Leaves the reference to the caller.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }

    /// The references to the mount, including this one.
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
    /// Never: the root of the namespace, which has no volume, is not returned by lookups.
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
    /// The last reference to a lazily detached mount was dropped: unmounts its volume. Kernel: `cleanup_mnt`.
    pub(super) fn end(&self, mount: &Mount) {
        let Some(sb) = &mount.sb else { unreachable!("the root is never detached") };
        match sb.umount(UmountOptions::default()) {
            // It was unmounted directly, before it was taken out of the tree.
            Ok(()) | Err(UmountError::NotMounted) => {}
            // It is still in the engine's list of volumes, and can be unmounted there.
            Err(error) => {
                tracing::error!(target: "slackwater::umount", volume = sb.name(), %error, "detached, and still mounted");
            }
        }
        self.give_slot(mount);
    }
}
