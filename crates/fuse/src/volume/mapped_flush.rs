//! Stores to shared mappings, fetched from the kernel before they are old.
//!
//! A store is in the kernel's cache alone until the kernel writes the page back, which it does by its own clock. The volume
//! asks for the pages where stores may be ([`super::kernel_pages`], W5) when half of the age limit has passed, by invalidating
//! them: the kernel writes dirty pages back first, and programs that go on find them in the cache of the volume.
//!
//! # Invariants
//! D1. While stores may be somewhere, a time to ask for them is planned, or about to be: what makes it so plans after
//!     it has noted it, and what takes the plan looks at the notes after that.
//!
//! # Lock order
//! The lock is a leaf.
//!
//! # Kernel counterpart
//! `wb_workfn` with `dirty_expire_interval`.

use slackwater::Tick;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;

use crate::notifier::Notification;
use crate::volume::Volume;
use crate::volume::lock_order::LEAF;

/// When the kernel is to be asked next, if it is.
pub(super) struct MappedFlush(Mutex<Option<Tick>>);

impl MappedFlush {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LEAF, None))
    }

    /// When that is.
    pub(super) fn due(&self) -> Option<Tick> {
        *self.0.lock()
    }

    /// True if nothing was planned.
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
    /// Stores may be where there were none before.
    pub(super) fn schedule_mapped_flush(self: &Arc<Self>) {
        let Some(age) = self.sb.dirty_expire() else { return };
        if self.worker.mapped_flush.plan(self.sb.now() + age / 2) {
            self.wake_worker();
        }
    }

    /// Asks the kernel for stores, if it is time. Another thread waits for it.
    pub(super) fn flush_mapped_if_due(self: &Arc<Self>) {
        if !self.worker.mapped_flush.take_due(self.sb.now()) {
            return;
        }
        let Some(notifier) = self.notifier.get() else { return };
        if notifier.is_sending() {
            return self.schedule_mapped_flush(); // the kernel is at it still, as long as the backend hangs
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
