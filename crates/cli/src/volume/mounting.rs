//! A volume of the engine behind its FUSE mount: what a specification means for it, and what its errors mean for a
//! user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use slackwater::{Engine, SuperBlock};
use slackwater_backends::SystemClock;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::spec::{Transport, VolumeSpec};
use slackwater_fuse::mount::{MountError, MountOptions, Uring};
use slackwater_fuse::{MissingFeature, Pool, PoolOptions, SessionError};
use slackwater_host::Printable as _;
use slackwater_host::size;
use slackwater_mount::tenants::{TenantBy, TenantConfig, Tenants};
use slackwater_mount::{Hold, Holder, Kept, MountVolumeError, MountedError, MountedVolume, Tenancy, UmountRequest};

use crate::os::sys;

/// Holders of a busy volume that a message names.
const HOLDERS_MAX: usize = 20;

/// Determines the tenant of each write through the mounts of `engine`, and which tenants keep out of the cache. `None`:
/// one tenant without a limit, with the settings of the volume.
///
/// # Errors
/// The tenants cannot be determined on this machine.
pub(crate) fn tenancy(
    by: TenantBy,
    config: BTreeMap<PathBuf, TenantConfig>,
    engine: &Engine,
) -> Result<Option<Arc<Tenancy>>, Failure> {
    if by == TenantBy::Volume && config.is_empty() {
        return Ok(None);
    }
    let tenants = Tenants::new(by, config, Arc::new(SystemClock)).map_err(|error| Failure::usage(error.to_string()))?;
    let tenancy = Tenancy::new(tenants, engine);
    tenancy.map(Some).map_err(|error| Failure::failed(format!("cannot start the thread that watches cgroups: {error}")))
}

/// How long the kernel may cache names and attributes, and the engine those of the source. Changes made elsewhere show
/// after at most twice this time; `follow` is the limit for these and all other caches of a reader together.
pub(crate) fn cache_timeout(follow: Option<Duration>) -> Duration {
    let usual = MountOptions::default().cache_timeout;
    follow.map_or(usual, |follow| usual.min(follow / 4))
}

/// The threads that serve mounts, which end with it; `outlives` says that the mounts outlive this process.
///
/// # Errors
/// They cannot be started.
pub(crate) fn pool(outlives: bool) -> Result<Pool, Failure> {
    let options = PoolOptions { outlives, on_memory_freed: sys::give_memory_back, ..PoolOptions::default() };
    Pool::new(options).map_err(|error| Failure::failed(format!("cannot start the threads of the mount: {error}")))
}

/// Mounts `volume`, which has the data of `source`, at `mountpoint`; with `kept`, so that the mount can outlive this
/// process, or by taking it over from a predecessor.
///
/// # Errors
/// The volume is not mounted.
pub(crate) fn mount(
    pool: &Pool,
    volume: &Arc<SuperBlock>,
    source: &Path,
    mountpoint: &Path,
    options: &VolumeSpec,
    tenancy: Option<Arc<Tenancy>>,
    kept: Option<Kept>,
) -> Result<Arc<MountedVolume>, Failure> {
    let mount_options = MountOptions {
        source: source.to_string_lossy().into_owned(),
        read_only: options.read_only,
        allow_other: options.allow_other || rustix::process::geteuid().is_root(),
        nosuid: options.nosuid,
        nodev: options.nodev,
        noexec: options.noexec,
        dontcache: options.dontcache,
        uring: match options.transport {
            Transport::Auto => Uring::IfPossible,
            Transport::Uring => Uring::Always,
            Transport::Dev => Uring::Never,
        },
        cache_timeout: cache_timeout(options.follow.map(|follow| follow.0)),
        ..MountOptions::default()
    };
    let volume = Arc::clone(volume);
    let mounted = match kept {
        None => MountedVolume::mount(pool, volume, mountpoint, &mount_options, tenancy),
        Some(kept) => MountedVolume::mount_kept(pool, volume, mountpoint, &mount_options, tenancy, kept),
    };
    mounted.inspect(|mounted| apply(mounted, options)).map_err(|error| not_mounted(mountpoint, &error))
}

/// Applies the options that can change, from now on.
pub(crate) fn apply(mounted: &MountedVolume, options: &VolumeSpec) {
    mounted.set_dontcache(options.dontcache);
    mounted.bdi().set_dirty_limit(options.dirty_limit.map(|limit| limit.0));
    mounted.bdi().set_dirty_expire(options.dirty_expire.map(|age| age.0));
}

