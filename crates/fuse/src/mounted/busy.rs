//! Whether a mount is in use, checked before it is unmounted; and the errors of an unmount.

use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use slackwater::Tick;
use slackwater_sync::Completion;

use crate::local_stat::device_at;
use crate::mount::UnmountError;
use crate::mounted::deadline::Deadline;
use crate::mounted::{MountedError, MountedVolume, POLL_INTERVAL, namespaces};

/// How long a mount may be busy without a visible user. A process that starts a program shares its open files with the
/// child for a moment, and a closed file is in use until the kernel has processed the close.
const TRANSIENT_MAX: Duration = Duration::from_millis(250);

impl MountedVolume {
    /// Waits for calls whose callers were released, as long as only they keep the mount busy.
    pub(super) fn wait_for_calls(&self, deadline: &Deadline) -> Result<(), MountedError> {
        let pause = Completion::new();
        while self.volume.calls() > 0
            && rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE) != Err(Errno::BUSY)
        {
            let _ = self.touch();
            if deadline.has_passed() {
                return Err(self.deadline_error());
            }
            pause.wait_timeout(POLL_INTERVAL / 50);
        }
        Ok(())
    }

    /// Step 1. Asks the kernel to expire the mount; it fails with EBUSY if in use, and with EAGAIN the first time
    /// otherwise.
    pub(super) fn check_busy(&self) -> Result<(), MountedError> {
        let begun = self.sb.now();
        loop {
            let _ = self.touch();
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) {
                Err(Errno::BUSY) => self.wait_if_transient(begun)?,
                // An access clears the mark that the first request has set.
                Err(Errno::AGAIN) => {
                    return self.touch().map_err(|errno| MountedError::Unmount(UnmountError::Kernel(errno)));
                }
                // Not permitted, or already unmounted, which umount2(2) reports better.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// After EBUSY: pauses before a retry. Fails if a user is found or the mount has been busy since `begun` for too
    /// long.
    pub(super) fn wait_if_transient(&self, begun: Tick) -> Result<(), MountedError> {
        let holders = self.holders();
        if !holders.is_empty() || self.sb.now().since(begun) > TRANSIENT_MAX {
            return Err(MountedError::Busy { mountpoint: self.mountpoint.clone(), holders });
        }
        Completion::new().wait_timeout(POLL_INTERVAL / 10);
        Ok(())
    }

    /// Resolves the mount point without a request to the file system.
    fn touch(&self) -> Result<(), Errno> {
        device_at(&self.mountpoint).map(|_| ())
    }

    pub(super) fn elsewhere_error(&self) -> MountedError {
        let mut holders = namespaces::other_mounts(&self.mountpoint, self.dev);
        holders.extend(self.holders());
        MountedError::Elsewhere { mountpoint: self.mountpoint.clone(), holders }
    }

    pub(super) fn busy_error(&self) -> MountedError {
        MountedError::Busy { mountpoint: self.mountpoint.clone(), holders: self.holders() }
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
