//! A mounted volume that becomes read-only or writable, by mount(2) with `MS_REMOUNT`.
//!
//! The kernel changes its super block without a message to this process, so the caller reports the change. Requests
//! are served as before: a read-only super block sends no writes.
//!
//! # Invariants
//! T1. A volume that was mounted read-only has not probed the kernel's cache, because nothing was written around it, and
//!     readers use it. It becomes writable only if the probe passes then.
//!
//! # Kernel counterpart
//! `fuse_reconfigure`, `sb_prepare_remount_readonly`.

use slackwater_fuse::mount::MountOptions;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::coherence::ProbeFile;
use crate::lock_order::LEAF;
use crate::mounted::point::MountPoint;
use crate::mounted::start::is_coherent;
use crate::mounted::{MountVolumeError, MountedVolume};

/// Whether the super block accepts changes.
pub(super) struct Writable {
    is_read_only: AtomicBool,
    /// T1. `None` once it has run.
    probe: Mutex<Option<Arc<ProbeFile>>>,
    /// The probe of T1 has failed.
    is_incoherent: AtomicBool,
}

impl Writable {
    pub(super) fn new(options: &MountOptions, unused_probe: Option<Arc<ProbeFile>>) -> Self {
        Self {
            is_read_only: AtomicBool::new(options.read_only),
            probe: Mutex::new(LEAF, unused_probe),
            is_incoherent: AtomicBool::new(false),
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire)
    }
}

impl MountedVolume {
    /// Records that the super block has become read-only or writable, by a remount at `point`. Further mount points are
    /// then made alike.
    ///
    /// # Errors
    /// `Incoherent`: it cannot stay writable. Make it read-only again.
    ///
    /// # Blocking
    /// While the kernel's page cache is probed, the first time that a volume becomes writable.
    pub fn remounted(&self, point: &MountPoint, read_only: bool) -> Result<(), MountVolumeError> {
        if !read_only {
            let probe = self.writable.probe.lock().take();
            if let Some(probe) = probe
                && !self.passes(probe, point)
            {
                self.writable.is_incoherent.store(true, Ordering::Release);
            }
            if self.writable.is_incoherent.load(Ordering::Acquire) {
                return Err(MountVolumeError::Incoherent);
            }
        }
        self.writable.is_read_only.store(read_only, Ordering::Release);
        Ok(())
    }

    fn passes(&self, probe: Arc<ProbeFile>, point: &MountPoint) -> bool {
        let notifier = self.session.notifier().clone();
        probe.begin();
        let visited = point.visit(move |path| is_coherent(&probe, &notifier, path));
        visited.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot test how the kernel's cache behaves: the mount stays read-only");
            false
        })
    }
}
