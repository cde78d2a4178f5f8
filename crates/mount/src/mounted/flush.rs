//! The flush of an unmount, with progress reports and a deadline even if the kernel or the backend hangs.

use rustix::io::Errno;
use slackwater::{SuperBlock, UmountError};
use slackwater_fuse::Notifier;
use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, thread};

use crate::lock_order::LEAF;
use crate::mounted::deadline::Deadline;
use crate::mounted::{MountedError, MountedVolume, POLL_INTERVAL, Progress, SLICE, Step};
use crate::volume::Volume;

impl MountedVolume {
    /// Bytes stored to mappings that were refused so far, because the backend answered with errors for too long.
    pub fn refused_bytes(&self) -> u64 {
        self.volume.refused_bytes()
    }

    /// Flushes, beginning with stores to mappings.
    ///
    /// The caller's thread does it if no file is mapped: the engine keeps the deadline, and each change of the thread would
    /// take time. A flush that lasts longer than [`POLL_INTERVAL`], and is to be reported, goes on on a thread of its own.
    /// So does one with mappings: neither reports nor the deadline wait for a kernel that waits for the backend.
    pub(super) fn flush(
        &self,
        step: Step,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        if self.volume.mapped_nodes().is_empty() {
            match self.sb.flush_until(deadline.slice(POLL_INTERVAL)) {
                Err(UmountError::Deadline { .. }) if !deadline.has_passed() => {}
                flushed => return Ok(flushed?),
            }
        }
        struct Flush {
            result: Mutex<Option<Result<(), MountedError>>>,
            done: Completion,
        }
        let flush = Arc::new(Flush { result: Mutex::new(LEAF, None), done: Completion::new() });
        let (sb, volume, notifier) = (Arc::clone(&self.sb), Arc::clone(&self.volume), self.session.notifier().clone());
        let (result, its_deadline) = (Arc::clone(&flush), deadline.clone());
        let work = move || {
            let pushed = flush_mapped(&volume, &notifier).map_err(MountedError::Mapped);
            let flushed = pushed.and_then(|()| flush_unless_overtaken(&sb, &its_deadline));
            *result.result.lock() = Some(flushed);
            result.done.complete_all();
        };
        if thread::Builder::new().name("sw-umount".to_owned()).spawn(work).is_err() {
            return Err(self.deadline_error());
        }
        while flush.done.wait_timeout(POLL_INTERVAL) {
            self.report(step, progress);
            // The thread needs a moment to end by itself first.
            if deadline.until().is_some_and(|until| self.sb.now() > until + POLL_INTERVAL) {
                return Err(self.deadline_error());
            }
        }
        let result = flush.result.lock().take();
        result.unwrap_or_else(|| Err(self.deadline_error()))
    }
}

/// Flushes until everything is written back, or until writers dirty data as fast as the backend writes it, when only a
/// freeze helps; checked once per [`SLICE`]. It also waits here for a backend that writes nothing, while the volume still
/// works.
fn flush_unless_overtaken(sb: &Arc<SuperBlock>, deadline: &Deadline) -> Result<(), MountedError> {
    loop {
        let before = sb.status();
        match sb.flush_until(deadline.slice(SLICE)) {
            Err(UmountError::Deadline { .. }) if !deadline.has_passed() => {}
            flushed => return Ok(flushed?),
        }
        let after = sb.status();
        let is_moving = after.written_bytes != before.written_bytes || after.bytes_left() == 0;
        if is_moving && after.bytes_left() >= before.bytes_left() {
            return Ok(());
        }
    }
}

/// Asks the kernel to write back its pages of shared mappings; they have arrived when this returns.
///
/// # Blocking
/// Until the kernel has the pages' locks, which requests in flight may hold.
pub(super) fn flush_mapped(volume: &Volume, notifier: &Notifier) -> Result<(), Errno> {
    for node in volume.mapped_nodes() {
        notifier.flush_pages(node, 0, 0)?;
    }
    Ok(())
}
