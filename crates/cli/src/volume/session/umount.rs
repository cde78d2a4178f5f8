//! Unmounts: for a client with a deadline, or for the end of the process.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use slackwater_control::exit::{Failure, Reason};
use slackwater_host::Printable as _;
use slackwater_mount::{MountedError, MountedVolume};

use crate::control::LAST_ANSWERS_WITHIN;
use crate::volume::session::{Session, Stage, TICK};
use crate::volume::{mounting, rescued};

/// How long a volume that has to end waits for a source that accepts nothing. The timeout of a service manager is
/// longer.
pub(crate) const STALL: Duration = Duration::from_secs(30);

/// The time for the steps of an unmount with nothing left to flush, whatever the deadline.
const STEPS_WITHIN: Duration = Duration::from_secs(5);

/// How a volume is to be unmounted.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct UmountRequest {
    /// Give up at this time, with nothing changed. With `force`, the mount is removed then.
    pub(crate) deadline: Option<Instant>,
    /// Give up as at the deadline if nothing has been written back for this long.
    pub(crate) stall: Option<Duration>,
    /// Unmount even if it is in use.
    pub(crate) force: bool,
    /// Discard what is not written back.
    pub(crate) discard: bool,
    /// End the volume at the deadline as by force: the arena keeps what is unwritten then.
    pub(crate) park: bool,
}

impl UmountRequest {
    /// The request to the front end with the time that remains, at least `least`.
    pub(super) fn remaining(self, least: Duration) -> slackwater_mount::UmountRequest {
        let Self { deadline, stall, force, discard, park: _ } = self;
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now()).max(least);
        slackwater_mount::UmountRequest { deadline: deadline.map(left), stall, force, discard }
    }

    /// By force, at once.
    fn forced_now(self) -> Self {
        Self { deadline: Some(Instant::now()), force: true, ..self }
    }

    /// The same request with a deadline after `time`, unless it has an earlier one.
    fn within(self, time: Duration) -> Self {
        let deadline = Instant::now() + time;
        Self { deadline: Some(self.deadline.map_or(deadline, |own| own.min(deadline))), ..self }
    }
}

