//! Unmount: all data in the backend and every reference dropped, or nothing changed.
//!
//! # Steps
//! 1. Busy check: open files and referenced inodes fail the unmount at once.
//! 2. Flush, while the volume works as before. Writers may continue meanwhile.
//! 3. Freeze: changes are refused from here on, and changes in progress are waited for.
//! 4. Flush the rest, which was written during step 2. Then keep flushers out and wait for what is in flight.
//! 5. Busy check again, then detach: the volume can no longer be found.
//! 6. Clear `ACTIVE`: nothing is dirty, nothing is in flight and nothing new starts. This is final, and no later step
//!    waits for the device.
//! 7. Drain: switches of this volume to another wb release its inodes (`writeback::cgwb`). Those of other volumes are
//!    not waited for.
//! 8. Evict every inode.
//! 9. An inode that is still referenced is a bug and is reported. The volume's shrinker is unregistered; only a running
//!    scan of this volume is waited for.
//! 10. The arena's records are freed. Unless data was discarded, the threads of the backend get a moment to drop the last of
//!     what they hold. The backend is closed with the last reference to the volume.
//!
//! The deadline can end the unmount only in steps 2 to 4. Then writes thaw and the volume is as before (P3).
//!
//! A front end has references of its own while it serves the volume, and drops them between steps 4 and 5. It calls
//! [`SuperBlock::flush_until`], [`SuperBlock::freeze_writes`], and `flush_until` again for the rest. Then it detaches
//! itself, or thaws the volume. [`SuperBlock::umount`] then finds nothing left to flush.
//!
//! # Kernel counterpart
//! `generic_shutdown_super`. Differs: it flushes before it detaches, and fails instead of losing data.

use std::collections::BTreeMap;
use std::time::Duration;

use slackwater_sync::gate;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::NodeKind;
use crate::error::{ErrorKind, InsideScan, UmountError};
use crate::super_block::SuperBlock;
use crate::units::{NodeId, Tick};
use crate::writeback::Settled;
use crate::writeback::sync::sync_volume;

/// Attempts in an engine that is stepped by hand, in which waiting for time to pass would never end.
const ATTEMPTS_BY_HAND: u32 = 4;

/// Options of an unmount.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct UmountOptions {
    /// Give up after this time, with nothing changed. `None` waits as long as it takes.
    pub deadline: Option<Duration>,
    /// Drop data that is not in the backend: the only way to lose data. [`SuperBlock::would_lose`] lists it first.
    /// Fails if files are open.
    pub discard: bool,
}

/// A file with data that is not durable in the backend.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct UncleanFile {
    /// The file.
    pub id: NodeId,
    /// Bytes in pages that are dirty, under write-back or not yet durable. If another program removed the file, all its bytes.
    pub bytes: u64,
}

/// An unmount or freeze of a volume; there is one at a time. Kernel: `s_umount`.
struct Umounting(Arc<SuperBlock>);

impl Umounting {
    fn begin(sb: &Arc<SuperBlock>) -> Result<Self, UmountError> {
        if sb.is_umounting.swap(true, Ordering::Acquire) {
            return Err(UmountError::InProgress);
        }
        Ok(Self(Arc::clone(sb)))
    }
}

impl Drop for Umounting {
    fn drop(&mut self) {
        self.0.is_umounting.store(false, Ordering::Release);
    }
}

/// A volume that is frozen, has nothing left to flush, and is not in use. Dropping this thaws it.
pub(crate) struct PreparedUmount {
    only: Umounting,
    discard: bool,
    /// The caller has frozen it, and thaws it.
    was_frozen: bool,
    /// The volume is unmounted, or about to be, for good.
    is_over: bool,
}

