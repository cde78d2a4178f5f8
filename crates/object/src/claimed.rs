//! The tree of a volume, open for writing under a claim. A mount has it, and so have mkfs, repairs and collections.
//!
//! ```text
//! open: claim -> SlateDB, with the claim confirmed -> local log
//! close: commit -> SlateDB closed -> claim released
//! ```

use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;

use crate::clock;
use crate::error::VolumeError;
use crate::format::VolumeRecord;
use crate::store::{Location, Store, explain, of_store};
use crate::tree::{Guard, OVERTAKEN, Place, Tree, TreeOptions, log_has_changes};
use crate::writer::{Claim, ClaimError, Claims};

/// See the [module documentation](self).
pub(crate) struct Claimed {
    pub(crate) tree: Arc<Tree>,
    pub(crate) claim: Arc<Claim>,
}

impl Claimed {
    /// Claims a volume and opens its tree.
    ///
    /// # Errors
    /// The store's, another process has the volume, or [`VolumeError::Overtaken`]. The claim is given back then, unless
    /// there are changes in the local log that can be replayed: a claim that is left behind keeps repairs and other machines
    /// from writing before that.
    pub(crate) async fn open(
        location: &Location,
        store: &Store,
        claims: &Claims,
        take_over: bool,
        options: TreeOptions,
    ) -> Result<Self, VolumeError> {
        let claimed = claims.acquire(take_over, clock::unix_ms()).await;
        let claim = Arc::new(claimed.map_err(|error| error.at(location))?);
        let log = options.log.clone();
        let place = Place { store: store.patient.clone(), has_if_match: store.has_if_match, guard: guard(&claim) };
        let opened = Tree::open(place, options).await;
        let is_overtaken = opened.as_ref().is_err_and(|error| error.kind() == OVERTAKEN);
        let has_changes = || log.is_some_and(|log| log_has_changes(&log.folder, log.volume));
        if opened.is_err()
            && (is_overtaken || !has_changes())
            && let Err(error) = claim.release(clock::unix_ms()).await
        {
            tracing::debug!(%error, "releasing a claim");
        }
        let failed = |error| if is_overtaken { VolumeError::Overtaken } else { VolumeError::Store(error) };
        let (tree, set_aside) = opened.map_err(failed)?;
        for log in &set_aside {
            tracing::error!(log = %log.display(), "another writer has had the volume: a local log was set aside");
        }
        Ok(Self { tree, claim })
    }

    /// Claims a place where a volume is to be made, and opens its tree.
    ///
    /// # Errors
    /// The store's, or another process has it.
    pub(crate) async fn of_new(location: &Location, store: &Store, record: &VolumeRecord) -> Result<Self, VolumeError> {
        let options = TreeOptions { may_be_damaged: true, ..TreeOptions::new(record.salt) };
        Self::open(location, store, &Claims::new(store.hasty.clone()), false, options).await
    }

    /// Claims a volume that is not mounted, and opens its tree.
    ///
    /// # Errors
    /// The store's, or a process has the volume or has left it without unmounting: its local log may have changes that
    /// only a mount can bring back, and that are lost once there is a later writer.
    pub(crate) async fn of_unmounted(
        location: &Location,
        store: &Store,
        record: &VolumeRecord,
    ) -> Result<Self, VolumeError> {
        let left_behind = Claims::new(store.hasty.clone()).is_left_behind().await;
        if left_behind.map_err(|error| explain(location, "open", &error))? {
            let text = "its last writer ended without unmounting it. Mount the volume and unmount it first";
            return Err(VolumeError::Store(BackendError::new(ErrorKind::Busy, text)));
        }
        Self::of_new(location, store, record).await
    }

    /// Commits what is left, and gives the volume back.
    ///
    /// # Errors
    /// Those of the commit; the claim is given back nonetheless.
    pub(crate) async fn close(&self) -> Result<(), BackendError> {
        let committed = self.tree.close().await;
        if let Err(error) = self.claim.release(clock::unix_ms()).await {
            // The next claimant on this machine sees that this process has ended.
            tracing::warn!(%error, "the volume could not be given back; it looks as if this process had died");
        }
        committed
    }
}

/// Confirms a claim for SlateDB.
fn guard(claim: &Arc<Claim>) -> Guard {
    let claim = Arc::clone(claim);
    Arc::new(move || {
        let claim = Arc::clone(&claim);
        Box::pin(async move {
            claim.confirm(clock::unix_ms()).await.map_err(|error| match error {
                ClaimError::InUse(holder) => BackendError::new(ErrorKind::Stale, format!("the volume is {holder}")),
                ClaimError::Store(error) => of_store(&error),
            })
        })
    })
}
