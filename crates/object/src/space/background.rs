//! Compaction and collection in an open volume.
//!
//! A pass reads the records of segments, which are next to each other in the tree. It is left out if nothing was
//! committed since the last one and no dead segment waits for the end of the grace time: an idle volume makes no request
//! for space. Between two steps of a pass is a pause, longer on an idle volume.

use std::time::Duration;

use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock;
use crate::format::{Collected, Decode, Key, VolumeKey};
use crate::segments::Segments;
use crate::space::collect::{collect, remove_dead};
use crate::space::compact::{Compacted, Compactor};
use crate::tree::Tree;
use crate::volume::{GcOptions, GcReport};

/// Readers that are less than this behind find all that they need (G3). No upload takes so long.
const GRACE: Duration = Duration::from_secs(3600);
const PASS_PAUSE: Duration = Duration::from_secs(300);
/// A step makes at most about 20 requests.
const STEP_PAUSE_IDLE: Duration = Duration::from_secs(30);
const STEP_PAUSE_BUSY: Duration = Duration::from_secs(1);
/// Objects without records are looked for this often: a listing needs a request for each 1000 objects.
const LIST_EVERY_MS: u64 = 24 * 3_600_000;

/// Starts the task. It ends with the tree, or when another writer has taken the volume.
pub(crate) fn start(tree: &Arc<Tree>, segments: Segments, runtime: &Handle) -> JoinHandle<()> {
    let tree = Arc::downgrade(tree);
    runtime.spawn(async move {
        let mut keeper = Keeper { tree, segments, compactor: Compactor::new(), seen_commit: None };
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
    /// The number of the last commit when a pass found nothing to do, not even later.
    seen_commit: Option<u64>,
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
        let options = GcOptions { dry_run: false, grace: GRACE };
        let report = if list_is_due(&tree).await? {
            collect(&tree, &self.segments, &options, &mut |_| ()).await?
        } else {
            let mut report = GcReport::default();
            remove_dead(&tree, &self.segments, &options, &mut report, &mut |_| ()).await?;
            report
        };
        let is_done = report.young_objects == 0;
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
