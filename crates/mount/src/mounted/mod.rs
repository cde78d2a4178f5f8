//! An engine volume mounted at a path: mount, sync and unmount.
//!
//! # Steps of an unmount
//! 1. Busy check: if the mount is in use, the unmount fails at once and names the processes.
//! 2. Flush while the volume keeps working, beginning with stores to shared mappings that the kernel holds.
//! 3. Freeze: changes wait from here on.
//! 4. Flush the rest.
//! 5. umount2(2). If the mount came into use meanwhile, the kernel reports it: thaw, and fail as in step 1.
//! 6. The session ends: the kernel has no reference left.
//! 7. Drop all nodes and handles; the engine unmounts its volume.
//!
//! The deadline can end an unmount only before step 5, with the volume unchanged. After an umount(2) by another
//! process, only steps 6 and 7 run: the flush comes then, and nothing is lost. The same applies to a volume that is
//! mounted only elsewhere.
//!
//! With force, step 1 is omitted, all requests get EIO from step 3 on, and step 5 detaches the mount and aborts the
//! connection, in every mount namespace. A failure before that, such as the deadline, does not keep the mount: the
//! connection is aborted without the rest of the flush, and the unmount ends with `Left`. The engine keeps the data not
//! yet written back in an arena that a later process can recover, and [`MountedVolume::wait_ended`] continues to write
//! it back.
//!
//! # Lock order
//! `UMOUNT` is the first of all locks. An unmount only tries it, one with force until its deadline; `wait_ended` waits
//! for it.

mod busy;
mod deadline;
mod ended;
mod error;
mod flush;
mod holders;
mod kept;
mod namespaces;
mod places;
mod point;
mod processes;
mod remount;
mod start;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::minor;
use rustix::mount::UnmountFlags;
use slackwater::{BackingDevInfo, ErrorKind, SuperBlock, UmountError, UmountOptions};
use slackwater_sync::Completion;
use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::lock_order::{LEAF, UMOUNT};
use crate::mounted::deadline::Deadline;
use crate::mounted::flush::flush_mapped;
use crate::mounted::remount::Writable;
use crate::mounted::start::Started;
use crate::tenancy::Tenancy;
use crate::volume::Volume;
use slackwater_fuse::mount::{MountOptions, UnmountError};
use slackwater_fuse::{MissingFeature, Pool, RingError, Session, abort_connection, is_closed};
use slackwater_host::Printable as _;

pub use error::{MountVolumeError, MountedError};
pub use holders::{Hold, Holder};
pub use point::MountPoint;

/// Interval of progress reports, and of polls for external changes.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time without a progress report.
const SLICE: Duration = Duration::from_secs(1);
/// How long the kernel may take to drop its last reference after umount2(2). After that the volume is assumed to be
/// mounted elsewhere as well.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// A volume mounted at a path.
pub struct MountedVolume {
    sb: Arc<SuperBlock>,
    volume: Arc<Volume>,
    session: Session,
    missing: Vec<MissingFeature>,
    mountpoint: PathBuf,
    /// Never empty: see [`places`].
    places: Mutex<Vec<MountPoint>>,
    options: MountOptions,
    writable: Writable,
    /// `st_dev` of its files.
    dev: u64,
    umount: Mutex<()>,
    discards: AtomicBool,
}

/// Options of an unmount.
#[derive(Copy, Clone, Debug, Default)]
pub struct UmountRequest {
    /// Give up after this time, with nothing changed. With `force` the unmount ends then, and the mount is removed.
    pub deadline: Option<Duration>,
    /// Give up as at the deadline if nothing has been written back for this long.
    pub stall: Option<Duration>,
    /// Unmount even if it is in use: its programs get EIO from then on. Written data is flushed.
    pub force: bool,
    /// Discard data not yet written back; [`SuperBlock::would_lose`] lists it.
    pub discard: bool,
}

/// Progress of an unmount.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Progress {
    /// The current step.
    pub step: Step,
    /// Bytes not yet written back.
    pub bytes_left: u64,
    /// The last write-back error, if the last attempt failed.
    pub failing: Option<ErrorKind>,
}