impl PreparedUmount {
    /// The steps from the detach on.
    ///
    /// # Errors
    /// `BusyInodes`.
    ///
    /// # Blocking
    /// Waits for switches that a thread is working on, and for a moment for threads of the backend; never for the device.
    pub(crate) fn finish(mut self) -> Result<(), UmountError> {
        self.is_over = true;
        let sb = &self.only.0;
        sb.engine().detach(sb);
        sb.clear_active();
        sb.drain_switches();
        if self.discard {
            sb.doom_all();
        } else {
            debug_assert!(sb.is_clean(), "dirty after the flush");
        }
        let busy = sb.evict_inodes(self.discard);
        sb.unregister_shrinker();
        gate::pass("umount.evicted");
        sb.forget_dirty();
        sb.release_volume_when_idle();
        sb.engine().landing.free_kept();
        if !self.discard {
            sb.bdi().backend.settle();
        }
        sb.note_progress();
        if busy != 0 {
            tracing::error!(target: "slackwater::umount", volume = sb.name(), busy, "busy inodes after unmount");
            return Err(UmountError::BusyInodes(busy));
        }
        Ok(())
    }
}

impl Drop for PreparedUmount {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.only.0.resume_flushers();
        if !self.was_frozen {
            self.only.0.thaw();
        }
    }
}

impl SuperBlock {
    /// Unmounts the volume in the steps listed at the head of `umount`. [`SuperBlock::status`] shows the progress.
    ///
    /// # Errors
    /// `Busy`, `Deadline`, `NotMounted`, `InProgress`, `InsideScan`: the volume is mounted and writable as before, and
    /// nothing is lost. `BusyInodes`: the volume is unmounted and its data is in the backend, but a caller has kept a
    /// reference to an inode.
    ///
    /// # Blocking
    /// Waits for the backend, until the deadline at most.
    pub fn umount(self: &Arc<Self>, options: UmountOptions) -> Result<(), UmountError> {
        self.prepare_umount(options)?.finish()
    }

    /// Steps 1 to 5, without the detach.
    ///
    /// # Errors
    /// As [`SuperBlock::umount`], except `BusyInodes`.
    ///
    /// # Blocking
    /// As [`SuperBlock::umount`].
    pub(crate) fn prepare_umount(self: &Arc<Self>, options: UmountOptions) -> Result<PreparedUmount, UmountError> {
        if self.engine().shrinkers.is_walking() {
            return Err(InsideScan.into());
        }
        let only = Umounting::begin(self)?;
        let was_frozen = self.is_frozen();
        if !was_frozen && !self.is_mounted() {
            return Err(UmountError::NotMounted);
        }
        self.check_busy()?;
        let deadline = options.deadline.map(|within| self.engine().clock.now() + within);
        if !options.discard {
            self.flush(deadline)?;
        }
        let prepared = PreparedUmount { only, discard: options.discard, was_frozen, is_over: false };
        if !self.freeze(deadline, &|| {}) {
            return Err(self.deadline_error());
        }
        self.flush_the_rest(options, deadline)?;
        Ok(prepared)
    }

    /// Step 2, and step 4 if writes are frozen: syncs until nothing is left to sync, retrying when the backend fails.
    /// [`SuperBlock::status`] shows the progress.
    ///
    /// # Errors
    /// `Deadline`, `NotMounted`.
    ///
    /// # Blocking
    /// Waits for the backend, until `deadline` at most.
    pub fn flush_until(self: &Arc<Self>, deadline: Option<Tick>) -> Result<(), UmountError> {
        self.alive().map_err(|_| UmountError::NotMounted)?;
        self.flush(deadline)
    }

    /// Step 3: refuses changes and opens until [`SuperBlock::thaw`], and waits for those in progress. Reads and syncs
    /// continue. Calls `waiting` often while it waits.
    ///
    /// # Errors
    /// `Deadline` if a change is still in progress; then nothing is frozen. `NotMounted`, also if it is frozen already.
    /// `InProgress`.
    ///
    /// # Blocking
    /// Waits for changes that wait for the backend, until `deadline` at most.
    pub fn freeze_writes(self: &Arc<Self>, deadline: Option<Tick>, waiting: &dyn Fn()) -> Result<(), UmountError> {
        let _only = Umounting::begin(self)?;
        if !self.is_mounted() {
            return Err(UmountError::NotMounted);
        }
        if !self.freeze(deadline, waiting) {
            self.thaw();
            return Err(self.deadline_error());
        }
        Ok(())
    }

