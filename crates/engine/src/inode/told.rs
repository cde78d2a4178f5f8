//! What the backend last told of an inode, by which a change that is not ours is noticed.
//!
//! Each call of ours that changes a file on the backend is counted when it begins and when it has been
//! answered. Attributes that were read while none ran are what a later look must find again, for as long as
//! none has begun. If it finds others, somebody else was there.
//!
//! # Invariants
//! K1. A call is counted as begun before it is submitted, and as ended after its answer has been noted.
//! K2. `Told::as_of` is the count of the inode's calls that `Told` includes, all of them answered before it
//!     was asked for. `None`: one ran meanwhile, and nobody can say whether it is included.
//!
//! # Memory ordering
//! `ended` is read before `begun`: as neither ever goes back and `begun` is never less, equal numbers mean
//! that no call ran at the moment of the first read.

use std::time::Duration;

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::backend::{Attr, NodeKind};
use crate::error::BackendError;
use crate::inode::{Inode, InodeState};
use crate::units::{Tick, Timestamp};

/// Counts calls of ours.
pub(crate) struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A moment at which no call of ours ran, told by how many had.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Quiet(u64);

/// A call of ours that runs. Its number, if it was the only one when it began.
#[must_use = "a change that never ends looks like one of somebody else for ever"]
pub(crate) struct Change(Option<Quiet>);

impl Changes {
    pub(crate) fn new() -> Self {
        Self { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// Whether there was one.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) != 0
    }

    /// The present, if no call runs.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        let ended = self.ended.load(Ordering::Acquire);
        (ended == self.begun.load(Ordering::Acquire)).then_some(Quiet(ended))
    }

    /// Whether no call has begun since.
    pub(crate) fn is_still(&self, quiet: Quiet) -> bool {
        self.begun.load(Ordering::Acquire) == quiet.0
    }

    pub(crate) fn begin(&self) -> Change {
        let ended = self.ended.load(Ordering::Acquire);
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        Change((ended + 1 == number).then_some(Quiet(number)))
    }

    pub(crate) fn end(&self, _change: Change) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}

/// Part of `InodeState`: the last answer.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Told {
    size_bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    /// When; `None` if it is known to be old.
    at: Option<Tick>,
    /// K2.
    as_of: Option<Quiet>,
}

impl Told {
    pub(crate) fn new(attr: &Attr, at: Tick) -> Self {
        Self::as_of(attr, at, Some(Quiet(0)))
    }

    fn as_of(attr: &Attr, at: Tick, as_of: Option<Quiet>) -> Self {
        Self { size_bytes: attr.size_bytes, mtime: attr.mtime, ctime: attr.ctime, at: Some(at), as_of }
    }

    /// Size and mtime that the backend's file had at a moment at which no call of ours ran, and that moment.
    pub(super) fn settled(&self) -> Option<(u64, Timestamp, Quiet)> {
        Some((self.size_bytes, self.mtime, self.as_of?))
    }

    fn is(&self, attr: &Attr) -> bool {
        (self.size_bytes, self.mtime, self.ctime) == (attr.size_bytes, attr.mtime, attr.ctime)
    }
}

impl Inode {
    /// Runs a call of ours that changes the file and answers its attributes, and takes them over.
    pub(crate) fn change_with(&self, call: impl FnOnce() -> Result<Attr, BackendError>) -> Result<Attr, BackendError> {
        let change = self.begin_change();
        let answer = call();
        self.end_change(change, answer.as_ref().ok());
        answer
    }

    /// A call of ours was answered, with attributes if it has some.
    pub(crate) fn end_change(&self, change: Change, attr: Option<&Attr>) {
        if let Some(attr) = attr {
            self.state.lock().flush_ctime = None;
            self.refresh(attr, self.if_still_alone(&change));
        }
        self.changes.end(change);
    }

    /// The same for a flush of times, beside which a program may have changed other attributes: those that came
    /// with it count only if there was none. It is sent some time after the data: a change of somebody else's may have come
    /// before it, which is in the answer then, with our time over theirs. A size that is not ours shows it.
    pub(crate) fn end_flush(&self, change: Change, attr: Option<&Attr>) {
        let is_ours = |attr: &Attr| attr.size_bytes == self.backing_bytes.load(Ordering::Acquire);
        let alone = self.if_still_alone(&change).filter(|_| attr.is_none_or(is_ours));
        match attr {
            Some(attr) if alone.is_some() => {
                self.state.lock().flush_ctime = Some(attr.ctime);
                self.refresh(attr, alone);
            }
            Some(attr) => {
                let mut state = self.state.lock();
                state.attr.ctime = state.attr.ctime.max(attr.ctime);
            }
            None => {}
        }
        self.changes.end(change);
    }

