//! The end of a mount, whichever process unmounts it, and the wait for it.

use std::time::Duration;

use slackwater_sync::Completion;
use slackwater_sync::shim::atomic::Ordering;

use crate::mounted::deadline::Deadline;
use crate::mounted::{MountedError, MountedVolume, POLL_INTERVAL, UmountRequest};

/// The longest time for which a wait for the end holds the lock `UMOUNT`.
const END_SLICE: Duration = Duration::from_secs(1);

impl MountedVolume {
    /// Waits until the volume is unmounted, by any process, and all data is written back. `deadline` and `stall` of
    /// `request` limit the wait; the rest of it has no meaning here.
    ///
    /// # Blocking
    /// Until then, or until the limit; without a limit forever, if the backend is dead and no unmount discards the data.
    ///
    /// # Errors
    /// `Left` at the limit. With any other error the volume is unmounted and its data is written back, but the engine found
    /// unexpected references.
    pub fn wait_ended(&self, request: UmountRequest) -> Result<(), MountedError> {
        let limit = Deadline::begin(&self.sb, request);
        let is_limited = request.deadline.is_some() || request.stall.is_some();
        while is_limited && self.session.wait_ended_timeout(POLL_INTERVAL).is_none() {
            if limit.has_passed() {
                return Err(self.left_error());
            }
        }
        let _ = self.session.wait_ended();
        let pause = Completion::new();
        loop {
            // Another unmount may be about to finish.
            let only = if is_limited { self.umount.try_lock() } else { Some(self.umount.lock()) };
            let ended = only.map(|_only| self.end_soon(&limit));
            match ended {
                None | Some(Err(MountedError::Deadline { .. } | MountedError::Busy { .. })) => {
                    if limit.has_passed() {
                        return Err(self.left_error());
                    }
                    pause.wait_timeout(POLL_INTERVAL);
                }
                Some(ended) => return ended,
            }
        }
    }

    /// Step 7 of an unmount, for at most [`END_SLICE`] and not beyond the limit.
    fn end_soon(&self, limit: &Deadline) -> Result<(), MountedError> {
        let left = limit.until().map(|until| until.since(self.sb.now()));
        let deadline = left.map_or(END_SLICE, |left| left.min(END_SLICE));
        let discard = self.discards.load(Ordering::Acquire);
        let request = UmountRequest { deadline: Some(deadline), discard, ..UmountRequest::default() };
        self.end(request, &Deadline::begin(&self.sb, request), &|_| {})
    }

    /// Waits until the volume is unmounted, by any process. Its data may not be written back yet.
    ///
    /// # Blocking
    /// Until then.
    pub fn wait_unmounted(&self) {
        let _ = self.session.wait_ended();
    }

    /// Calls `hook` once when the volume has been unmounted: by this process, by umount(8), or because its connection
    /// was aborted; then the dead mount may remain. If that has happened already, calls it at once. The data may not be
    /// written back yet; [`wait_ended`](Self::wait_ended) does that and blocks.
    ///
    /// The hook runs on a thread that serves all mounts, or on the one that unmounts. It must not block, unmount or wait
    /// for anything, but hand the event to another thread.
    pub fn on_unmounted(&self, hook: impl FnOnce() + Send + 'static) {
        self.session.on_ended(|_| hook());
    }

    /// Whether the volume has been unmounted, by any process. Its data may not be written back yet.
    pub fn is_unmounted(&self) -> bool {
        self.session.ended().is_some()
    }
}
