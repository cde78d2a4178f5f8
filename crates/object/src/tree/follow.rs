//! Trees that follow a writer in another process.
//!
//! SlateDB looks at the store again every so often, and from then on shows another state. It does not say which state a
//! read was answered from. But every commit changes the counters, so all reads between two reads of the same counters
//! are of one state.
//!
//! # Invariants
//! R1. All committed values in memory are of the state that `running.counters` of [`State`] names, and so are the answers
//!     of calls that began in the current epoch.
//! R2. A call that is answered has seen one state alone: answers of an earlier state are forgotten, as those of a writer
//!     are that a commit has overtaken (S2), and the call runs again.

use std::time::Duration;

use object_store::ObjectStore;
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::{Arc, Weak};
use tokio::time::{Instant, sleep};

use crate::clock;
use crate::format::{Decode, Key, VolumeKey};
use crate::tree::base::Base;
use crate::tree::cache::Cache;
use crate::tree::counters::Counters;
use crate::tree::state::{Mode, State};
use crate::tree::{CACHE_BYTES, Tree};

/// The shortest and the longest time between two looks at SlateDB, which cost no request.
const LOOK_MS: std::ops::RangeInclusive<u64> = 10..=1_000;

impl Tree {
    /// Opens a tree for reading. Its state is at most `age` older than that of the writer, and the requests that it takes
    /// to see a new one. It must be called in the runtime, where the tasks of the tree will run.
    ///
    /// # Errors
    /// The store's, or a tree that is corrupt or of a newer version.
    pub(crate) async fn follow(
        store: Arc<dyn ObjectStore>,
        salt: u64,
        age: Duration,
    ) -> Result<Arc<Self>, BackendError> {
        let base = Base::follow(store, age).await?;
        let counters = counters(&base).await?;
        let mut state = State::new(counters, counters.writer_epoch, salt);
        state.mode = Mode::Reader;
        state.running.counters = counters; // of the last commit, not of one to come (R1)
        // New inodes are made elsewhere (S4).
        state.settled_inos = u64::MAX;
        state.committed_at_ms = Some(clock::monotonic_ms());
        let mut tree = Self::new(state, Some(Arc::new(base)));
        tree.follow_age = age;
        let tree = Arc::new(tree);
        let look_ms = (age.as_millis() as u64 / 8).clamp(*LOOK_MS.start(), *LOOK_MS.end());
        tokio::spawn(follow(Arc::downgrade(&tree), Duration::from_millis(look_ms)));
        Ok(tree)
    }

    /// Waits for SlateDB's next look at the store after it has failed a call of a reader, so that the call begins again;
    /// once per call. If the machine slept for more than an hour, the writer may have removed files of the state that the
    /// reader still shows.
    ///
    /// # Errors
    /// `error`: it is not such a failure. The store answers at once that a file does not exist; an outage takes longer.
    pub(super) async fn look_again(
        &self,
        began: Instant,
        has_looked: &mut bool,
        error: BackendError,
    ) -> Result<(), BackendError> {
        let is_following = self.state.lock().mode == Mode::Reader && error.kind() == ErrorKind::Io;
        if !is_following || began.elapsed() >= self.follow_age || std::mem::replace(has_looked, true) {
            return Err(error);
        }
        sleep(self.follow_age).await;
        Ok(())
    }
}

impl State {
    /// Goes to another state of the writer. The caller drops the old cache without the lock.
    pub(super) fn move_to(&mut self, counters: Counters) -> Option<Cache> {
        if self.running.counters == counters {
            return None;
        }
        self.running.counters = counters;
        self.committed_at_ms = Some(clock::monotonic_ms());
        self.epoch += 1;
        self.forgotten = self.epoch;
        Some(std::mem::replace(&mut self.cache, Cache::new(CACHE_BYTES)))
    }
}

/// The counters of the state that SlateDB shows.
///
/// # Errors
/// The store's; `Io` if they are missing or cannot be read.
pub(super) async fn counters(base: &Base) -> Result<Counters, BackendError> {
    let value = base.get(Key::Volume(VolumeKey::Counters)).await?;
    let missing = || BackendError::new(ErrorKind::Io, "the counters of the volume are missing");
    Counters::decode(&value.ok_or_else(missing)?).map_err(|bad| BackendError::new(ErrorKind::Io, bad.to_string()))
}

/// Looks which state SlateDB shows, until the tree is dropped.
async fn follow(tree: Weak<Tree>, look: Duration) {
    let mut has_failed = false;
    loop {
        sleep(look).await;
        let Some(base) = tree.upgrade().and_then(|tree| tree.base.clone()) else { return };
        let counters = counters(&base).await;
        let Some(tree) = tree.upgrade() else { return };
        match counters {
            Ok(counters) => {
                has_failed = false;
                let old = tree.state.lock().move_to(counters);
                drop(old);
            }
            Err(error) if tree.state.lock().mode == Mode::Closed => {
                tracing::debug!(%error, "the tree is closed");
                return;
            }
            // Once for all looks that fail one after the other.
            Err(error) if !has_failed => {
                tracing::warn!(%error, "cannot follow the writer");
                has_failed = true;
            }
            Err(_) => {}
        }
    }
}