    fn if_still_alone(&self, change: &Change) -> Option<Quiet> {
        change.0.filter(|quiet| self.changes.is_still(*quiet))
    }

    /// Takes over attributes that the backend has just answered, but for those the cache knows better.
    pub(crate) fn refresh(&self, attr: &Attr, as_of: Option<Quiet>) {
        let now = self.super_block().engine().clock.now();
        let mut state = self.state.lock();
        let still = as_of.filter(|quiet| self.changes.is_still(*quiet));
        state.told = Told::as_of(attr, now, still);
        if still != as_of {
            state.told.at = None; // a call of ours has just begun
        }
        take_over(&mut state, attr);
        self.record_told(&state);
    }

    /// The same for attributes that were only asked for, while a call of ours ran: they may be older than those
    /// it has left.
    pub(crate) fn refresh_if_newer(&self, attr: &Attr) {
        let now = self.super_block().engine().clock.now();
        let mut state = self.state.lock();
        // A clock of the backend's may stand still for some changes. A directory is asked about soon again.
        let known = state.attr.ctime.max(state.flush_ctime.unwrap_or(state.attr.ctime));
        let newer = attr.ctime > known || (self.kind() == NodeKind::Directory && attr.ctime == known);
        if newer {
            take_over(&mut state, attr);
        }
        if self.kind() == NodeKind::File {
            state.told.at = Some(now);
        }
    }

    /// The same for attributes that a lookup brought. If they look as if somebody else had changed the file, the
    /// next look at it asks.
    pub(crate) fn refresh_from_lookup(&self, attr: &Attr) {
        let before = self.state.lock().told;
        self.refresh_if_newer(attr);
        if self.kind() == NodeKind::File {
            let comparable = before.as_of.is_some_and(|quiet| self.changes.is_still(quiet));
            match before.is(attr) {
                true if comparable => {}
                false if comparable => self.outdate(),
                true | false => self.state.lock().told.at = before.at,
            }
        }
    }

    /// Runs a call of ours that changes a name in this directory: what the backend told is old afterwards.
    pub(crate) fn change_names<T>(&self, call: impl FnOnce() -> T) -> T {
        let change = self.changes.begin();
        let answer = call();
        self.end_change(change, None);
        self.outdate();
        answer
    }

    /// What the backend told is old from now on: a name in this directory changed, or the name of this node.
    pub(crate) fn outdate(&self) {
        self.state.lock().told.at = None;
    }

    /// Whether the backend was asked less than `max_age` ago. If its answer is not known to include our own last
    /// changes it is no use, but asking again is none either until those have settled.
    pub(crate) fn was_told_within(&self, max_age: Duration) -> bool {
        let now = self.super_block().engine().clock.now();
        let state = self.state.lock();
        let settled = self.changes.quiet().is_some() && self.is_clean(&state);
        let sure = state.told.as_of.is_some_and(|quiet| self.changes.is_still(quiet));
        state.told.at.is_some_and(|at| at + max_age > now) && (sure || !settled || self.kind() != NodeKind::File)
    }

    /// Whether `attr`, asked for while none of our calls ran, shows a change that is not ours.
    pub(crate) fn is_foreign(&self, attr: &Attr) -> bool {
        let state = self.state.lock();
        if state.told.as_of.is_some_and(|quiet| self.changes.is_still(quiet)) {
            return !state.told.is(attr);
        }
        // What our last change left was never told. What the cache has must be there as far as nothing of it is dirty.
        let has_other_size = self.has_clean_data() && attr.size_bytes != self.size_bytes();
        has_other_size || self.is_clean(&state) && attr.mtime != self.mtime()
    }
}

/// The cache knows the mode better than the backend while it has still to be sent; and a flush of times changes nothing that a
/// program would look at the ctime for: git, say, takes a file for changed then.
fn take_over(state: &mut InodeState, attr: &Attr) {
    let Attr { mode, ctime, .. } = state.attr;
    state.attr = *attr;
    if state.flush_ctime == Some(attr.ctime) {
        state.attr.ctime = ctime;
    }
    if state.meta_in_flight {
        state.attr.mode = (attr.mode & !0o7777) | (mode & 0o7777);
    }
}