/// Steps of an unmount that are reported.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Step {
    /// Flushing while the volume keeps working.
    Flushing,
    /// Flushing the rest while changes wait.
    FlushingTheRest,
    /// Detached; the engine unmounts the volume.
    Ending,
}

impl MountedVolume {
    /// Mounts a volume on a directory, served by the pool's threads. `tenancy` finds the tenants that are charged; with
    /// `None` everything is charged to the engine's root tenant.
    ///
    /// # Errors
    /// Nothing is mounted.
    ///
    /// # Blocking
    /// Until the kernel has started the session and its page cache has been probed.
    pub fn mount(
        pool: &Pool,
        sb: Arc<SuperBlock>,
        mountpoint: &Path,
        options: &MountOptions,
        tenancy: Option<Arc<Tenancy>>,
    ) -> Result<Arc<Self>, MountVolumeError> {
        let volume = Volume::new(&sb, tenancy, options, None)?;
        let started = start::start(pool, &volume, mountpoint, options);
        Self::mounted(sb, volume, mountpoint, options, started)
    }

    fn mounted(
        sb: Arc<SuperBlock>,
        volume: Arc<Volume>,
        mountpoint: &Path,
        options: &MountOptions,
        started: Result<Started, MountVolumeError>,
    ) -> Result<Arc<Self>, MountVolumeError> {
        let Started { session, dev, missing, unused_probe } = started.inspect_err(|_| {
            if !volume.is_handed_over() {
                volume.tear_down();
            }
        })?;
        volume.register_prune_hook();
        let umount = Mutex::new(UMOUNT, ());
        let places = Mutex::new(LEAF, vec![MountPoint::here(mountpoint.to_owned())]);
        let (mountpoint, discards, options) = (mountpoint.to_owned(), AtomicBool::new(false), options.clone());
        let writable = Writable::new(&options, unused_probe);
        Ok(Arc::new(Self {
            sb,
            volume,
            session,
            missing,
            mountpoint,
            places,
            options,
            writable,
            dev,
            umount,
            discards,
        }))
    }

    /// The first mount point.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The engine's volume.
    pub fn super_block(&self) -> &Arc<SuperBlock> {
        &self.sb
    }

    /// Features that this kernel does not have.
    pub fn missing_features(&self) -> &[MissingFeature] {
        &self.missing
    }

    /// The number of CPUs whose requests come over io_uring: all or none.
    ///
    /// # Errors
    /// Why requests come over the device.
    pub fn rings(&self) -> Result<usize, RingError> {
        self.session.rings()
    }

    /// Number of open files, as far as the kernel has reported closes.
    pub fn open_files(&self) -> usize {
        self.volume.open_files()
    }

    /// Bytes of parked writes and of waiting pages from mappings. The dirty counts and the arena do not include them.
    pub fn parked_bytes(&self) -> usize {
        self.volume.parked_bytes()
    }

    /// Number of parked writes, without one that is being tried at this moment.
    pub fn parked_writes(&self) -> usize {
        self.volume.parked_writes()
    }

    /// Number of completed writes whose writers are throttled, so that memory fills no faster than the backend writes
    /// it.
    pub fn paused_writes(&self) -> usize {
        self.volume.paused_writes()
    }

    /// Processes that use the mount, as far as this user may see them: working and root directories, programs, open
    /// files, mappings.
    ///
    /// # Blocking
    /// Never on the volume: only `/proc` is read.
    pub fn holders(&self) -> Vec<Holder> {
        holders::of(self.dev)
    }

    /// Makes all data written before the call durable, including stores to mappings.
    ///
    /// # Errors
    /// The first failure; data that could not be written stays dirty and is retried.
    ///
    /// # Blocking
    /// For the backend. The caller must not be in a handler.
    pub fn sync(&self) -> Result<(), MountedError> {
        flush_mapped(&self.volume, self.session.notifier()).map_err(MountedError::Mapped)?;
        Ok(self.sb.sync()?)
    }

