//! Whether a mount is in use, before it is unmounted.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use slackwater::Tick;
use slackwater_sync::Completion;

use crate::mount::UnmountError;
use crate::mounted::deadline::Deadline;
use crate::mounted::{MountedError, MountedVolume, POLL_INTERVAL, namespaces};

/// For how long a mount may be busy with nobody to be found. Who starts a program has what it had open in the child
/// for a moment, and what is closed is in use until the kernel has come to it.
const TRANSIENT_MAX: Duration = Duration::from_millis(250);

impl MountedVolume {
    /// Calls whose callers were let go hold the session open, and nobody else: they end before it is detached.
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

    /// Step 1. The kernel knows: it is asked to expire the mount, which it refuses the first time.
    pub(super) fn check_busy(&self) -> Result<(), MountedError> {
        let begun = self.sb.now();
        loop {
            let _ = self.touch();
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) {
                Err(Errno::BUSY) => self.wait_if_transient(begun)?,
                // An access takes the mark away that the question has left.
                Err(Errno::AGAIN) => {
                    return self.touch().map_err(|errno| MountedError::Unmount(UnmountError::Kernel(errno)));
                }
                // Not for this user; or it is gone, and umount2(2) says so better.
                Ok(()) | Err(_) => return Ok(()),
            }
        }
    }

    /// After the kernel's "busy": pauses, to ask it again, for as long since `begun` as nobody is found who uses it.
    pub(super) fn wait_if_transient(&self, begun: Tick) -> Result<(), MountedError> {
        let holders = self.holders();
        if !holders.is_empty() || self.sb.now().since(begun) > TRANSIENT_MAX {
            return Err(MountedError::Busy { mountpoint: self.mountpoint.clone(), holders });
        }
        Completion::new().wait_timeout(POLL_INTERVAL / 10);
        Ok(())
    }

    /// Walks over the mountpoint without asking the file system anything.
    fn touch(&self) -> Result<(), Errno> {
        dev_of(&self.mountpoint).map(|_| ())
    }

    pub(super) fn elsewhere_error(&self) -> MountedError {
        let mut holders = namespaces::other_mounts(&self.mountpoint, self.dev);
        holders.extend(self.holders());
        MountedError::Elsewhere { mountpoint: self.mountpoint.clone(), holders }
    }

    pub(super) fn busy_error(&self) -> MountedError {
        MountedError::Busy { mountpoint: self.mountpoint.clone(), holders: self.holders() }
    }
}

/// `st_dev` of what is at `path`, without asking the file system.
pub(super) fn dev_of(path: &Path) -> Result<u64, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, path, flags, StatxFlags::empty())?;
    Ok(makedev(stat.stx_dev_major, stat.stx_dev_minor))
}