    /// The files with data that is not durable in the backend under a name, and how many bytes each has. A discarding
    /// unmount would lose it.
    pub fn would_lose(&self) -> Vec<UncleanFile> {
        let mut files = BTreeMap::<_, u64>::new();
        let unclean = self.all_inodes().into_iter().map(|inode| (inode.id(), inode.unclean_bytes()));
        self.homeless().into_iter().chain(unclean).for_each(|(id, bytes)| *files.entry(id).or_default() += bytes);
        let files = files.into_iter().filter(|(_, bytes)| *bytes != 0);
        files.map(|(id, bytes)| UncleanFile { id, bytes }).collect()
    }

    fn check_busy(&self) -> Result<(), UmountError> {
        let open_files = u64::from(self.open_files.load(Ordering::SeqCst));
        let open_inodes = self.count_used_inodes();
        if open_files == 0 && open_inodes == 0 {
            return Ok(());
        }
        Err(UmountError::Busy { open_files, open_inodes })
    }

    /// Syncs until nothing is left to sync, or until `deadline`. Pauses after each failure of the backend
    /// ([`crate::writeback::Backoff`]).
    fn flush(self: &Arc<Self>, deadline: Option<Tick>) -> Result<(), UmountError> {
        for attempt in 1_u32.. {
            if !self.wait_for_attempt(deadline) {
                return Err(self.deadline_error());
            }
            let result = sync_volume(self, deadline).and_then(|()| self.rescue_removed(deadline));
            let failed = result.as_ref().is_err_and(|error| error.kind() != ErrorKind::TimedOut);
            self.flush_backoff.tried(failed, self.engine().clock.now(), &self.engine().tunables);
            if result.is_ok() && self.is_clean() {
                break;
            }
            // Waiting changes nothing in an engine that is stepped by hand. But this attempt may have reported an
            // earlier failure, so it is repeated.
            let by_hand = self.engine().tunables.flusher_threads == 0 && attempt < ATTEMPTS_BY_HAND;
            if !(by_hand || self.pause(deadline)) {
                return Err(self.deadline_error());
            }
        }
        Ok(())
    }

    /// Step 4, and the busy check of step 5. The steps after it must not wait for the device.
    fn flush_the_rest(self: &Arc<Self>, options: UmountOptions, deadline: Option<Tick>) -> Result<(), UmountError> {
        self.check_busy()?;
        if options.discard {
            return Ok(());
        }
        self.flush(deadline)?;
        if !self.quiesce(deadline) {
            return Err(self.deadline_error());
        }
        self.check_busy()
    }

    fn deadline_error(&self) -> UmountError {
        let status = self.status();
        UmountError::Deadline { dirty_bytes: self.unclean_bytes() + status.removed_bytes, cause: status.failing }
    }

    /// Discard: dirty data is dropped, now or when its unit completes.
    fn doom_all(&self) {
        let removed = std::mem::take(&mut *self.removed.lock());
        drop(removed); // closes nodes, so no lock is held
        let mut leaves = 0;
        for inode in self.all_inodes() {
            {
                let mut state = inode.state.lock();
                state.doomed = true;
                state.meta = 0;
            }
            inode.record_doom();
            leaves += self.drop_pages(&inode);
            let settled = inode.settle(self.engine().clock.now(), false);
            debug_assert_ne!(settled, Settled::WriteMeta, "doomed");
        }
        self.engine().reclaim.note_stale_entries(leaves);
    }

    /// Evicts every inode. Returns how many are still referenced.
    fn evict_inodes(self: &Arc<Self>, discard: bool) -> u64 {
        self.close_inode_lru();
        let root = self.root.lock().take();
        drop(root);
        let (mut busy, mut leaves) = (0, 0);
        self.set_evicted();
        for inode in self.take_inodes() {
            if inode.kind() == NodeKind::File {
                leaves += self.drop_pages(&inode);
            }
            inode.release_if_clean();
            busy += u64::from(inode.users() != 0 || inode.is_switching());
            if !discard {
                debug_assert_eq!(inode.mapping.count_unclean(), 0, "dirty after the flush");
            }
        }
        self.engine().reclaim.note_stale_entries(leaves);
        busy
    }
}
