//! The keys and values of a volume as one ordered map with atomic changes, answered from memory.
//!
//! A call on names or extents is a function on a [`View`]: it reads and changes keys, and never waits. If a key is not
//! in memory it stops with [`Stop::Missing`]; the tree reads the key from the store and runs the function again from
//! its start. So every call is atomic, calls run one after the other, and none holds a lock during a request.
//!
//! ```text
//! View (one call) -> running transaction -> committing transaction -> cache of committed values -> SlateDB
//!                         |
//!                     local log (survives the process)
//! ```
//!
//! # Invariants
//! T1. A change is visible to later calls at once, in the local log before the call is answered, and in the
//!     store after a [`Tree::commit`] that began later.
//! T2. The store always holds the state between two calls: a commit is one atomic batch of SlateDB.
//! T3. A transaction names no bytes that are not in the store when its batch is written.
//!
//! [`state`] has those of the layers, [`cache`] those of the cache.
//!
//! # Lock order
//! The mutex of the state is taken last, and held for memory alone. No call is answered under it.

mod base;
mod block_cache;
mod cache;
mod commit;
mod counters;
mod fetch;
mod follow;
mod log;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod transaction;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock;
use crate::format::{Decode, Key, ROOT, SegmentId, VolumeKey};

use base::Base;
pub(crate) use base::{Guard, Place};
pub(crate) use counters::Counters;
use fetch::{Answers, Questions};
use log::ReplayError;
pub(crate) use log::{FORMAT as LOG_FORMAT, LogPlace, has_changes as log_has_changes};
use state::{Mode, State};
pub(crate) use view::{Stop, View, decode};

/// The folder of SlateDB's files.
pub(crate) const FOLDER: &str = "meta";
/// Changes are in the store this long after they were made, at the latest.
const COMMIT_AGE: Duration = Duration::from_secs(5);
/// A sync fails if the store has not taken the data for this long. The data is kept.
const SYNC_LIMIT: Duration = Duration::from_secs(30);
/// Memory for committed values.
const CACHE_BYTES: usize = 48 << 20;

/// How to open a tree.
#[derive(Clone)]
pub(crate) struct TreeOptions {
    /// The salt of [`hash_of_name`](crate::format::hash_of_name).
    pub(crate) salt: u64,
    /// A transaction older than this is committed.
    pub(crate) commit_age: Duration,
    /// How long a [`Tree::commit`] waits for the store.
    pub(crate) sync_limit: Duration,
    /// The counters may be missing or wrong, as before a repair: nothing is concluded from them.
    pub(crate) may_be_damaged: bool,
    /// Where the local log is.
    pub(crate) log: Option<LogPlace>,
}

impl TreeOptions {
    /// The options of a tree without a local log, in a volume with this salt.
    pub(crate) fn new(salt: u64) -> Self {
        Self { salt, commit_age: COMMIT_AGE, sync_limit: SYNC_LIMIT, may_be_damaged: false, log: None }
    }
}

/// The kind of the error of an open whose log must continue the stored state and does not. No other error of an open has
/// it.
pub(crate) const OVERTAKEN: ErrorKind = ErrorKind::Lost;

/// The state of a tree.
pub(crate) struct TreeStatus {
    pub(crate) is_fenced: bool,
    /// Calls whose changes are not in the store.
    pub(crate) uncommitted_calls: u64,
    pub(crate) uncommitted_age_ms: Option<u64>,
    /// Since the last commit of this process.
    pub(crate) last_commit_age_ms: Option<u64>,
    /// By this process.
    pub(crate) commits: u64,
}

/// See the [module documentation](self).
pub(crate) struct Tree {
    state: Mutex<State>,
    /// `None`: a tree in memory, for tests.
    base: Option<Arc<Base>>,
    /// Wakes the committer.
    wake: Arc<Notify>,
    /// Wakes calls that wait because there are too many changes.
    room: Notify,
    runtime: Option<Handle>,
    commit_age_ms: u64,
    sync_limit: Duration,
    /// The state of a reader is at most so much older than that of the writer.
    follow_age: Duration,
}

/// How one run of a call ended.
enum Run<T> {
    Done(Result<T, BackendError>),
    /// The store must be asked.
    Missing(Questions),
    /// The answers of the store to the call do not count any more (S2, R2).
    Forgotten,
    /// The call changes something, and there are too many changes already.
    Full,
}

impl Tree {
    /// Opens a tree for writing, and fences every earlier writer. Changes in the local log beyond the store are
    /// committed. Logs that do not continue the state in the store, because of a writer in between, are renamed and
    /// returned. It must be called in the runtime, where the tasks of the tree will run.
    ///
    /// # Errors
    /// The store's or the log's, or a tree that is corrupt, without counters or of a newer version.
    pub(crate) async fn open(place: Place, options: TreeOptions) -> Result<(Arc<Self>, Vec<PathBuf>), BackendError> {
        let base = Arc::new(Base::open(place).await?);
        let opened = Self::open_on(&base, options).await;
        if opened.is_err() {
            base.close().await;
        }
        opened
    }