    /// Unmounts the volume, in the steps listed in the module's documentation.
    ///
    /// # Errors
    /// The volume is still mounted and works, and nothing is lost. Exceptions are `Elsewhere`, and `Left` after an
    /// unmount with force.
    ///
    /// # Blocking
    /// For the backend, at most until the deadline.
    pub fn umount(&self, request: UmountRequest, progress: &dyn Fn(Progress)) -> Result<(), MountedError> {
        self.note_discard(request); // ends a flush that no caller waits for any more
        let deadline = Deadline::begin(&self.sb, request);
        let unmounted = self.umount_steps(request, &deadline, progress);
        let is_late = matches!(unmounted, Err(MountedError::Deadline { .. } | MountedError::InProgress));
        let is_left = request.force && !request.discard && is_late && self.is_aborted();
        if is_left { Err(self.left_error()) } else { unmounted }
    }

    fn umount_steps(
        &self,
        request: UmountRequest,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        let Some(_only) = self.umount.try_lock().or_else(|| self.lock_forced(request, deadline, progress)) else {
            return Err(MountedError::InProgress);
        };
        if !self.is_aborted() && (request.force || self.is_mounted_at(&self.place())) {
            match self.flush_and_detach(request, deadline, progress) {
                Err(error) if request.force => {
                    let place = self.place();
                    let mountpoint = place.path().printable();
                    tracing::warn!(%mountpoint, %error, "unmounting before the flush is complete");
                    self.abort();
                }
                detached => detached?,
            }
        }
        let detached = self.wait_detached(request.force, deadline, progress);
        self.note_discard(request);
        detached?;
        self.end(request, deadline, progress)
    }

    /// Waits for another unmount to end and takes the lock, if the request has force. At the deadline, aborts the
    /// connection without the lock.
    fn lock_forced(
        &self,
        request: UmountRequest,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Option<MutexGuard<'_, ()>> {
        let pause = Completion::new();
        while request.force && !deadline.has_passed() {
            self.report(Step::Flushing, progress);
            pause.wait_timeout(POLL_INTERVAL);
            if let Some(only) = self.umount.try_lock() {
                return Some(only);
            }
        }
        if request.force {
            self.abort();
        }
        None
    }

    /// Aborts the connection at once, in every mount: later requests fail, and nothing is flushed. The engine keeps the
    /// data not yet written back, as with `Left`.
    pub fn abort(&self) {
        self.volume.set_refusing(true);
        if let Err(error) = self.detach(true) {
            tracing::warn!(%error, "cannot detach the mount");
        }
    }

    /// Lets a later end of the volume discard its data. Only once no process can write any more, since the unmount may
    /// still fail.
    fn note_discard(&self, request: UmountRequest) {
        if request.discard && self.is_aborted() {
            self.discards.store(true, Ordering::Release);
        }
    }

    /// Sets whether data stays out of the cache, from the next request on, unless the file or tenant says otherwise.
    /// Cached data stays in the cache, and a program that reads a file through the kernel's page cache does so until it
    /// closes the file.
    pub fn set_dontcache(&self, dontcache: bool) {
        self.volume.set_dontcache(dontcache);
    }

    /// The device behind it, whose limits can be changed.
    pub fn bdi(&self) -> &BackingDevInfo {
        self.volume.bdi()
    }

    /// Steps 1 to 5.
    fn flush_and_detach(
        &self,
        request: UmountRequest,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        if !request.force {
            self.check_busy(&self.place())?;
        }
        if request.discard {
            // Does not wait for any flush: the backend may be dead.
            self.volume.set_refusing(request.force);
            return self.detach(request.force).inspect_err(|_| self.volume.set_refusing(false));
        }
        self.flush(Step::Flushing, deadline, progress)?;
        self.volume.set_refusing(request.force);
        let detached = self.freeze_and_detach(request.force, deadline, progress);
        if detached.is_err() {
            self.volume.set_refusing(false);
            self.sb.thaw();
        }
        detached
    }

    fn freeze_and_detach(
        &self,
        force: bool,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        if force {
            // Requests get EIO. Pages from mappings are still accepted for this flush, and none after it.
            self.flush(Step::FlushingTheRest, deadline, progress)?;
        }
        let report = || self.report(Step::FlushingTheRest, progress);
        deadline.retry(|until| self.sb.freeze_writes(until, &report))?;
        deadline.retry(|_| {
            report();
            self.sb.flush_until(deadline.slice(SLICE))
        })?;
        if !force {
            self.wait_for_calls(deadline, &report)?;
        }
        self.detach(force)
    }

