//! The FUSE front end; the only file of the command that uses it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use slackwater::{Engine, SuperBlock};
use slackwater_backends::SystemClock;
use slackwater_fuse::Errno;
pub(crate) use slackwater_fuse::MissingFeature;
use slackwater_fuse::mount::{MountError, MountOptions, Uring};
use slackwater_fuse::{Pool, PoolOptions, SessionError};
use slackwater_host::Printable as _;
use slackwater_host::size;
pub(crate) use slackwater_mount::tenants::TenantBy;
use slackwater_mount::tenants::{TenantConfig, Tenants};
use slackwater_mount::{Hold, Holder, MountVolumeError, MountedError, MountedVolume};
pub(crate) use slackwater_mount::{Kept, MountPoint, Tenancy, UmountRequest};

use crate::control::protocol::Writers;
use crate::exit::{Failure, Reason};
use crate::os::sys;
use crate::spec::{Transport, VolumeSpec};

/// Holders of a busy volume that a message names.
const HOLDERS_MAX: usize = 20;

/// Determines the tenant of each write through front ends of `engine`, and which tenants keep out of the cache. `None`:
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

/// The threads that serve front ends; `outlives` says that the mounts outlive this process.
///
/// # Errors
/// They cannot be started.
pub(crate) fn pool(outlives: bool) -> Result<Arc<Pool>, Failure> {
    let options = PoolOptions { outlives, on_memory_freed: sys::give_memory_back, ..PoolOptions::default() };
    let pool = Pool::new(options);
    pool.map(Arc::new).map_err(|error| Failure::failed(format!("cannot start the threads of the mount: {error}")))
}

/// A mounted volume.
pub(crate) struct FrontEnd {
    mounted: Arc<MountedVolume>,
    /// Its threads end with the last front end.
    _pool: Arc<Pool>,
}

impl FrontEnd {
    /// Mounts `volume`, which has the data of `source`, at `mountpoint`; with `kept`, so that the mount can outlive this
    /// process, or by taking it over from a predecessor.
    pub(crate) fn open(
        pool: &Arc<Pool>,
        volume: &Arc<SuperBlock>,
        source: &Path,
        mountpoint: &Path,
        options: &VolumeSpec,
        tenancy: Option<Arc<Tenancy>>,
        kept: Option<Kept>,
    ) -> Result<Arc<Self>, Failure> {
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
        let mounted = mounted.map_err(|error| not_mounted(mountpoint, &error))?;
        let front_end = Self { mounted, _pool: Arc::clone(pool) };
        front_end.apply(options);
        Ok(Arc::new(front_end))
    }

    /// The number of CPUs whose requests come over io_uring, or why they come over /dev/fuse.
    pub(crate) fn rings(&self) -> Result<usize, String> {
        self.mounted.rings().map_err(|error| error.to_string())
    }

    /// The features that the kernel lacks.
    pub(crate) fn missing(&self) -> &[MissingFeature] {
        self.mounted.missing_features()
    }

    /// The features that the kernel lacks, and what each affects.
    pub(crate) fn missing_features(&self) -> Vec<String> {
        let text = |missing: &MissingFeature| {
            format!("this kernel lacks {}, which affects {}", missing.feature, missing.affects)
        };
        self.missing().iter().map(text).collect()
    }