    /// Opens the tree in an open database, which the caller closes if that fails.
    async fn open_on(base: &Arc<Base>, options: TreeOptions) -> Result<(Arc<Self>, Vec<PathBuf>), BackendError> {
        let counters = match base.get(Key::Volume(VolumeKey::Counters)).await? {
            Some(value) => Counters::decode(&value).map_err(|bad| BackendError::new(ErrorKind::Io, bad.to_string()))?,
            // Nothing is in it yet.
            None if options.may_be_damaged || base.get(Key::Inode(ROOT)).await?.is_none() => Counters::EMPTY,
            None => {
                let text = "the counters of the volume are missing. Run `slackwater fsck --repair`";
                return Err(BackendError::new(ErrorKind::Io, text));
            }
        };
        let mut state = State::new(counters, base.epoch(), options.salt);
        if options.may_be_damaged {
            state.settled_inos = u64::MAX; // (S4)
        }
        let set_aside = match &options.log {
            Some(place) => state.replay(place, &counters).map_err(|error| match error {
                ReplayError::Io(error) => {
                    BackendError::new(ErrorKind::Io, format!("the local log in {}: {error}", place.folder.display()))
                }
                ReplayError::Overtaken => OVERTAKEN.into(),
            })?,
            None => Vec::new(),
        };
        let mut tree = Self::new(state, Some(Arc::clone(base)));
        tree.commit_age_ms = options.commit_age.as_millis() as u64;
        tree.sync_limit = options.sync_limit;
        let tree = Arc::new(tree);
        tokio::spawn(commit::run(Arc::downgrade(&tree), Arc::clone(&tree.wake)));
        tree.commit().await?;
        Ok((tree, set_aside))
    }

    /// A tree that commits nothing by itself, and follows no writer.
    fn new(state: State, base: Option<Arc<Base>>) -> Self {
        Self {
            state: Mutex::new(state),
            runtime: base.as_ref().map(|_| Handle::current()),
            base,
            wake: Arc::new(Notify::new()),
            room: Notify::new(),
            commit_age_ms: 0,
            sync_limit: Duration::ZERO,
            follow_age: Duration::ZERO,
        }
    }

    /// The state now.
    pub(crate) fn status(&self) -> TreeStatus {
        let state = self.state.lock();
        // After the lock is taken: nothing in the state is later.
        let now_ms = clock::monotonic_ms();
        let uncommitted = || state.committing.as_deref().into_iter().chain([&state.running]);
        TreeStatus {
            is_fenced: state.mode == Mode::Fenced,
            uncommitted_calls: uncommitted().map(|transaction| transaction.calls).sum(),
            uncommitted_age_ms: uncommitted().find_map(|transaction| transaction.began_ms).map(|began| now_ms - began),
            last_commit_age_ms: state.committed_at_ms.map(|at| now_ms - at),
            commits: state.epoch,
        }
    }

    /// Runs a call and answers it: on the caller's thread if all keys that it needs are in memory, else in the runtime.
    /// `operation` may run several times, and only its last run counts.
    pub(crate) fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        mut operation: impl FnMut(&mut View<'_>) -> Result<T, Stop> + Send + 'static,
        done: impl FnOnce(Result<T, BackendError>) + Send + 'static,
    ) {
        let first = self.run_once(&mut operation, &Answers::default(), None);
        if let Run::Done(answer) = first {
            return done(answer);
        }
        let Some(runtime) = &self.runtime else { return done(Err(ErrorKind::Io.into())) };
        let tree = Arc::clone(self);
        runtime.spawn(async move { done(tree.run_from(first, operation).await) });
    }

