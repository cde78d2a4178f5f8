//! Starting a mount: mount, serve, and probe the kernel's page cache.

use std::os::fd::OwnedFd;
use std::path::Path;

use slackwater::backend::Found;
use slackwater_sync::shim::Arc;

use crate::coherence::ProbeFile;
use crate::mounted::MountVolumeError;
use crate::takeover::RecordError;
use crate::volume::{Served, Volume};
use slackwater_fuse::abi::{ROOT_ID, init};
use slackwater_fuse::mount::{self, MountOptions, Uring};
use slackwater_fuse::{DevFuse, InitOptions, MissingFeature, Notification, Notifier, Pool, Session};
use slackwater_host::device_at;

/// Missing if the probe fails.
const COHERENCE: MissingFeature = MissingFeature {
    feature: "cache that follows writes around it",
    affects: "files open for reading in the kernel's cache: each of their reads is a request, and slower",
};

/// A mount that is being served.
pub(super) struct Started {
    pub(super) session: Session,
    /// `st_dev` of its files.
    pub(super) dev: u64,
    /// Features that this kernel does not have.
    pub(super) missing: Vec<MissingFeature>,
    /// The probe, if it has not run because the mount is read-only.
    pub(super) unused_probe: Option<Arc<ProbeFile>>,
}

/// Mounts a volume and serves it.
pub(super) fn start(
    pool: &Pool,
    volume: &Arc<Volume>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Started, MountVolumeError> {
    let device = mount::mount(mountpoint, options)?;
    let start = || -> Result<Started, MountVolumeError> {
        let transport = DevFuse::new(device).map_err(MountVolumeError::Device)?;
        let probe = Arc::new(ProbeFile::new());
        let served = Served { volume: Arc::clone(volume), probe: Arc::clone(&probe) };
        let default = InitOptions::default();
        let uring = if options.uring == Uring::Never { 0 } else { init::OVER_IO_URING };
        let options_of_session = InitOptions { wanted: default.wanted | init::EXPORT_SUPPORT | uring, ..default };
        let session = Session::start(pool, transport, &options_of_session, Arc::new(served))?;
        let dev = device_at(mountpoint).map_err(MountVolumeError::Device)?;
        let mut missing = session.negotiated().missing.clone();
        if options.read_only {
            // Nothing is written around the cache.
            probe.end();
            volume.trust_kernel_cache();
        } else if is_coherent(&probe, session.notifier(), mountpoint) {
            volume.trust_kernel_cache();
        } else {
            missing.push(COHERENCE);
        }
        if options.uring == Uring::Always {
            // The kernel has answered requests by now, so it has taken or refused the entries.
            session.rings()?;
        }
        if let Some(keeping) = volume.keeping() {
            keeping.record.agree(session.negotiated(), dev, !missing.contains(&COHERENCE));
        }
        Ok(Started { session, dev, missing, unused_probe: options.read_only.then_some(probe) })
    };
    start().inspect_err(|_| {
        // Unmount rather than leave a mount that hangs.
        let _ = mount::unmount(mountpoint, true);
    })
}

/// Serves the connection of an earlier process, whose requests without an answer come again.
pub(super) fn take_over(
    pool: &Pool,
    volume: &Arc<Volume>,
    options: &MountOptions,
    device: OwnedFd,
    files: &[u64],
    nodes: Vec<(u64, Found)>,
) -> Result<Started, MountVolumeError> {
    let keeping = volume.keeping().ok_or(RecordError::Damaged("there is none"))?;
    let (negotiated, dev, is_coherent) = keeping.record.agreed()?;
    let transport = DevFuse::new(device).map_err(MountVolumeError::Device)?;
    volume.inherit(files, nodes);
    if is_coherent || options.read_only {
        volume.trust_kernel_cache();
    }
    let missing = negotiated.missing.clone();
    let probe = Arc::new(ProbeFile::new());
    probe.end();
    let served = Served { volume: volume.clone(), probe: Arc::clone(&probe) };
    let session = Session::take_over(pool, transport, negotiated, Arc::new(served))?;
    Ok(Started { session, dev, missing, unused_probe: options.read_only.then_some(probe) })
}

/// Runs the probe.
pub(super) fn is_coherent(probe: &Arc<ProbeFile>, notifier: &Notifier, mountpoint: &Path) -> bool {
    let outcome = probe.run(mountpoint);
    // The kernel need not keep the name. A thread that holds the root's lock may wait for the backend, so another
    // thread sends this.
    let name = probe.name().to_owned();
    notifier.queue(Notification::InvalEntry { parent: ROOT_ID, name });
    outcome.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot test how the kernel's cache behaves: readers bypass it");
        false
    })
}
