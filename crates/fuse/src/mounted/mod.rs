//! A volume of the engine, mounted at a path: made, synced and taken away.
//!
//! # Steps of an unmount
//! 1. Busy check: a mount that is in use ends it at once, with the names of who uses it.
//! 2. Flush, while the volume works as before; what the kernel holds of shared mappings first.
//! 3. Freeze: changes wait from here on.
//! 4. Flush the rest.
//! 5. umount2(2). If somebody came in meanwhile, the kernel says so: thaw, and back to before.
//! 6. The session ends: the kernel has no reference left.
//! 7. What the kernel knew and had open is let go, and the engine unmounts its volume.
//!
//! The deadline can end it before step 5 only, with the volume as it was. An umount(2) by anybody else enters at step 6:
//! the flush comes then, and nothing is lost. So does a volume that is mounted elsewhere only.
//!
//! With force step 1 is left out, all requests get EIO from step 3 on, and step 5 detaches the mount and aborts the
//! connection, in every mount namespace. Whatever fails before, the deadline first of all, is then no reason to stay: the
//! connection is aborted without the rest of the flush, and the unmount ends with `Left`. The engine keeps the data that the
//! backend does not have, in an arena that a later process can recover, and [`MountedVolume::wait_ended`] goes on writing it back.
//!
//! # Lock order
//! `UMOUNT` is the first of all. An unmount tries it, one with force until its deadline; `wait_ended` waits for it.

mod busy;
mod deadline;
mod error;
mod flush;
mod holders;
mod namespaces;
mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::minor;
use rustix::mount::UnmountFlags;
use slackwater::{ErrorKind, SuperBlock, UmountError, UmountOptions};
use slackwater_sync::Completion;
use slackwater_sync::lock::{Mutex, MutexGuard};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};

use crate::fusectl::abort_connection;
use crate::mount::{self, MountOptions, UnmountError};
use crate::mounted::busy::dev_of;
use crate::mounted::deadline::Deadline;
use crate::mounted::flush::flush_mapped;
use crate::mounted::start::Started;
use crate::negotiate::MissingFeature;
use crate::pool::Pool;
use crate::printable::Printable as _;
use crate::session::Session;
use crate::tenancy::Tenancy;
use crate::volume::Volume;
use crate::volume::lock_order::UMOUNT;

pub use error::{MountVolumeError, MountedError};
pub use holders::{Hold, Holder};

/// Time between two reports of progress, and two looks at what changes by itself.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the kernel may take to drop its last reference after umount2(2), before it is taken for granted that
/// the volume is mounted somewhere else as well.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// One volume, mounted at a path.
pub struct MountedVolume {
    sb: Arc<SuperBlock>,
    volume: Arc<Volume>,
    session: Session,
    missing: Vec<MissingFeature>,
    mountpoint: PathBuf,
    /// `st_dev` of its files.
    dev: u64,
    umount: Mutex<()>,
    discards: AtomicBool,
}

/// How to unmount.
#[derive(Copy, Clone, Debug, Default)]
pub struct UmountRequest {
    /// Give up, with nothing changed, when this much time has passed. With `force` it ends then, with the mount gone.
    pub deadline: Option<Duration>,
    /// Give up as at the deadline when nothing has reached the backend for this long.
    pub stall: Option<Duration>,
    /// Also if it is in use: programs that use it get EIO from then on. What was written is flushed.
    pub force: bool,
    /// Throw away what is not in the backend; [`SuperBlock::would_lose`] names it.
    pub discard: bool,
}

/// How far an unmount is.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Progress {
    /// What it is doing.
    pub step: Step,
    /// Bytes that are not in the backend yet.
    pub bytes_left: u64,
    /// The last write-back error, if the last attempt failed.
    pub failing: Option<ErrorKind>,
}

/// What an unmount is doing.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Step {
    /// Flushing, while everything works.
    Flushing,
    /// Flushing the rest; changes wait.
    FlushingTheRest,
    /// Detached; the engine lets the volume go.
    Ending,
}

