//! Unmounting by path: one volume, several with one grace period, or a tree that is still in use.
//!
//! # Steps
//! 1. Each volume is looked up and prepared: it is flushed while it works as before, frozen, and flushed again.
//! 2. With the namespace's locks held, all of them are taken out of the tree. Those in use are thawed instead.
//! 3. One grace period.
//! 4. The initial references and those of this call, which are the last, are dropped, and the volumes end.
//!
//! # Kernel counterpart
//! `do_umount`, `umount_tree`, `namespace_unlock`.

use std::path::Path;

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::{Put, gate};

use crate::error::{NamespaceError, UmountError};
use crate::namespace::lookup::MountRef;
use crate::namespace::mount::Mount;
use crate::namespace::{Core, Namespace};
use crate::umount::{PreparedUmount, UmountOptions};

/// References to an unused mount: the initial one, and the unmount's own.
const UNUSED: u64 = 2;

/// A mount that is ready to be detached.
struct Leaving<'n> {
    /// Index in the paths given.
    nth: usize,
    mount: Arc<Mount>,
    prepared: PreparedUmount,
    /// Dropped last: it may be the reference that ends a volume, which must not be prepared then.
    pin: MountRef<'n>,
}

/// A mount that was taken out of the tree.
struct Left {
    nth: usize,
    mount: Arc<Mount>,
    prepared: PreparedUmount,
}

impl Namespace {
    /// Unmounts the mount at `path`, as [`SuperBlock::umount`](crate::SuperBlock::umount) does.
    ///
    /// # Errors
    /// The volume is mounted and writable as before: `BadPath`; `NotAMount`; `Busy` if other volumes are mounted on it,
    /// or a file is open or referenced; and those of `SuperBlock::umount`.
    ///
    /// # Blocking
    /// Waits for the backend, until the deadline at most, and for a grace period.
    pub fn umount(&self, path: impl AsRef<Path>, options: UmountOptions) -> Result<(), NamespaceError> {
        self.umount_all(&[path], options).pop().unwrap_or(Ok(()))
    }

    /// Unmounts the mounts at `paths`, each as [`Namespace::umount`] does, but with one grace period for all. A mount
    /// may be unmounted together with those on it. They are flushed one after the other, each with its own deadline.
    ///
    /// # Errors
    /// For each path, in their order, the error of [`Namespace::umount`].
    ///
    /// # Blocking
    /// As [`Namespace::umount`].
    pub fn umount_all(&self, paths: &[impl AsRef<Path>], options: UmountOptions) -> Vec<Result<(), NamespaceError>> {
        let mut results: Vec<_> = paths.iter().map(|_| Ok(())).collect();
        let mut leaving = Vec::new();
        for (nth, path) in paths.iter().enumerate() {
            match self.prepare(nth, path.as_ref(), options) {
                Ok(ready) => leaving.push(ready),
                Err(error) => results[nth] = Err(error),
            }
        }
        let left = self.detach(leaving, |nth, error| results[nth] = Err(error));
        if left.is_empty() {
            return results;
        }
        let core = Arc::clone(&self.0);
        let ended = self.after_grace(move || {
            let end = |left: Left| (left.nth, left.end(&core));
            left.into_iter().map(end).collect::<Vec<_>>()
        });
        for (nth, result) in ended.into_iter().flatten() {
            results[nth] = result.map_err(NamespaceError::from);
        }
        results
    }