    /// Runs a call. `operation` may run several times, and only its last run counts.
    ///
    /// # Errors
    /// Those of the call, or of the store.
    pub(crate) async fn run<T>(
        &self,
        mut operation: impl FnMut(&mut View<'_>) -> Result<T, Stop>,
    ) -> Result<T, BackendError> {
        let first = self.run_once(&mut operation, &Answers::default(), None);
        self.run_from(first, operation).await
    }

    /// A name for a new segment (F3).
    pub(crate) fn new_segment_id(&self) -> SegmentId {
        self.state.lock().new_segment_id()
    }

    /// `began`: the epoch in which the store was asked for `answers`.
    fn run_once<T>(
        &self,
        operation: &mut impl FnMut(&mut View<'_>) -> Result<T, Stop>,
        answers: &Answers,
        began: Option<u64>,
    ) -> Run<T> {
        let mut state = self.state.lock();
        if began.is_some_and(|began| began < state.forgotten) {
            return Run::Forgotten;
        }
        let mut view = View::new(&state, answers, clock::wall());
        let answer = operation(&mut view);
        let (effects, questions) = view.into_parts();
        let value = match answer {
            Ok(value) => value,
            Err(Stop::Missing) => return Run::Missing(questions),
            Err(Stop::Failed(error)) => return Run::Done(Err(error)),
        };
        if effects.is_empty() {
            return Run::Done(Ok(value));
        }
        if state.is_full() {
            return Run::Full;
        }
        let was_quiet = state.running.is_empty();
        if let Err(error) = state.apply(effects) {
            return Run::Done(Err(error));
        }
        let must_wake = was_quiet || state.running_bytes() >= commit::TRANSACTION_BYTES;
        drop(state);
        if must_wake {
            self.wake.notify_one();
        }
        Run::Done(Ok(value))
    }

    /// Asks the store for what a call needs until it is done.
    async fn run_from<T>(
        &self,
        first: Run<T>,
        mut operation: impl FnMut(&mut View<'_>) -> Result<T, Stop>,
    ) -> Result<T, BackendError> {
        let mut asking = Asking { tree: self, epoch: None, answers: Answers::default() };
        let (mut run, mut has_looked) = (first, false);
        loop {
            match run {
                Run::Done(answer) => return answer,
                Run::Missing(questions) => {
                    let began = tokio::time::Instant::now();
                    if let Err(error) = asking.ask(questions).await {
                        self.notice_loss();
                        self.look_again(began, &mut has_looked, error).await?;
                        asking.begin_again();
                    }
                }
                Run::Forgotten => asking.begin_again(),
                Run::Full => {
                    let room = self.room.notified();
                    if self.state.lock().is_full() {
                        self.wake.notify_one();
                        room.await;
                    }
                }
            }
            run = self.run_once(&mut operation, &asking.answers, asking.epoch);
        }
    }
}

/// The questions of one call to the store. Their answers count while this lives (S2).
struct Asking<'a> {
    tree: &'a Tree,
    /// In which it began.
    epoch: Option<u64>,
    answers: Answers,
}

impl Asking<'_> {
    async fn ask(&mut self, questions: Questions) -> Result<(), BackendError> {
        let Some(base) = &self.tree.base else { return Err(ErrorKind::Io.into()) };
        let epoch = *self.epoch.get_or_insert_with(|| self.tree.state.lock().begin_asking());
        let mut answers = std::mem::take(&mut self.answers);
        let before = if base.is_reader() { Some(follow::counters(base).await?) } else { None };
        answers.fetch(base, questions).await?;
        if let Some(before) = before {
            let after = follow::counters(base).await?;
            let moved = self.tree.state.lock().move_to(after);
            if moved.is_some() || before != after {
                // Some of the answers may be of an earlier state (R2).
                self.begin_again();
                return Ok(());
            }
        }
        let mut state = self.tree.state.lock();
        if epoch >= state.forgotten {
            state.keep_answers(&answers, epoch);
            self.answers = answers;
        } else {
            drop(state);
            self.end();
        }
        Ok(())
    }

    fn begin_again(&mut self) {
        self.answers = Answers::default();
        self.end();
    }

    fn end(&mut self) {
        if let Some(epoch) = self.epoch.take() {
            let settled = self.tree.state.lock().end_asking(epoch);
            // Large ones take long to drop: not under the lock.
            drop(settled);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.wake.notify_one();
        if let (Some(base), Some(runtime)) = (self.base.take(), &self.runtime) {
            runtime.spawn(async move { base.close().await });
        }
    }
}

#[cfg(test)]
impl Tree {
    /// By how much the live bytes of segments changed since the last commit.
    pub(crate) fn live_changes(&self) -> std::collections::HashMap<SegmentId, i64> {
        self.state.lock().running.live.clone()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().running.counters
    }

    /// Forgets the committed values in memory.
    pub(crate) fn forget(&self) {
        self.state.lock().cache = cache::Cache::new(CACHE_BYTES);
    }
}

#[cfg(test)]
impl TreeOptions {
    /// Commits happen when the test says so.
    pub(crate) fn by_hand() -> Self {
        let (commit_age, sync_limit) = (Duration::from_secs(100_000), Duration::from_secs(60));
        Self { commit_age, sync_limit, ..Self::new(7) }
    }
}

#[cfg(test)]
impl Tree {
    /// An empty tree in memory alone.
    pub(crate) fn in_memory() -> Self {
        Self::new(State::new(Counters::EMPTY, 1, 7), None)
    }

    /// Runs `operation` on a tree in memory. It may run several times, and only its last run counts.
    pub(crate) fn run_in_memory<T>(
        &self,
        mut operation: impl FnMut(&mut View<'_>) -> Result<T, Stop>,
    ) -> Result<T, BackendError> {
        let mut answers = Answers::default();
        loop {
            match self.run_once(&mut operation, &answers, None) {
                Run::Done(answer) => return answer,
                Run::Missing(questions) => questions.answer_nothing(&mut answers),
                Run::Full | Run::Forgotten => return Err(ErrorKind::NoSpace.into()),
            }
        }
    }
}