impl MountedVolume {
    /// Mounts a volume on a directory; the pool's threads serve it. `tenancy` says who pays for what is written; `None`:
    /// the engine's root tenant for all.
    ///
    /// # Errors
    /// Nothing is mounted then.
    ///
    /// # Blocking
    /// Until the kernel has started the session, and has shown how its cache works.
    pub fn mount(
        pool: &Pool,
        sb: Arc<SuperBlock>,
        mountpoint: &Path,
        options: &MountOptions,
        tenancy: Option<Arc<Tenancy>>,
    ) -> Result<Arc<Self>, MountVolumeError> {
        let volume = Volume::new(&sb, tenancy, options.dontcache)?;
        let started = start::start(pool, &volume, mountpoint, options);
        let Started { session, dev, missing } = started.inspect_err(|_| volume.tear_down())?;
        volume.register_prune_hook();
        let umount = Mutex::new(UMOUNT, ());
        let (mountpoint, discards) = (mountpoint.to_owned(), AtomicBool::new(false));
        Ok(Arc::new(Self { sb, volume, session, missing, mountpoint, dev, umount, discards }))
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The engine's side.
    pub fn super_block(&self) -> &Arc<SuperBlock> {
        &self.sb
    }

    /// What this kernel does not have.
    pub fn missing_features(&self) -> &[MissingFeature] {
        &self.missing
    }

    /// Open files, as far as the kernel has told.
    pub fn open_files(&self) -> usize {
        self.volume.open_files()
    }

    /// Bytes of writes and of pages from mappings that wait for room; they are counted neither as dirty nor by the arena.
    pub fn parked_bytes(&self) -> usize {
        self.volume.parked_bytes()
    }

    /// Writes that wait for room. One that is being tried at this moment is not among them.
    pub fn parked_writes(&self) -> usize {
        self.volume.parked_writes()
    }

    /// Writes that are done and whose writers pause, so that memory fills no faster than the backend takes it.
    pub fn paused_writes(&self) -> usize {
        self.volume.paused_writes()
    }

    /// Who uses it, as far as this user may know: working and root directories, programs, open files, mappings.
    ///
    /// # Blocking
    /// Never for the volume: it is asked of `/proc`.
    pub fn holders(&self) -> Vec<Holder> {
        holders::of(self.dev)
    }

    /// Makes everything durable that was written before the call, by way of mappings too.
    ///
    /// # Errors
    /// The first failure; what failed stays dirty and is retried.
    ///
    /// # Blocking
    /// For the backend. The caller is not in a handler.
    pub fn sync(&self) -> Result<(), MountedError> {
        flush_mapped(&self.volume, self.session.notifier()).map_err(MountedError::Mapped)?;
        Ok(self.sb.sync()?)
    }

    /// Unmounts; the steps are in the documentation of the module.
    ///
    /// # Errors
    /// It is still mounted and works, and nothing is lost; except `Elsewhere`, and `Left` of one with force.
    ///
    /// # Blocking
    /// For the backend, until the deadline at most.
    pub fn umount(&self, request: UmountRequest, progress: &dyn Fn(Progress)) -> Result<(), MountedError> {
        self.note_discard(request); // ends a flush that nobody waits for any more
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
        let Some(_only) = self.umount.try_lock().or_else(|| self.lock_forced(request, deadline)) else {
            return Err(MountedError::InProgress);
        };
        if !self.is_aborted() && (request.force || self.is_mounted_here()) {
            match self.flush_and_detach(request, deadline, progress) {
                Err(error) if request.force => {
                    let mountpoint = self.mountpoint.printable();
                    tracing::warn!(%mountpoint, %error, "unmounting before the flush is complete");
                    self.abort();
                }
                detached => detached?,
            }
        }
        let detached = self.wait_detached(request.force, deadline);
        self.note_discard(request);
        detached?;
        self.end(request, deadline, progress)
    }

    /// With force the end of another unmount is waited for, and at the deadline the connection is aborted without its lock.
    fn lock_forced(&self, request: UmountRequest, deadline: &Deadline) -> Option<MutexGuard<'_, ()>> {
        let pause = Completion::new();
        while request.force && !deadline.has_passed() {
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

    /// Takes the mount away at once, from everywhere: later requests fail, and nothing is flushed. The data that the backend does
    /// not have stays in the engine, as with `Left`.
    pub fn abort(&self) {
        self.volume.set_refusing(true);
        if let Err(error) = self.detach(true) {
            tracing::warn!(%error, "cannot detach the mount");
        }
    }

    /// A later end of the volume discards, from now on: nobody can write any more. Not before: an unmount may fail.
    fn note_discard(&self, request: UmountRequest) {
        if request.discard && self.is_aborted() {
            self.discards.store(true, Ordering::Release);
        }
    }

    /// Waits until the mount has gone, by whomever, and everything has reached the backend.
    ///
    /// # Blocking
    /// Until then; for ever, if the backend is dead and nobody discards.
    ///
    /// # Errors
    /// The engine found references that should not be: the volume is gone, its data is in the backend.
    pub fn wait_ended(&self) -> Result<(), MountedError> {
        let _ = self.session.wait_ended();
        let again = UmountRequest { deadline: Some(POLL_INTERVAL * 10), ..UmountRequest::default() };
        let pause = Completion::new();
        loop {
            let ended = {
                // Another unmount is about to come to its end.
                let _only = self.umount.lock();
                let request = UmountRequest { discard: self.discards.load(Ordering::Acquire), ..again };
                self.end(request, &Deadline::begin(&self.sb, request), &|_| {})
            };
            match ended {
                Err(MountedError::Deadline { .. } | MountedError::Busy { .. }) => pause.wait_timeout(POLL_INTERVAL),
                ended => return ended,
            };
        }
    }

    /// Waits until the mount has gone, by whomever; not everything may have reached the backend yet.
    ///
    /// # Blocking
    /// Until then.
    pub fn wait_unmounted(&self) {
        let _ = self.session.wait_ended();
    }

    /// Calls `hook` once, when the mount has gone, by whomever: our own unmount, umount(8), a connection that was cut, of which
    /// the dead mount may still be there. Here and now, if it has gone already. Not everything may have reached the backend
    /// yet: [`wait_ended`](Self::wait_ended) brings it there, and blocks.
    ///
    /// A thread that serves all mounts calls it, and none waits for it until then. It must not block, nor unmount or wait for
    /// anything: it hands the news to a thread that may. No lock is held.
    pub fn on_unmounted(&self, hook: impl FnOnce() + Send + 'static) {
        self.session.on_ended(|_| hook());
    }

    /// From the next request on, what goes through the mount stays out of the cache, or no longer; but where a file or a tenant
    /// says otherwise. What is in the cache stays, and who reads a file by way of the kernel's cache does so until it is closed.
    pub fn set_dontcache(&self, dontcache: bool) {
        self.volume.set_dontcache(dontcache);
    }

    /// Whether the mount has gone, by whomever; not everything may have reached the backend yet.
    pub fn is_unmounted(&self) -> bool {
        self.session.ended().is_some()
    }

    /// Steps 1 to 5.
    fn flush_and_detach(
        &self,
        request: UmountRequest,
        deadline: &Deadline,
        progress: &dyn Fn(Progress),
    ) -> Result<(), MountedError> {
        if !request.force {
            self.check_busy()?;
        }
        if request.discard {
            // Nothing is waited for: the backend may be dead.
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
            // Requests get EIO; what a mapping has is still taken, and then no more.
            self.flush(Step::FlushingTheRest, deadline, progress)?;
        }
        deadline.retry(|until| self.sb.freeze_writes(until))?;
        self.report(Step::FlushingTheRest, progress);
        deadline.retry(|until| self.sb.flush_until(until))?;
        if !force {
            self.wait_for_calls(deadline)?;
        }
        self.detach(force)
    }

    /// Calls that wait for the source, or for a thread to do so.
    pub fn calls(&self) -> usize {
        self.volume.calls()
    }

    /// Step 5.
    fn detach(&self, force: bool) -> Result<(), MountedError> {
        let begun = self.sb.now();
        loop {
            let unmounted = match force {
                false => mount::unmount(&self.mountpoint, false),
                true if !self.is_mounted_here() => Ok(()),
                // Cuts the connection as well.
                true if rustix::process::geteuid().is_root() => {
                    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                    rustix::mount::unmount(&self.mountpoint, flags).map_err(UnmountError::Kernel)
                }
                true => mount::unmount(&self.mountpoint, true),
            };
            match unmounted {
                Ok(()) => {
                    if force
                        && !self.is_aborted()
                        && let Err(error) = abort_connection(minor(self.dev))
                    {
                        tracing::warn!(%error, "cannot abort the connection");
                    }
                    return Ok(());
                }
                Err(UnmountError::Busy(_)) => self.wait_if_transient(begun)?,
                // Somebody was faster.
                Err(UnmountError::NotMounted(_)) if self.session.wait_ended_timeout(RELEASE_WAIT).is_some() => {
                    return Ok(());
                }
                Err(error) => return Err(MountedError::Unmount(error)),
            }
        }
    }

    /// Whether it is mounted at its mountpoint still, and nothing else on top of it.
    fn is_mounted_here(&self) -> bool {
        dev_of(&self.mountpoint) == Ok(self.dev)
    }

    /// Step 6.
    fn wait_detached(&self, force: bool, deadline: &Deadline) -> Result<(), MountedError> {
        let begun = self.sb.now();
        while self.session.wait_ended_timeout(POLL_INTERVAL / 50).is_none() {
            let waited = self.sb.now().since(begun);
            if self.is_aborted() {
                if deadline.has_passed() && waited >= if force { POLL_INTERVAL } else { RELEASE_WAIT } {
                    return Err(self.deadline_error()); // calls that wait for the backend hold what they work on
                }
            } else if waited >= RELEASE_WAIT {
                self.volume.set_refusing(false);
                self.sb.thaw();
                return Err(self.elsewhere_error());
            }
        }
        Ok(())
    }

    /// Whether the kernel has let go of the connection; calls of earlier may still run.
    fn is_aborted(&self) -> bool {
        let Ok(fd) = self.session.try_clone_fd() else { return false };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }

    fn deadline_error(&self) -> MountedError {
        let status = self.sb.status();
        MountedError::Deadline { dirty_bytes: status.bytes_left(), cause: status.failing }
    }

    fn left_error(&self) -> MountedError {
        let status = self.sb.status();
        MountedError::Left { dirty_bytes: status.bytes_left(), cause: status.failing }
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
            let options = UmountOptions { deadline: left, discard: request.discard };
            match self.sb.umount(options) {
                Ok(()) | Err(UmountError::NotMounted) => return Ok(()),
                Err(UmountError::Deadline { .. }) if !deadline.has_passed() => {}
                // The last call is about to return what it has.
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
