//! Periodic flushing of stores to shared mappings from the kernel's page cache.
//!
//! A store is only in the kernel's page cache until the kernel writes the page back on its own schedule. When half of
//! the age limit has passed, the volume invalidates the ranges that may have been stored to ([`super::kernel_pages`],
//! W5). The kernel writes dirty pages back first, and programs that continue find them in the volume's cache.
//!
//! # Invariants
//! D1. While some range may have been stored to, a flush is scheduled or about to be. A store is recorded before the
//!     flush is scheduled, and the records are read after the schedule is taken.
//!
//! # Lock order
//! The lock is a leaf.
//!
//! # Kernel counterpart
//! `wb_workfn` with `dirty_expire_interval`.

use slackwater::Tick;
use slackwater_fuse::Notification;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::lock_order::LEAF;
use crate::volume::Volume;

/// When the next flush is due, if one is scheduled.
pub(super) struct MappedFlush(Mutex<Option<Tick>>);

impl MappedFlush {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LEAF, None))
    }

    /// The scheduled time.
    pub(super) fn due(&self) -> Option<Tick> {
        *self.0.lock()
    }

    /// Schedules a flush unless one is scheduled. Returns true if none was.
    fn plan(&self, due: Tick) -> bool {
        let mut planned = self.0.lock();
        let is_first = planned.is_none();
        planned.get_or_insert(due);
        is_first
    }

    fn take_due(&self, now: Tick) -> bool {
        self.0.lock().take_if(|due| *due <= now).is_some()
    }
}

impl Volume {
    /// Schedules a flush: pages may be stored to where none were before.
    pub(super) fn schedule_mapped_flush(self: &Arc<Self>) {
        let Some(age) = self.sb.dirty_expire() else { return };
        if self.worker.mapped_flush.plan(self.sb.now() + age / 2) {
            self.wake_worker();
        }
    }

    /// Asks the kernel to write back stored pages, if a flush is due. Another thread waits for the kernel.
    pub(super) fn flush_mapped_if_due(self: &Arc<Self>) {
        if !self.worker.mapped_flush.take_due(self.sb.now()) {
            return;
        }
        let Some(notifier) = self.notifier.get() else { return };
        if notifier.is_sending() {
            // The kernel is still busy with the last flush, perhaps because the backend hangs.
            return self.schedule_mapped_flush();
        }
        let mut repeats = false;
        for node in self.nodes.mapped() {
            let flush = node.kernel_pages.take_flush_ranges();
            for range in flush.ranges {
                let (offset, len) = (range.start as i64, (range.end - range.start) as i64);
                notifier.queue(Notification::InvalInode { node: node.id(), offset, len });
            }
            repeats |= flush.repeats;
        }
        if repeats {
            self.schedule_mapped_flush();
        }
    }
}