/// Waits until no program can reach it and everything is written back.
///
/// # Blocking
/// As described.
pub(crate) fn wait_ended(mounted: &MountedVolume) {
    if let Err(error) = mounted.wait_ended(UmountRequest::default()) {
        tracing::error!(%error, "the volume did not end cleanly");
    }
}

/// The features that the kernel lacks, and what each affects.
pub(crate) fn missing_features(mounted: &MountedVolume) -> Vec<String> {
    let text =
        |missing: &MissingFeature| format!("this kernel lacks {}, which affects {}", missing.feature, missing.affects);
    mounted.missing_features().iter().map(text).collect()
}

/// The failure of a sync or an unmount at `mountpoint`.
pub(crate) fn failed_at(mountpoint: &Path, error: &MountedError) -> Failure {
    let mountpoint = mountpoint.printable();
    let holders = |failure: Failure, holders: &[Holder]| {
        let line = |holder: &Holder| {
            let (pid, command, path) = (holder.pid, holder.command.printable(), holder.path.printable());
            match holder.how {
                Hold::Use => format!("pid {pid} ({command}): {path}"),
                Hold::Mount => format!("mounted at {path} where pid {pid} ({command}) is"),
            }
        };
        let failure = holders.iter().take(HOLDERS_MAX).fold(failure, |failure, holder| failure.advise(line(holder)));
        match holders.len().saturating_sub(HOLDERS_MAX) {
            0 => failure,
            more => failure.advise(format!("and {more} more")),
        }
    };
    match error {
        MountedError::Busy { holders: found, .. } => {
            let failure = holders(Failure::new(Reason::Busy, format!("{mountpoint} is in use by")), found);
            failure.advise("end them, or use --force: their later requests fail, and what they wrote is kept")
        }
        MountedError::Elsewhere { holders: found, .. } => {
            let what = format!(
                "{mountpoint} is unmounted, but the volume is in use elsewhere: by open files, as a bind mount, \
                    or in another namespace"
            );
            holders(Failure::busy(what), found)
                .advise("close the files and unmount it there, or use --force, which ends it there too")
        }
        MountedError::Deadline { dirty_bytes, cause } => {
            let left = size::text(*dirty_bytes);
            let why = because(*cause);
            let what = format!("the deadline passed with {left} unwritten{why}; {mountpoint} is still mounted");
            Failure::new(Reason::Deadline, what).advise(
                "nothing is lost; try again with a longer --deadline, or use --discard to see what it would lose",
            )
        }
        MountedError::Left { dirty_bytes, cause } => {
            let (left, why) = (size::text(*dirty_bytes), because(*cause));
            let what = format!("{mountpoint} is unmounted, but {left} could not be written back{why}");
            Failure::new(Reason::Left, what)
        }
        MountedError::InProgress => {
            Failure::busy(format!("another unmount of {mountpoint} is running")).advise("wait for it")
        }
        MountedError::Unmount(error) => Failure::failed(format!("cannot unmount {mountpoint}: {error}")),
        error @ (MountedError::Volume(_) | MountedError::File(_) | MountedError::Mapped(_)) => {
            Failure::failed(format!("{mountpoint}: {error}")).advise("the data is kept and retried")
        }
    }
}

/// Why data is unwritten, in parentheses; empty if no write has failed.
fn because(cause: Option<slackwater::ErrorKind>) -> String {
    cause.map_or_else(String::new, |kind| format!(" (the last write failed: {kind})"))
}

/// The failure of a mount at `mountpoint`.
pub(crate) fn not_mounted(mountpoint: &Path, error: &MountVolumeError) -> Failure {
    let failure = Failure::failed(format!("cannot mount at {}: {error}", mountpoint.printable()));
    if matches!(error, MountVolumeError::Session(SessionError::Ring(_))) {
        return failure.advise("or mount it without --transport uring");
    }
    if matches!(error, MountVolumeError::NoNumbers) {
        return failure.advise("use mount --keep without a daemon, which can keep such a source too");
    }
    let MountVolumeError::Mount(error) = error else { return failure };
    if matches!(error, MountError::NoPermission(_)) {
        failure.advise("become root, or own the mount point and install fuse3 for fusermount3")
    } else if matches!(error, MountError::Fusermount(_)) {
        failure.advise("you must own the mount point; --allow-other needs user_allow_other in /etc/fuse.conf")
    } else {
        failure
    }
}
