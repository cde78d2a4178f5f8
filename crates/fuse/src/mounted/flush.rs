//! The flush of an unmount: with reports and a deadline, whatever hangs.

use std::time::Duration;

use rustix::io::Errno;
use slackwater::{SuperBlock, UmountError};
use slackwater_sync::Completion;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::{Arc, thread};

use crate::mounted::patience::Patience;
use crate::mounted::{LOOK, MountedError, MountedVolume, Progress, Step};
use crate::notifier::Notifier;
use crate::volume::Volume;
use crate::volume::lock_order::LEAF;

/// Time after which a flush looks whether it gets anywhere.
const SLICE: Duration = Duration::from_secs(1);
impl MountedVolume {
    /// Flushes, what mappings have first, on a thread of its own: neither the report nor the deadline waits for
    /// a kernel that waits for the backend.
    pub(super) fn flush(
        &self,
        step: Step,
        patience: &Patience,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        struct Flush {
            result: Mutex<Option<Result<(), MountedError>>>,
            done: Completion,
        }
        let flush = Arc::new(Flush { result: Mutex::new(LEAF, None), done: Completion::new() });
        let (sb, volume, notifier) = (Arc::clone(&self.sb), Arc::clone(&self.volume), self.session.notifier().clone());
        let (result, its_patience) = (Arc::clone(&flush), patience.clone());
        let work = move || {
            let pushed = push_mapped(&volume, &notifier).map_err(MountedError::Mapped);
            let flushed = pushed.and_then(|()| flush_unless_overtaken(&sb, &its_patience));
            *result.result.lock() = Some(flushed);
            result.done.complete_all();
        };
        if thread::Builder::new().name("sw-umount".to_owned()).spawn(work).is_err() {
            return Err(self.late());
        }
        while flush.done.wait_timeout(LOOK) {
            self.report(step, progress);
            // The thread gets as far as it can first.
            if patience.until().is_some_and(|until| self.sb.now() > until + LOOK) {
                return Err(self.late());
            }
        }
        let result = flush.result.lock().take();
        result.unwrap_or_else(|| Err(self.late()))
    }
}

/// Flushes, until everything is in the backend or writers bring as much as the backend takes: then only a freeze
/// helps. A backend that takes nothing is waited for here, where nobody else has to.
fn flush_unless_overtaken(sb: &Arc<SuperBlock>, patience: &Patience) -> Result<(), MountedError> {
    loop {
        let before = sb.status();
        let slice = sb.now() + SLICE;
        match sb.flush_until(Some(patience.until().map_or(slice, |until| until.min(slice)))) {
            Err(UmountError::Deadline { .. }) if !patience.is_over() => {}
            flushed => return Ok(flushed?),
        }
        let after = sb.status();
        let is_moving = after.written_bytes != before.written_bytes || after.bytes_left() == 0;
        if is_moving && after.bytes_left() >= before.bytes_left() {
            return Ok(());
        }
    }
}

/// Has the kernel write what it holds of shared mappings; it has arrived when this returns.
///
/// # Blocking
/// Until the kernel has the pages' locks, which requests in flight hold.
pub(super) fn push_mapped(volume: &Volume, notifier: &Notifier) -> Result<(), Errno> {
    for node in volume.maybe_mapped() {
        notifier.push_pages(node)?;
    }
    Ok(())
}