    /// Number of calls that wait for the source, or for a thread to do so.
    pub fn calls(&self) -> usize {
        self.volume.calls()
    }

    /// Step 5.
    fn detach(&self, force: bool) -> Result<(), MountedError> {
        if !force {
            return self.unmount_when_unused(&self.place());
        }
        let mut detached = Ok(());
        for place in self.mounted_places() {
            detached = detached.and(match rustix::process::geteuid().is_root() {
                // MNT_FORCE also aborts the connection.
                true => place.unmount_with(UnmountFlags::FORCE | UnmountFlags::DETACH).map_err(UnmountError::Kernel),
                false => place.unmount(true),
            });
        }
        if let Err(error) = abort_connection(minor(self.dev), || !self.is_aborted()) {
            tracing::debug!(%error, "cannot abort the connection: closing it");
            self.session.cut();
        }
        detached.map_err(MountedError::Unmount)
    }

    /// Unmounts at one place; waits a moment for users that are about to leave.
    fn unmount_when_unused(&self, place: &MountPoint) -> Result<(), MountedError> {
        let begun = self.sb.now();
        loop {
            match place.unmount(false) {
                Ok(()) => {
                    self.session.end_if_closed();
                    return Ok(());
                }
                Err(UnmountError::Busy(_)) => self.wait_if_transient(place, begun)?,
                // Another unmount was faster.
                Err(UnmountError::NotMounted(_)) if self.session.wait_ended_timeout(RELEASE_WAIT).is_some() => {
                    return Ok(());
                }
                Err(error) => return Err(MountedError::Unmount(error)),
            }
        }
    }

    /// Step 6.
    fn wait_detached(&self, force: bool, deadline: &Deadline, progress: &dyn Fn(Progress)) -> Result<(), MountedError> {
        let begun = self.sb.now();
        while self.session.wait_ended_timeout(POLL_INTERVAL / 50).is_none() {
            self.report(Step::Ending, progress);
            let waited = self.sb.now().since(begun);
            if self.is_aborted() {
                if deadline.has_passed() && waited >= if force { POLL_INTERVAL } else { RELEASE_WAIT } {
                    return Err(self.deadline_error()); // calls that wait for the backend keep their inodes in use
                }
            } else if waited >= RELEASE_WAIT {
                self.volume.set_refusing(false);
                self.sb.thaw();
                return Err(self.elsewhere_error());
            }
        }
        Ok(())
    }

    /// Whether the connection is closed, or about to be; earlier calls may still run.
    fn is_aborted(&self) -> bool {
        self.session.ended().is_some() || self.session.try_clone_fd().is_ok_and(|fd| is_closed(fd.as_fd()))
    }

    /// Step 7.
    fn end(
        &self,
        request: UmountRequest,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        self.volume.tear_down();
        let pause = Completion::new();
        loop {
            self.report(Step::Ending, progress);
            let left = deadline.until().map(|until| until.since(self.sb.now()).max(POLL_INTERVAL));
            // No program can write any more, so an attempt that ends early changes nothing.
            let left = Some(left.map_or(SLICE, |left| left.min(SLICE)));
            let options = UmountOptions { deadline: left, discard: request.discard };
            match self.sb.umount(options) {
                Ok(()) | Err(UmountError::NotMounted) => return Ok(()),
                Err(UmountError::Deadline { .. }) if !deadline.has_passed() => {}
                // The last call is about to release its references.
                Err(UmountError::Busy { .. }) if !deadline.has_passed() => {
                    pause.wait_timeout(POLL_INTERVAL / 20);
                }
                Err(UmountError::Busy { .. }) if request.force => return Err(self.deadline_error()),
                Err(UmountError::Busy { .. }) => return Err(self.busy_error()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn report(&self, step: Step, progress: &dyn Fn(Progress)) {
        let status = self.sb.status();
        progress(Progress { step, bytes_left: status.bytes_left(), failing: status.failing });
    }
}

impl std::fmt::Debug for MountedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountedVolume").field("mountpoint", &self.mountpoint).finish_non_exhaustive()
    }
}
