//! A mount that outlives its process, and its takeover from an earlier one ([`crate::takeover`]).

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use slackwater::SuperBlock;
use slackwater_fuse::Pool;
use slackwater_fuse::mount::MountOptions;
use slackwater_sync::shim::Arc;

use crate::mounted::{MountVolumeError, MountedVolume, start};
use crate::takeover::{Keeping, Kept};
use crate::tenancy::Tenancy;
use crate::volume::Volume;

impl MountedVolume {
    /// Mounts a volume as [`mount`](Self::mount) does, so that the mount can outlive this process. If `kept` has the
    /// connection of an earlier process, that is served instead: requests that were not answered are answered, and
    /// programs have noticed a pause. The caller has mounted the volume from the arena of that process, which changes
    /// nothing any more.
    ///
    /// # Errors
    /// Nothing is mounted; or the connection is not served, and lives on as long as its descriptor.
    ///
    /// # Blocking
    /// As [`mount`](Self::mount). With a connection, until its open files are open again.
    pub fn mount_kept(
        pool: &Pool,
        sb: Arc<SuperBlock>,
        mountpoint: &Path,
        options: &MountOptions,
        tenancy: Option<Arc<Tenancy>>,
        kept: Kept,
    ) -> Result<Arc<Self>, MountVolumeError> {
        let Kept { record, keeper, device, files, nodes_max, nodes } = kept;
        let keeps_nodes = match &device {
            Some(_) => record.keeps_nodes(),
            None => sb.root()?.handle().number().is_none(),
        };
        if keeps_nodes {
            if nodes_max == 0 || sb.descriptor(&sb.root()?)?.is_none() {
                return Err(MountVolumeError::NoNumbers);
            }
            record.keep_nodes();
        } else if sb.root()?.handle().number().is_none() {
            return Err(MountVolumeError::NoNumbers);
        }
        let keeping = Keeping::new(record, keeper, if keeps_nodes { nodes_max } else { 0 });
        let volume = Volume::new(&sb, tenancy, options, Some(keeping))?;
        volume.register_error_hook();
        let started = match device {
            Some(device) => {
                let started = start::take_over(pool, &volume, options, device, &files, nodes);
                // Another process may try it again.
                started.inspect_err(|_| volume.set_handed_over())
            }
            None => start::start(pool, &volume, mountpoint, options),
        };
        Self::mounted(sb, volume, mountpoint, options, started)
    }

    /// Another descriptor of the connection, for a keeper. It keeps the mount alive beyond this process.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn try_clone_device(&self) -> Result<OwnedFd, Errno> {
        self.session.try_clone_fd()
    }

    /// Stops serving, so that another process can take the mount over. Requests wait from here on. The process must end
    /// without closing anything: what its volume has in memory and in the arena belongs to the next one.
    ///
    /// # Blocking
    /// Until the requests that are being carried out have returned.
    pub fn hand_over(&self) {
        self.volume.set_handed_over();
        self.session.detach();
    }
}
