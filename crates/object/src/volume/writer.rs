//! The writer's part of an open volume.

use parking_lot::Mutex;
use slackwater::BackendError;
use slackwater_sync::shim::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::claimed::Claimed;
use crate::clock;
use crate::error::VolumeError;
use crate::format::VolumeRecord;
use crate::nodes::{OpenNodes, reap};
use crate::segments::Segments;
use crate::space;
use crate::store::{Location, Store};
use crate::tree::{LogPlace, Tree, TreeOptions};
use crate::volume::OpenOptions;
use crate::writer::{Claim, ClaimError, Claims, HEARTBEAT};

/// The claim that makes this process the writer, and the tasks of a writer.
pub(super) struct Writer {
    pub(super) claimed: Claimed,
    heart: JoinHandle<()>,
    /// Compacts and collects.
    keeper: JoinHandle<()>,
    /// The nodes that are closed, until their task begins.
    closed: Mutex<Option<Closed>>,
}

/// The open nodes, and the numbers of those that are closed.
type Closed = (Weak<OpenNodes>, UnboundedReceiver<u64>);

/// Claims the volume of `record`, and opens its tree for a mount.
///
/// # Errors
/// As [`Claimed::open`].
pub(super) async fn claim(
    location: &Location,
    store: &Store,
    record: &VolumeRecord,
    options: &OpenOptions,
) -> Result<Claimed, VolumeError> {
    let claims = Claims::new(store.patient.clone()).kept_by(options.keeper);
    let log = options.log_dir.clone().map(|folder| LogPlace {
        folder,
        volume: record.id.to_be_bytes(),
        must_continue: options.must_continue,
    });
    let tree_options = TreeOptions { log, ..TreeOptions::new(record.salt) };
    Claimed::open(location, store, &claims, options.take_over, tree_options).await
}

impl Writer {
    /// Starts the tasks of a writer.
    pub(super) fn start(claimed: Claimed, segments: &Segments, closed: Closed, runtime: &Handle) -> Self {
        let keeper = space::start(&claimed.tree, segments.clone(), runtime);
        let heart = runtime.spawn(beat(Arc::clone(&claimed.claim), Arc::clone(&claimed.tree)));
        Self { claimed, heart, keeper, closed: Mutex::new(Some(closed)) }
    }

    /// Begins to free nodes without a name that are not open. Only the first call does anything.
    pub(super) fn free_nameless(&self, runtime: &Handle) {
        if let Some((nodes, closed)) = self.closed.lock().take() {
            runtime.spawn(reap(Arc::clone(&self.claimed.tree), nodes, closed));
        }
    }

    /// Commits what is left, and gives the volume back.
    ///
    /// # Errors
    /// As [`Claimed::close`].
    pub(super) async fn close(&self) -> Result<(), BackendError> {
        self.stop_tasks();
        self.claimed.close().await
    }

    fn stop_tasks(&self) {
        self.heart.abort();
        self.keeper.abort();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop_tasks();
    }
}

/// Confirms the claim from time to time, until it is lost.
async fn beat(claim: Arc<Claim>, tree: Arc<Tree>) {
    let mut commits = 0;
    let mut last_commit = None;
    loop {
        sleep(HEARTBEAT).await;
        let status = tree.status();
        if status.commits > commits {
            commits = status.commits;
            last_commit = status.last_commit_age_ms.map(|age_ms| clock::unix_ms().saturating_sub(age_ms));
        }
        match claim.beat(clock::unix_ms(), last_commit).await {
            Ok(()) => {}
            Err(ClaimError::InUse(_)) => return tree.give_up(),
            Err(ClaimError::Store(error)) => tracing::warn!(%error, "the claim of the volume could not be confirmed"),
        }
    }
}
