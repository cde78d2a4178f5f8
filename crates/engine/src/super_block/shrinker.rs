//! The shrinker of a volume: frees inodes that only a front end keeps in memory.
//!
//! The shrinker only tries locks and leaves what it cannot lock for the next scan. An unmount waits for it through its
//! registration alone, and a scan stops as soon as the volume is dead.
//!
//! # Kernel counterpart
//! `super_cache_count`, `super_cache_scan`. Differs: the front end is asked to release what its kernel
//! caches, and an inode counts as freed when the request has been issued.

use slackwater_sync::shim::atomic::Ordering;
use slackwater_sync::shim::{Arc, Weak};

use crate::backend::NodeKind;
use crate::error::InsideScan;
use crate::inode::Inode;
use crate::shrink::{Count, Scanned, ShrinkControl, Shrinker, ShrinkerRegistration, ShrinkerStatus};
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// Inodes examined in one scan. Kernel: `s_shrink->batch`.
const BATCH: u64 = 1024;
/// Inodes tolerated above the bound, so that not every new one starts a scan.
const SLACK: u64 = 64;

/// See the [module documentation](self).
struct SuperBlockShrinker {
    sb: Weak<SuperBlock>,
}

impl Shrinker for SuperBlockShrinker {
    fn name(&self) -> String {
        self.sb.upgrade().map_or_else(|| "sb".to_owned(), |sb| format!("sb-{}", sb.name()))
    }

    fn count(&self, _control: &ShrinkControl) -> Count {
        match self.sb.upgrade() {
            Some(sb) if sb.alive().is_ok() => match sb.inode_lru.len() {
                0 => Count::Empty,
                objects => Count::Objects(objects),
            },
            Some(_) | None => Count::Unknown,
        }
    }

    fn scan(&self, control: &mut ShrinkControl) -> Scanned {
        self.sb.upgrade().map_or(Scanned::Stop, |sb| sb.scan_inodes(control))
    }

    fn batch(&self) -> u64 {
        BATCH
    }
}

impl SuperBlock {
    /// The state of the volume's shrinker; `None` once an unmount has unregistered it.
    /// [`Engine::shrinkers`](crate::Engine::shrinkers) lists all those of an engine.
    pub fn shrinker(&self) -> Option<ShrinkerStatus> {
        self.shrinker.lock().as_ref().map(ShrinkerRegistration::status)
    }

    /// [`InsideScan`] if called from inside a scan.
    /// From inside a scan.
    pub(super) fn register_shrinker(self: &Arc<Self>) -> Result<(), InsideScan> {
        let shrinker = SuperBlockShrinker { sb: Arc::downgrade(self) };
        *self.shrinker.lock() = Some(self.engine.shrinkers.register(Box::new(shrinker))?);
        Ok(())
    }

    /// Unregisters the shrinker: no scan of this volume begins or runs afterwards. The caller must not be inside a
    /// scan.
    ///
    /// # Blocking
    /// Waits for scans of this volume, which end at once when it is dead.
    pub(crate) fn unregister_shrinker(&self) {
        let registration = self.shrinker.lock().take();
        if let Some(registration) = registration {
            let unregistered = self.engine.shrinkers.unregister(registration);
            debug_assert!(unregistered.is_ok(), "inside a scan");
        }
    }

    /// Called when an inode has come into memory. If there are too many unneeded inodes, requests the release of more
    /// than can have been added since the last time.
    pub(super) fn bound_inodes(&self) {
        let most = self.engine.tunables.inodes_max.saturating_add(SLACK);
        if self.inode_lru.len() >= most {
            let nr_to_scan = 2 * SLACK;
            self.scan_inodes(&mut ShrinkControl { nr_to_scan, nr_scanned: nr_to_scan });
        }
    }

    fn scan_inodes(&self, control: &mut ShrinkControl) -> Scanned {
        let (end, mut from, mut looked_at) = (self.inode_lru.end(), 0, 0);
        let mut unneeded = Vec::new();
        while looked_at < control.nr_to_scan && self.alive().is_ok() {
            // Inodes listed during the scan were used just now.
            let Some((at, id)) = self.inode_lru.first(from).filter(|(at, _)| *at < end) else { break };
            from = at + 1;
            looked_at += 1;
            let Some(found) = self.try_find(id) else { continue };
            match found.filter(|inode| inode.lru.is_at(at)) {
                Some(inode) if self.take_unneeded(&inode) => unneeded.push(inode),
                Some(_) => {}
                None => self.inode_lru.remove_place(at),
            }
        }
        control.nr_scanned = looked_at;
        if looked_at == 0 { Scanned::Stop } else { Scanned::Freed(self.ask_for(&unneeded)) }
    }

    /// Takes `inode` off the list if it is unneeded, or if it will be listed again anyway (L1 of [`super::inode_lru`]).
    /// True if it is unneeded.
    fn take_unneeded(&self, inode: &Inode) -> bool {
        if !self.inode_lru.remove(inode) {
            return false; // another thread is handling it
        }
        if inode.lru.take_used() {
            self.inode_lru.add(inode); // its second chance
            return false;
        }
        let Some(state) = inode.state.try_lock() else {
            self.inode_lru.add(inode);
            return false;
        };
        let is_clean = inode.is_clean(&state);
        drop(state);
        if inode.kind() == NodeKind::Directory {
            self.inode_lru.add(inode); // L1
        }
        is_clean && inode.openers.load(Ordering::SeqCst) == 0 && inode.users() != 0 && inode.mapping.is_empty()
    }

    /// Asks the front end to release `inodes`. Returns how many it releases.
    fn ask_for(&self, inodes: &[Arc<Inode>]) -> u64 {
        let Some(ask) = self.inode_lru.on_pressure().filter(|_| !inodes.is_empty()) else { return 0 };
        let ids: Vec<NodeId> = inodes.iter().map(|inode| inode.id()).collect();
        let given = ask(&ids).min(ids.len());
        if given < ids.len() {
            inodes.iter().for_each(|inode| self.note_unused(inode));
        }
        given as u64
    }
}
