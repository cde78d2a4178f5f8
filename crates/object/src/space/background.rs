//! Compaction and collection in an open volume.
//!
//! A pass reads the records of segments, which are next to each other in the tree. It is left out if nothing was
//! committed since the last one and no dead segment waits for the end of the grace time: an idle volume makes no request
//! for space. Between two steps of a pass is a pause, longer on an idle volume.

use std::collections::VecDeque;
use std::time::Duration;

use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock;
use crate::format::{Collected, Decode, Key, SegmentId, VolumeKey};
use crate::segments::Segments;
use crate::space::collect::{Limits, collect, remove_dead};
use crate::space::compact::{Compacted, Compactor};
use crate::space::report::{GcOptions, GcReport};
use crate::tree::Tree;

/// Readers that are less than this behind find all that they need (G3). No upload takes so long (G2).
const GRACE: Duration = Duration::from_secs(3600);
const PASS_PAUSE: Duration = Duration::from_secs(300);
/// A step makes at most about 20 requests. With those that SlateDB makes by itself, an idle volume makes less than one per
/// second.
const STEP_PAUSE_IDLE: Duration = Duration::from_secs(60);
const STEP_PAUSE_BUSY: Duration = Duration::from_secs(1);
/// Objects without records are looked for this often: a listing needs a request for each 1000 objects.
const LIST_EVERY_MS: u64 = 24 * 3_600_000;

/// Starts the task. It ends with the tree, or when another writer has taken the volume.
pub(crate) fn start(tree: &Arc<Tree>, segments: Segments, runtime: &Handle) -> JoinHandle<()> {
    let horizon = Horizon::new(tree.new_segment_id());
    let tree = Arc::downgrade(tree);
    runtime.spawn(async move {
        let mut keeper = Keeper { tree, segments, compactor: Compactor::new(), horizon, seen_commit: None };
        loop {
            tokio::time::sleep(PASS_PAUSE).await;
            match keeper.pass().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) if error.kind() == ErrorKind::Stale => return,
                Err(error) => {
                    tracing::warn!(target: "slackwater::object", %error, "cannot free space; it is tried again");
                }
            }
        }
    })
}

struct Keeper {
    /// Not held during pauses.
    tree: Weak<Tree>,
    segments: Segments,
    compactor: Compactor,
    horizon: Horizon,
    /// The number of the last commit when a pass found nothing to do, not even later.
    seen_commit: Option<u64>,
}

/// Ids of this writer, with the times at which they were the newest, by the monotonic clock.
struct Horizon {
    /// The newest one that was named at least [`GRACE`] ago; at first, the first one.
    reached: SegmentId,
    ahead: VecDeque<(u64, SegmentId)>,
}

impl Horizon {
    fn new(first: SegmentId) -> Self {
        Self { reached: first, ahead: VecDeque::new() }
    }

    /// The id before which nothing is in use any more. `newest` was named now.
    fn at(&mut self, now_ms: u64, newest: SegmentId) -> SegmentId {
        self.ahead.push_back((now_ms, newest));
        let grace_ms = GRACE.as_millis() as u64;
        while let Some((_, id)) = self.ahead.pop_front_if(|(named_ms, _)| now_ms - *named_ms >= grace_ms) {
            self.reached = id;
        }
        self.reached
    }
}

impl Keeper {
    /// Compacts and collects what is due. False if the tree is gone.
    async fn pass(&mut self) -> Result<bool, BackendError> {
        loop {
            let Some(tree) = self.tree.upgrade() else { return Ok(false) };
            let before = last_commit(&tree).await?;
            if self.seen_commit == Some(before) {
                return Ok(true);
            }
            if self.compactor.step(&tree, &self.segments).await? == Compacted::Nothing {
                break;
            }
            tree.commit().await?;
            // The step's own commit is one.
            let is_busy = last_commit(&tree).await? > before + 1;
            drop(tree);
            tokio::time::sleep(if is_busy { STEP_PAUSE_BUSY } else { STEP_PAUSE_IDLE }).await;
        }
        let Some(tree) = self.tree.upgrade() else { return Ok(false) };
        let horizon = self.horizon.at(clock::monotonic_ms(), tree.new_segment_id());
        let limits = Limits::new(&GcOptions { dry_run: false, grace: GRACE }, horizon);
        let report = if list_is_due(&tree).await? {
            self.compactor.try_stuck_again();
            collect(&tree, &self.segments, &limits, &mut |_| ()).await?
        } else {
            let mut report = GcReport::default();
            remove_dead(&tree, &self.segments, &limits, &mut report, &mut |_| ()).await?;
            report
        };
        let is_done = report.young_objects == 0 && !self.compactor.waits();
        self.seen_commit = if is_done { Some(last_commit(&tree).await?) } else { None };
        Ok(true)
    }
}

async fn last_commit(tree: &Tree) -> Result<u64, BackendError> {
    tree.run(|view| Ok(view.counters().commit)).await
}

/// Whether all objects were last listed too long ago.
async fn list_is_due(tree: &Tree) -> Result<bool, BackendError> {
    let stored = tree.run(|view| view.get(Key::Volume(VolumeKey::Collected))).await?;
    let last_ms = stored.and_then(|value| Collected::decode(&value).ok()).map_or(0, |collected| collected.unix_ms);
    Ok(clock::unix_ms().saturating_sub(last_ms) >= LIST_EVERY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_behind_the_horizon_an_hour_after_they_were_named() {
        let id = |number| SegmentId::new(0, 1, number);
        let hour_ms = GRACE.as_millis() as u64;
        let mut horizon = Horizon::new(id(1));
        assert_eq!(horizon.at(hour_ms * 2, id(2)), id(1));
        assert_eq!(horizon.at(hour_ms * 2 + 1, id(3)), id(1));
        assert_eq!(horizon.at(hour_ms * 3 - 1, id(4)), id(1));
        assert_eq!(horizon.at(hour_ms * 3, id(5)), id(2));
        assert_eq!(horizon.at(hour_ms * 5, id(6)), id(5));
    }
}
