//! How a mount is unmounted: for a client with a deadline, or for the process that is asked to end.

use std::time::{Duration, Instant};

use slackwater_fuse::Printable as _;

use crate::control::server::LAST_ANSWERS_WITHIN;
use crate::exit::{Failure, Reason};
use crate::volume::front_end::{Umount, left_behind};
use crate::volume::rescued;
use crate::volume::session::Session;

/// For how long a volume that is asked to end waits for a source that takes nothing. A service manager has more patience.
const STALL: Duration = Duration::from_secs(30);

/// What the steps of an unmount may take where nothing is left to flush, whatever the deadline.
const STEPS_WITHIN: Duration = Duration::from_secs(5);

/// Does something at the end, panics included.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Session {
    /// As a client asks for it: returns when all is given back (S2).
    ///
    /// # Blocking
    /// Until its deadline at most.
    pub(super) fn umount_for_client(
        &self,
        within: Duration,
        request: Umount,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        // A deadline beyond the end of time is none.
        let now = Instant::now();
        let deadline = now.checked_add(within).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        let volume = self.state().volume.clone();
        let known = volume.as_ref().map_or(0, |volume| volume.rescued().len());
        self.umount(Umount { deadline: Some(within), ..request }, tick).map_err(|failure| self.say_where(failure))?;
        // The volume is let go of: the thread that gives everything back waits for that.
        let mut rescued = volume.map_or_else(Vec::new, |volume| volume.rescued());
        let deadline = deadline.max(Instant::now() + LAST_ANSWERS_WITHIN);
        self.wait_released(deadline, request.discard, tick)?;
        rescued::after_unmount(&rescued.split_off(known.min(rescued.len())), &self.entry.source.path)
    }

    /// With words on what becomes of data that is not in the source (S3).
    fn say_where(&self, failure: Failure) -> Failure {
        let (source, arena) = (self.entry.source.path.printable(), self.entry.arena.printable());
        if failure.reason != Reason::Left {
            failure
        } else if self.entry.volume.is_some() {
            failure.advise(format!("the daemon continues writing it back, and keeps {source} until then"))
        } else {
            failure
                .advise(format!("it is kept in {arena}: mount {source} again to write it back"))
                .advise("it is lost if the machine restarts before that")
        }
    }

    /// Unmounts, and calls `tick` with bytes left and written meanwhile. Ends when everything is given back but for
    /// what the main thread does then.
    ///
    /// # Blocking
    /// Until its deadline at most.
    pub(crate) fn umount(&self, request: Umount, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        // A deadline beyond the end of time is none.
        let deadline = request.deadline.and_then(|within| Instant::now().checked_add(within));
        let front_end = match self.front_end(deadline, tick) {
            Err(failure) if failure.reason == Reason::NotMounted => return Ok(()),
            front_end => front_end?,
        };
        if front_end.is_unmounted() && !request.discard {
            // umount(2) was here first: nothing is left to ask for but patience.
            return self.wait_flushed(deadline, request, tick);
        }
        self.state().unmounting += 1;
        let _unmounting = OnDrop(|| self.state().unmounting -= 1);
        let least = if self.figures().0 == 0 { STEPS_WITHIN } else { Duration::ZERO };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()).max(least));
        let unmount = || self.tally.unmounts.time(|| front_end.umount(Umount { deadline: left, ..request }));
        match self.watch(unmount, tick) {
            Err(failure) if failure.reason == Reason::Left => Err(self.leave(failure)),
            // After an umount(2) by somebody else meanwhile.
            Err(failure) if front_end.is_unmounted() && request.stall.is_some() => Err(self.leave(failure)),
            // It goes on to its end by itself.
            Err(_) if front_end.is_unmounted() => Ok(()),
            outcome => outcome,
        }
    }

    /// Waits for the flush after an umount(2), until deadline or stall; without force and stall not here.
    fn wait_flushed(
        &self,
        deadline: Option<Instant>,
        request: Umount,
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let (mut seen, mut since) = (self.figures(), Instant::now());
        while request.force || request.stall.is_some() {
            let stalled = request.stall.map(|stall| since + stall);
            let until = deadline.into_iter().chain(stalled).min();
            if self.wait_for(until, tick, |state| state.is_over.then_some(())).is_some() {
                break;
            }
            let now = self.figures();
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) || now.0 >= seen.0 {
                return Err(self.leave(left_behind(&self.entry.mountpoint.printable(), now.0, None)));
            }
            (seen, since) = (now, Instant::now());
        }
        Ok(())
    }

    /// Unmounts, and throws nothing away. With `insist` also while it is in use, of which `in_use` hears first, and where nothing
    /// reaches the source for [`STALL`]; else however long it takes.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn umount_patiently(
        &self,
        insist: bool,
        in_use: impl FnOnce(&Failure),
        tick: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let request = Umount { deadline: None, stall: insist.then_some(STALL), force: false, discard: false };
        let forced = match self.umount(request, tick) {
            Err(failure) if insist && failure.reason == Reason::Busy => {
                in_use(&failure);
                self.umount(Umount { force: true, ..request }, tick)
            }
            // It has been waited for.
            Err(failure) if insist && failure.reason == Reason::Deadline => {
                self.umount(Umount { deadline: Some(Duration::ZERO), force: true, ..request }, tick)
            }
            outcome => return outcome,
        };
        // The end of the process takes it away from where that did not.
        forced.map_err(|failure| self.leave(failure))
    }

    /// S3.
    fn leave(&self, failure: Failure) -> Failure {
        self.state().is_left = true;
        self.changed.notify_all();
        Failure { reason: Reason::Left, ..failure }
    }

    /// Waits until the mount is gone without everything being in the source (S3).
    ///
    /// # Blocking
    /// For ever, as a rule.
    pub(crate) fn wait_left(&self) {
        drop(self.changed.wait_while(self.state(), |state| !state.is_left));
    }

    /// S2. `discards` says what becomes of what is left.
    fn wait_released(&self, deadline: Instant, discards: bool, tick: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let released = self.wait_for(Some(deadline), tick, |state| state.released.then_some(()));
        released.ok_or_else(|| {
            let left = slackwater_size::text(self.figures().0);
            let next = match discards {
                false => "nothing is lost: the mount process continues",
                true => "it is discarded as soon as the source answers earlier requests",
            };
            let what = format!("the deadline passed with {left} unwritten");
            Failure::new(Reason::Deadline, what).advise(next)
        })
    }
}