/// Runs a closure at the end, even after a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Session {
    /// Unmounts for a client: returns when everything is released (S2), by `release` or by another thread.
    ///
    /// # Blocking
    /// At most until its deadline.
    pub(super) fn umount_for_client(
        &self,
        request: UmountRequest,
        release: &dyn Fn(),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        match self.umount_and_release(request, release, tick) {
            // The arena cannot keep files that were removed in the source.
            Err(failure) if request.park && failure.reason == Reason::Deadline && self.removed().is_none() => {
                self.umount_and_release(request.forced_now(), release, tick)
            }
            outcome => outcome,
        }
    }

    fn umount_and_release(
        &self,
        request: UmountRequest,
        release: &dyn Fn(),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        // A fenced volume accepts nothing any more.
        let is_hopeless = self.is_fenced() && !request.discard;
        let request = if is_hopeless { request.within(STEPS_WITHIN) } else { request };
        let volume = self.volume();
        let known = volume.as_ref().map_or(0, |volume| volume.rescued().len());
        let unmounting = self.begin_unmounting();
        self.umount(request, tick).map_err(|failure| self.with_location(failure))?;
        // The thread that releases everything waits until no reference to the volume is left.
        let mut rescued = volume.map_or_else(Vec::new, |volume| volume.rescued());
        release();
        drop(unmounting);
        let last = Instant::now() + LAST_ANSWERS_WITHIN;
        let deadline = request.deadline.map(|deadline| deadline.max(last));
        self.wait_released(deadline, request.discard, tick)?;
        rescued::after("unmounted", &rescued.split_off(known.min(rescued.len())), self.entry.source.name())
    }

    /// Adds what happens to unwritten data (S3).
    pub(super) fn with_location(&self, failure: Failure) -> Failure {
        let failure = match self.removed() {
            // The arena does not have them.
            Some(removed) if failure.reason == Reason::Left => {
                let is_all = self.figures().0 <= removed.bytes;
                let failure = failure.advise(format!("{}: lost when this process ends", removed.text));
                if is_all {
                    return failure;
                }
                failure
            }
            // More time does not help.
            Some(removed) if matches!(failure.reason, Reason::Deadline | Reason::Failed) => {
                Failure { advice: removed.advice(), ..failure }
            }
            Some(_) | None => failure,
        };
        let (source, arena) = (self.entry.source.name().printable(), self.entry.arena.printable());
        if self.is_fenced() && matches!(failure.reason, Reason::Deadline | Reason::Left) {
            let next = match failure.reason == Reason::Left {
                true => format!("it is kept in {arena}"),
                false => "see what is lost, and end this mount, with --discard".to_owned(),
            };
            let what = format!("{}: {source} was taken over, and accepts nothing from here any more", failure.what);
            Failure::new(failure.reason, what).advise(next)
        } else if failure.reason != Reason::Left {
            failure
        } else if self.entry.volume.is_some() {
            failure.advise(format!("the daemon continues writing it back, and keeps {source} until then"))
        } else {
            failure
                .advise(format!("it is kept in {arena}: mount {source} again to write it back"))
                .advise("it is lost if the machine restarts before that")
        }
    }

    /// Unmounts, and calls `tick` with bytes left and written meanwhile. Returns when everything is released except for
    /// what the main thread does afterwards.
    ///
    /// # Blocking
    /// At most until its deadline.
    fn umount(&self, request: UmountRequest, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let mounted = match self.wait_mounted(request.deadline, tick) {
            Err(failure) if failure.reason == Reason::NotMounted => return Ok(()),
            mounted => mounted?,
        };
        if mounted.is_unmounted() && !request.discard {
            // umount(2) came first: only the flush remains. Without force or a stall limit, nothing waits for it here.
            let is_limited = request.force || request.stall.is_some();
            return if is_limited { self.watch(|| self.wait_ended(&mounted, request), tick) } else { Ok(()) };
        }
        if request.discard {
            // Before the volume ends, because the thread that releases it acts on it then.
            self.state().enter(Stage::Discarding);
        }
        let _unmounting = self.begin_unmounting();
        // A daemon's other volumes go on.
        if let Some(engine) = self.engine().filter(|_| self.entry.volume.is_none()) {
            engine.arena().stop_filling();
        }
        let least = if self.figures().0 == 0 { STEPS_WITHIN } else { Duration::ZERO };
        let progress = self.reported(tick);
        let outcome = self.tally.unmounts.time(|| mounted.umount(request.remaining(least), &|_| progress()));
        let failure = match outcome {
            Ok(()) => return Ok(()),
            Err(error) => mounting::failed_at(mounted.place().path(), &error),
        };
        // After an umount(2) by another program meanwhile, there is no other limit.
        if failure.reason == Reason::Left || (mounted.is_unmounted() && request.stall.is_some()) {
            return Err(self.leave(failure));
        }
        if mounted.is_unmounted() {
            return Ok(()); // the flush continues on its own
        }
        if request.discard && self.discards() {
            self.state().enter(Stage::Mounted);
        }
        Err(failure)
    }

    /// Waits until everything of an unmounted volume is written back, as long as `request` allows.
    ///
    /// # Errors
    /// `Left`.
    fn wait_ended(&self, mounted: &MountedVolume, request: UmountRequest) -> Result<(), Failure> {
        match mounted.wait_ended(request.remaining(Duration::ZERO)) {
            Err(error @ MountedError::Left { .. }) => {
                Err(self.leave(mounting::failed_at(mounted.place().path(), &error)))
            }
            // The thread that releases the volume reports any other error.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Until the returned value is dropped, the volume is being unmounted, and only threads that do so release it.
    fn begin_unmounting(&self) -> impl Drop {
        self.state().unmounting += 1;
        OnDrop(|| {
            let mut state = self.state();
            state.unmounting -= 1;
            let then = if state.unmounting == 0 { state.after_unmounting.take() } else { None };
            drop(state);
            self.changed.notify_all();
            then.into_iter().for_each(|then| then());
        })
    }

    /// Calls `then` when no thread unmounts it: at once, or on the thread that has unmounted it without releasing it.
    pub(crate) fn after_unmounting(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.unmounting > 0 {
            state.after_unmounting = Some(Box::new(then));
            return;
        }
        drop(state);
        then();
    }

    /// Waits until no thread unmounts it.
    ///
    /// # Blocking
    /// As described.
    pub(crate) fn wait_while_unmounting(&self) {
        drop(self.changed.wait_while(self.state(), |state| state.unmounting > 0));
    }

    /// Calls `tick` with bytes left and written, at most once per [`TICK`].
    fn reported(&self, tick: &mut dyn FnMut(u64, u64)) -> impl Fn() {
        let state = RefCell::new((Instant::now(), tick));
        move || {
            let (last, tick) = &mut *state.borrow_mut();
            if last.elapsed() >= TICK {
                let (left, written) = self.figures();
                tick(left, written);
                *last = Instant::now();
            }
        }
    }

    /// Unmounts without discarding anything. With `insist`, also unmounts a volume in use, after a call of `in_use`,
    /// and one whose source accepts nothing for [`STALL`]; otherwise it takes as long as needed.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn umount_patiently(
        &self,
        insist: bool,
        in_use: impl FnOnce(&Failure),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        // A fenced volume accepts nothing any more.
        let stall = if self.is_fenced() { Duration::ZERO } else { STALL };
        let request = UmountRequest { stall: insist.then_some(stall), ..UmountRequest::default() };
        let kept = match self.mounted() {
            Some(mounted) if !mounted.is_unmounted() => self.keep_one_place(&mounted, request, tick),
            _ => Ok(()),
        };
        let forced = match kept.and_then(|()| self.umount(request, tick)) {
            Err(failure) if insist && failure.reason == Reason::Busy => {
                in_use(&failure);
                self.umount(UmountRequest { force: true, ..request }, tick)
            }
            // The deadline has already been waited for.
            Err(failure) if insist && failure.reason == Reason::Deadline => self.umount(request.forced_now(), tick),
            outcome => return outcome,
        };
        // The exit of the process removes it from the namespaces that this did not reach.
        forced.map_err(|failure| self.leave(failure))
    }

    /// S3.
    fn leave(&self, failure: Failure) -> Failure {
        self.state().enter(Stage::Left);
        self.changed.notify_all();
        Failure { reason: Reason::Left, ..failure }
    }

    /// Waits until the mount is gone with unwritten data left (S3).
    ///
    /// # Blocking
    /// Usually forever.
    pub(crate) fn wait_left(&self) {
        drop(self.changed.wait_while(self.state(), |state| !matches!(state.stage, Stage::Left)));
    }

    /// S2. `discards` says whether the unwritten data is discarded.
    fn wait_released(
        &self,
        deadline: Option<Instant>,
        discards: bool,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let released = self.wait_for(deadline, tick, |state| {
            if let Stage::Released(outcome) = &state.stage { Some(outcome.clone()) } else { None }
        });
        released.unwrap_or_else(|| {
            let left = slackwater_host::size::text(self.figures().0);
            let next = match discards {
                false => "nothing is lost: the mount process continues",
                true => "it is discarded as soon as the source answers earlier requests",
            };
            let what = format!("the deadline passed with {left} unwritten");
            Err(Failure::new(Reason::Deadline, what).advise(next))
        })
    }
}
