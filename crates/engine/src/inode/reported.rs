//! The attributes that the backend last reported, which reveal changes made by other programs.
//!
//! Each of our calls that changes a file on the backend is counted when it begins and when it has been answered.
//! Attributes read while none was in progress must be unchanged at a later check, as long as no call has begun since.
//! If they differ, another program has changed the file.
//!
//! # Invariants
//! K1. A call is counted as begun before it is submitted, and as ended after its answer has been recorded.
//! K2. `Reported::as_of` is the count of the inode's calls that `Reported` includes, all of which were answered before
//!     the backend was asked. `None`: a call was in progress, and it is unknown whether its effect is included.
//!
//! # Memory ordering
//! `ended` is read before `begun`. Neither ever decreases and `begun` is never the smaller one, so equal numbers mean
//! that no call was in progress at the moment of the first read.

use std::time::Duration;

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

use crate::backend::{Attr, NodeKind};
use crate::error::BackendError;
use crate::inode::{Inode, InodeState};
use crate::units::{Tick, Timestamp};

/// Counts our calls that change a file.
pub(crate) struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A moment at which none of our calls was in progress, identified by the number of calls before it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Quiet(u64);

/// A call of ours in progress. Contains its number if no other was in progress when it began.
#[must_use = "a change that never ends looks like another program's for ever"]
pub(crate) struct Change(Option<Quiet>);

impl Changes {
    pub(crate) fn new() -> Self {
        Self { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// Whether any call has ever begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) != 0
    }

    /// The current moment, if no call is in progress.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        let ended = self.ended.load(Ordering::Acquire);
        (ended == self.begun.load(Ordering::Acquire)).then_some(Quiet(ended))
    }

    /// Whether no call has begun since `quiet`.
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

/// Part of `InodeState`: the backend's last report.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Reported {
    size_bytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    /// When it was reported; `None` if it is known to be stale.
    at: Option<Tick>,
    /// K2.
    as_of: Option<Quiet>,
}

impl Reported {
    pub(crate) fn new(attr: &Attr, at: Tick) -> Self {
        Self::as_of(attr, at, Some(Quiet(0)))
    }

    fn as_of(attr: &Attr, at: Tick, as_of: Option<Quiet>) -> Self {
        Self { size_bytes: attr.size_bytes, mtime: attr.mtime, ctime: attr.ctime, at: Some(at), as_of }
    }

    /// Size and mtime of the backend's file at a moment when none of our calls was in progress, and that moment.
    pub(super) fn settled(&self) -> Option<(u64, Timestamp, Quiet)> {
        Some((self.size_bytes, self.mtime, self.as_of?))
    }

    fn matches(&self, attr: &Attr) -> bool {
        (self.size_bytes, self.mtime, self.ctime) == (attr.size_bytes, attr.mtime, attr.ctime)
    }
}

impl Inode {
    /// Runs one of our calls, which changes the file and returns its attributes, and applies these.
    pub(crate) fn change_with(&self, call: impl FnOnce() -> Result<Attr, BackendError>) -> Result<Attr, BackendError> {
        let change = self.begin_change();
        let answer = call();
        self.end_change(change, answer.as_ref().ok());
        answer
    }

    /// Records the answer to one of our calls, with attributes if it returned any.
    pub(crate) fn end_change(&self, change: Change, attr: Option<&Attr>) {
        if let Some(attr) = attr {
            self.state.lock().flush_ctime = None;
            self.refresh(attr, self.quiet_if_alone(&change));
        }
        self.changes.end(change);
        self.record_answered();
    }

    /// The same for a metadata flush. Another program may have changed other attributes at the same time, so the
    /// returned attributes count only if no other call was in progress. The flush is sent some time after the data.
    /// Another program may have changed the file before it; the answer then includes that change, with our times over
    /// theirs. A size that is not ours reveals it.
    pub(crate) fn end_flush(&self, change: Change, attr: Option<&Attr>) {
        let is_ours = |attr: &Attr| attr.size_bytes == self.backing_bytes.load(Ordering::Acquire);
        let alone = self.quiet_if_alone(&change).filter(|_| attr.is_none_or(is_ours));
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
        self.record_answered();
    }