    /// Makes everything written so far durable, shared mappings included.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.mounted.sync().map_err(|error| self.failure(&error))
    }

    /// Unmounts, and calls `tick` at least once per second meanwhile, unless the kernel does not return from a call.
    ///
    /// # Blocking
    /// For the source, at most until the deadline.
    pub(crate) fn umount(&self, request: UmountRequest, tick: &dyn Fn()) -> Result<(), Failure> {
        let outcome = self.mounted.umount(request, &|_| tick());
        outcome.map_err(|error| self.failure(&error))
    }

    /// Removes it from every mount namespace at once, without a flush.
    pub(crate) fn abort(&self) {
        self.mounted.abort();
    }

    /// A duplicate of the connection's descriptor, for the keeper.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn try_clone_device(&self) -> io::Result<OwnedFd> {
        Ok(self.mounted.try_clone_device()?)
    }

    /// Stops answering, without an unmount, for a successor.
    ///
    /// # Blocking
    /// For the requests that are being answered.
    pub(crate) fn hand_over(&self) {
        self.mounted.hand_over();
    }

    /// Calls `hook` once, when no program can reach it any more. The hook must not block.
    pub(crate) fn on_unmounted(&self, hook: impl FnOnce() + Send + 'static) {
        self.mounted.on_unmounted(hook);
    }

    /// Applies the options that can change, from now on.
    pub(crate) fn apply(&self, options: &VolumeSpec) {
        self.mounted.set_dontcache(options.dontcache);
        self.mounted.bdi().set_dirty_limit(options.dirty_limit.map(|limit| limit.0));
        self.mounted.bdi().set_dirty_expire(options.dirty_expire.map(|age| age.0));
    }

    /// Mounts it at `place` as well.
    ///
    /// # Errors
    /// `NotMounted`, if the volume has ended, or this user cannot mount a volume twice.
    pub(crate) fn attach(&self, place: &MountPoint) -> Result<(), Failure> {
        self.mounted.attach(place).map_err(|error| {
            let failure = not_mounted(place.path(), &error);
            let is_impossible = matches!(
                &error,
                MountVolumeError::Device(Errno::NOTCONN)
                    | MountVolumeError::Mount(MountError::Kernel(Errno::NOTCONN) | MountError::NoPermission(_))
            );
            if is_impossible { Failure { reason: Reason::NotMounted, ..failure } } else { failure }
        })
    }

    /// Records that it has become read-only or writable, by a remount at `place`.
    ///
    /// # Errors
    /// It cannot stay writable.
    pub(crate) fn remounted(&self, place: &MountPoint, read_only: bool) -> Result<(), Failure> {
        self.mounted.remounted(place, read_only).map_err(|error| {
            Failure::failed(format!("cannot make {} writable: {error}", place.path().printable()))
                .advise("unmount it, and mount it without ro")
        })
    }

    /// Counts a place where a predecessor has mounted it.
    pub(crate) fn add_place(&self, place: &MountPoint) {
        self.mounted.add_place(place);
    }

    /// Takes over the places of a predecessor.
    pub(crate) fn set_places(&self, places: Vec<MountPoint>) {
        self.mounted.set_places(places);
    }

    /// The place that an unmount removes.
    pub(crate) fn place(&self) -> MountPoint {
        self.mounted.place()
    }

    /// Makes `place` the one that an unmount removes.
    pub(crate) fn move_to(&self, place: MountPoint) {
        self.mounted.move_to(place);
    }

    /// The places where slackwater has mounted it; another program may have unmounted it there.
    pub(crate) fn places(&self) -> Vec<MountPoint> {
        self.mounted.places()
    }

    /// Those of the places where it is mounted now.
    pub(crate) fn mounted_places(&self) -> Vec<MountPoint> {
        self.mounted.mounted_places()
    }

    /// Whether it is mounted at `place`, by whatever program.
    pub(crate) fn is_mounted_at(&self, place: &MountPoint) -> bool {
        self.mounted.is_mounted_at(place)
    }

    /// Flushes, and removes it from `place`; it stays mounted at its other places.
    ///
    /// # Blocking
    /// For the source, at most until the deadline.
    pub(crate) fn take_away(&self, place: &MountPoint, request: UmountRequest) -> Result<(), Failure> {
        self.mounted.take_away(place, request, &|_| {}).map_err(|error| failure_at(place.path(), &error))
    }

    /// Detaches it from `place`; it ends when it is mounted nowhere and no program uses it any more.
    pub(crate) fn detach_from(&self, place: &MountPoint) -> Result<(), Failure> {
        self.mounted.detach_from(place).map_err(|error| failure_at(place.path(), &error))
    }

    /// Major and minor number of its file system, with a colon.
    pub(crate) fn device(&self) -> String {
        self.mounted.device()
    }

    /// The writers that wait here now; the volume has the total time.
    pub(crate) fn waiting_writers(&self) -> Writers {
        Writers {
            paused_ms: 0,
            paused: self.mounted.paused_writes() as u64,
            parked: self.mounted.parked_writes() as u64,
            parked_bytes: self.mounted.parked_bytes() as u64,
            refused_mapped_bytes: self.mounted.refused_bytes(),
        }
    }

    /// Whether no program can reach it any more.
    pub(crate) fn is_unmounted(&self) -> bool {
        self.mounted.is_unmounted()
    }

    /// Waits until no program can reach it any more.
    ///
    /// # Blocking
    /// As described.
    pub(crate) fn wait_unmounted(&self) {
        self.mounted.wait_unmounted();
    }

    /// Waits until no program can reach it and everything is written back.
    ///
    /// # Blocking
    /// As described.
    pub(crate) fn wait_ended(&self) {
        if let Err(error) = self.mounted.wait_ended(UmountRequest::default()) {
            tracing::error!(%error, "the volume did not end cleanly");
        }
    }

    /// As [`wait_ended`](Self::wait_ended), but no longer than `deadline` and `stall` of `request` allow.
    ///
    /// # Errors
    /// `Left`, if the limit passes first.
    pub(crate) fn wait_ended_within(&self, request: UmountRequest) -> Result<(), Failure> {
        match self.mounted.wait_ended(request) {
            Err(error @ MountedError::Left { .. }) => Err(self.failure(&error)),
            // `wait_ended` reports any other error.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn failure(&self, error: &MountedError) -> Failure {
        failure_at(self.mounted.place().path(), error)
    }
}

/// The failure of an unmount at `mountpoint`.
fn failure_at(mountpoint: &Path, error: &MountedError) -> Failure {
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

fn not_mounted(mountpoint: &Path, error: &MountVolumeError) -> Failure {
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