    /// Detaches the mount at `path`, and all mounts on it, whether they are in use or not. Existing references stay
    /// usable, and a volume is unmounted when the last one is dropped. Unused volumes are unmounted when this returns.
    /// A volume that was unmounted directly ([`umount`](crate::SuperBlock::umount)) stays in the tree until this
    /// removes it.
    ///
    /// # Errors
    /// `BadPath`, `NotAMount`.
    ///
    /// # Blocking
    /// Waits for a grace period, and for the backends of unused volumes.
    pub fn umount_lazily(&self, path: impl AsRef<Path>) -> Result<(), NamespaceError> {
        let core = Arc::clone(&self.0);
        let (pin, top) = self.mount_at(path.as_ref())?;
        let mut leaving = Vec::new();
        {
            let _sem = core.sem.lock();
            if top.children() != 0 {
                leaving.extend(core.table.all(core.domain()).into_iter().filter(|mount| mount.is_below(&top)));
            }
            leaving.push(top);
            let held = core.lock.lock();
            leaving.retain(|mount| {
                let refs = &core.slots.at(mount.slot).refs;
                let is_first = refs.is_attached(); // another call may have detached it since the lookup
                if is_first {
                    refs.detach(&held);
                    core.take_out(mount);
                }
                is_first
            });
        }
        if leaving.is_empty() {
            return Err(NamespaceError::NotAMount(path.as_ref().into()));
        }
        self.after_grace(move || {
            for mount in leaving {
                if core.slots.at(mount.slot).refs.put_initial(&core.lock) == Put::Last {
                    core.end(&mount);
                }
            }
        });
        drop(pin);
        Ok(())
    }

    /// The mount whose root is at `path`, with a reference.
    fn mount_at(&self, path: &Path) -> Result<(MountRef<'_>, Arc<Mount>), NamespaceError> {
        let (pin, rest) = self.find(path)?;
        let mount = pin.mount();
        if !rest.as_os_str().is_empty() || mount.sb.is_none() {
            return Err(NamespaceError::NotAMount(path.into()));
        }
        Ok((pin, mount))
    }

    /// Step 1.
    fn prepare(&self, nth: usize, path: &Path, options: UmountOptions) -> Result<Leaving<'_>, NamespaceError> {
        let (pin, mount) = self.mount_at(path)?;
        // Checked before the flush, which may take long.
        let references = pin.count();
        if references > UNUSED {
            return Err(NamespaceError::Busy { path: path.into(), mounts: mount.children(), references });
        }
        let prepared = pin.super_block().prepare_umount(options)?;
        Ok(Leaving { nth, mount, prepared, pin })
    }

    /// Step 2. Calls `refuse` for those in use.
    fn detach(&self, mut leaving: Vec<Leaving<'_>>, mut refuse: impl FnMut(usize, NamespaceError)) -> Vec<Left> {
        let core = &self.0;
        // A mount comes after those on it.
        leaving.sort_by_key(|ready| std::cmp::Reverse(ready.mount.depth()));
        let (mut left, mut refused) = (Vec::new(), Vec::new());
        gate::pass("namespace.leaving");
        {
            let _sem = core.sem.lock();
            let held = core.lock.lock();
            for ready in leaving {
                let refs = &core.slots.at(ready.mount.slot).refs;
                let (mounts, references) = (ready.mount.children(), refs.count(&held));
                if refs.is_attached() && mounts == 0 && references <= UNUSED {
                    refs.detach(&held);
                    core.take_out(&ready.mount);
                    left.push(ready);
                } else {
                    refused.push((ready, references));
                }
            }
        }
        for (Leaving { nth, mount, .. }, references) in refused {
            refuse(nth, NamespaceError::Busy { path: mount.path(), mounts: mount.children(), references });
        }
        left.into_iter()
            .map(|Leaving { nth, mount, prepared, pin }| {
                pin.forget(); // dropped with the initial reference
                Left { nth, mount, prepared }
            })
            .collect()
    }

    /// Step 3, then `rest`. `None` if that runs later.
    fn after_grace<R>(&self, rest: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        self.0.grace_periods.fetch_add(1, Ordering::Relaxed);
        self.0.grace.wait_then(self.0.domain(), rest)
    }
}

impl Left {
    /// Step 4.
    fn end(self, core: &Core) -> Result<(), UmountError> {
        let refs = &core.slots.at(self.mount.slot).refs;
        let (initial, own) = (refs.put_initial(&core.lock), refs.put(core.domain(), &core.lock));
        debug_assert_eq!((initial, own), (Put::Some, Put::Last), "N3");
        let result = self.prepared.finish();
        core.give_slot(&self.mount);
        result
    }
}

impl Core {
    /// Makes a detached mount invisible to lookups, with both locks held (N1).
    fn take_out(&self, mount: &Mount) {
        self.table.remove(self.domain(), mount);
        if let Some(parent) = mount.parent() {
            parent.add_children(0, 1);
        }
    }
}