    fn quiet_if_alone(&self, change: &Change) -> Option<Quiet> {
        change.0.filter(|quiet| self.changes.is_still(*quiet))
    }

    /// Applies attributes that the backend has just returned, except those for which the cache is authoritative.
    pub(crate) fn refresh(&self, attr: &Attr, as_of: Option<Quiet>) {
        let now = self.super_block().engine().clock.now();
        let mut state = self.state.lock();
        let still = as_of.filter(|quiet| self.changes.is_still(*quiet));
        state.reported = Reported::as_of(attr, now, still);
        if still != as_of {
            state.reported.at = None; // one of our calls has just begun
        }
        apply(&mut state, attr);
        self.record_reported(&state);
    }

    /// The same for attributes from a query that ran while one of our calls was in progress: they may be older than
    /// those that the call left.
    pub(crate) fn refresh_if_newer(&self, attr: &Attr) {
        let now = self.super_block().engine().clock.now();
        let mut state = self.state.lock();
        // The backend's clock may not advance between two changes. A directory is queried again soon.
        let known = state.attr.ctime.max(state.flush_ctime.unwrap_or(state.attr.ctime));
        let newer = attr.ctime > known || (self.kind() == NodeKind::Directory && attr.ctime == known);
        if newer {
            apply(&mut state, attr);
        }
        if self.kind() == NodeKind::File {
            state.reported.at = Some(now);
        }
    }

    /// The same for attributes returned by a lookup. If they suggest that another program changed the file, the next
    /// check asks the backend.
    pub(crate) fn refresh_from_lookup(&self, attr: &Attr) {
        let before = self.state.lock().reported;
        self.refresh_if_newer(attr);
        if self.kind() == NodeKind::File {
            let comparable = before.as_of.is_some_and(|quiet| self.changes.is_still(quiet));
            match before.matches(attr) {
                true if comparable => {}
                false if comparable => self.mark_stale(),
                true | false => self.state.lock().reported.at = before.at,
            }
        }
    }

    /// Runs one of our calls that changes a name in this directory, after which the reported attributes are stale.
    pub(crate) fn change_names<T>(&self, call: impl FnOnce() -> T) -> T {
        let change = self.changes.begin();
        let answer = call();
        self.end_change(change, None);
        self.mark_stale();
        answer
    }

    /// Marks the reported attributes as stale: a name in this directory, or of this node, has changed.
    pub(crate) fn mark_stale(&self) {
        self.state.lock().reported.at = None;
    }

    /// Whether the backend was asked less than `max_age` ago. An answer that may not include our own last changes is
    /// unusable, but asking again is useless until those have ended.
    pub(crate) fn is_fresh_within(&self, max_age: Duration) -> bool {
        let now = self.super_block().engine().clock.now();
        let state = self.state.lock();
        let settled = self.changes.quiet().is_some() && self.is_clean(&state);
        let sure = state.reported.as_of.is_some_and(|quiet| self.changes.is_still(quiet));
        state.reported.at.is_some_and(|at| at + max_age > now) && (sure || !settled || self.kind() != NodeKind::File)
    }

    /// Whether `attr`, read while none of our calls was in progress, shows a change by another program.
    pub(crate) fn shows_foreign_change(&self, attr: &Attr) -> bool {
        let state = self.state.lock();
        if state.reported.as_of.is_some_and(|quiet| self.changes.is_still(quiet)) {
            return !state.reported.matches(attr);
        }
        // The state after our last change was never reported. But the cache's own values must be found there, as far as
        // they are not dirty.
        let has_other_size = self.has_clean_data() && attr.size_bytes != self.size_bytes();
        has_other_size || self.is_clean(&state) && attr.mtime != self.mtime()
    }
}

/// The cache is authoritative for the mode while it has yet to be sent. And a metadata flush changes nothing for which
/// a program would check the ctime; git, for example, would take the file for changed.
fn apply(state: &mut InodeState, attr: &Attr) {
    let Attr { mode, ctime, .. } = state.attr;
    state.attr = *attr;
    if state.flush_ctime == Some(attr.ctime) {
        state.attr.ctime = ctime;
    }
    if state.meta_in_flight {
        state.attr.mode = (attr.mode & !0o7777) | (mode & 0o7777);
    }
}
