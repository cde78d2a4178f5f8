//! Whether a mount is in use, checked before it is unmounted; and the errors of an unmount.

use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use slackwater::Tick;
use slackwater_fuse::mount::UnmountError;
use slackwater_sync::Completion;

use crate::mounted::deadline::Deadline;
use crate::mounted::{MountPoint, MountedError, MountedVolume, POLL_INTERVAL, namespaces};

/// How long a mount may be busy without a visible user. A process that starts a program shares its open files with the
/// child for a moment, and a closed file is in use until the kernel has processed the close.
const TRANSIENT_MAX: Duration = Duration::from_millis(250);

impl MountedVolume {
    /// Waits for calls whose callers were released, as long as only they keep the mount busy.
    pub(super) fn wait_for_calls(&self, deadline: &Deadline, report: &dyn Fn()) -> Result<(), MountedError> {
        let (place, pause) = (self.place(), Completion::new());
        while self.volume.calls() > 0 && place.unmount_with(UnmountFlags::EXPIRE) != Err(Errno::BUSY) {
            let _ = place.device();
            report();
            if deadline.has_passed() {
                return Err(self.deadline_error());
            }
            pause.wait_timeout(POLL_INTERVAL / 50);
        }
        Ok(())
    }

    /// Step 1. Asks the kernel to expire the mount; it fails with EBUSY if in use, and with EAGAIN the first time
    /// otherwise.
    pub(super) fn check_busy(&self, place: &MountPoint) -> Result<(), MountedError> {
        let begun = self.sb.now();
        loop {
            // Resolves the path without a request to the file system.
            let _ = place.device();
            match place.unmount_with(UnmountFlags::EXPIRE) {
                Err(Errno::BUSY) => self.wait_if_transient(place, begun)?,
                // An access clears the mark that the first request has set.
                Err(Errno::AGAIN) => {
                    let touched = place.device().map(drop);
                    return touched.map_err(|errno| MountedError::Unmount(UnmountError::Kernel(errno)));
                }
                // Not permitted, or already unmounted, which umount2(2) reports better.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// Pauses before a retry after EBUSY. Fails if a user is found or the mount has been busy since `begun` for too
    /// long.
    pub(super) fn wait_if_transient(&self, place: &MountPoint, begun: Tick) -> Result<(), MountedError> {
        let all = self.holders();
        // Other places of the volume have users of their own.
        let here: Vec<_> = all.iter().filter(|holder| holder.path.starts_with(place.path())).cloned().collect();
        if !here.is_empty() || self.sb.now().since(begun) > TRANSIENT_MAX {
            let holders = if here.is_empty() { all } else { here };
            return Err(MountedError::Busy { mountpoint: place.path().to_owned(), holders });
        }
        Completion::new().wait_timeout(POLL_INTERVAL / 10);
        Ok(())
    }

    pub(super) fn elsewhere_error(&self) -> MountedError {
        let mountpoint = self.place().path().to_owned();
        let mut holders = namespaces::other_mounts(&mountpoint, self.dev);
        holders.extend(self.holders());
        MountedError::Elsewhere { mountpoint, holders }
    }

    pub(super) fn busy_error(&self) -> MountedError {
        MountedError::Busy { mountpoint: self.place().path().to_owned(), holders: self.holders() }
    }

    pub(super) fn deadline_error(&self) -> MountedError {
        let status = self.sb.status();
        MountedError::Deadline { dirty_bytes: status.bytes_left(), cause: status.failing }
    }

    pub(super) fn left_error(&self) -> MountedError {
        let status = self.sb.status();
        MountedError::Left { dirty_bytes: status.bytes_left(), cause: status.failing }
    }
}
