//! Work on a volume that is not mounted, as its writer: mkfs, repairs and collections.

use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;

use crate::clock;
use crate::format::VolumeRecord;
use crate::opened::{open_tree, refused, tree_options};
use crate::store::{Location, Store, explain};
use crate::tree::{Tree, TreeOptions};
use crate::volume::VolumeError;
use crate::writer::{Claim, Claims};

/// The tree of a volume, held with a claim.
pub(crate) struct Maintenance {
    pub(crate) tree: Arc<Tree>,
    pub(crate) claim: Arc<Claim>,
}

impl Maintenance {
    /// Claims the volume and opens its tree.
    ///
    /// # Errors
    /// The store's, or a process has the volume or has left it without unmounting: its local log may have changes that
    /// only a mount can bring back, and that are lost once there is a later writer.
    pub(crate) async fn begin(location: &Location, store: &Store, record: &VolumeRecord) -> Result<Self, VolumeError> {
        let claims = Claims::new(store.hasty.clone());
        if claims.is_left_behind().await.map_err(|error| explain(location, "open", &error))? {
            let text = "its last writer ended without unmounting it. Mount the volume and unmount it first";
            return Err(VolumeError::Store(BackendError::new(ErrorKind::Busy, text)));
        }
        Self::with(location, store, record, claims).await
    }

    /// Claims a place where a volume is to be made, and opens its tree.
    ///
    /// # Errors
    /// The store's, or another process has it.
    pub(crate) async fn of_new(location: &Location, store: &Store, record: &VolumeRecord) -> Result<Self, VolumeError> {
        Self::with(location, store, record, Claims::new(store.hasty.clone())).await
    }

    async fn with(
        location: &Location,
        store: &Store,
        record: &VolumeRecord,
        claims: Claims,
    ) -> Result<Self, VolumeError> {
        let claimed = claims.acquire(false, clock::unix_ms()).await;
        let claim = Arc::new(claimed.map_err(|error| refused(location, error))?);
        let options = TreeOptions { may_be_damaged: true, ..tree_options(record) };
        let (tree, _) = open_tree(location, store, &claim, options).await?;
        Ok(Self { tree, claim })
    }

    /// Commits, and gives the volume back. Returns the `outcome` of the work if it is in the store.
    ///
    /// # Errors
    /// Those of the work, or of the commit.
    pub(crate) async fn end<T>(self, outcome: Result<T, BackendError>) -> Result<T, VolumeError> {
        let closed = self.tree.close().await;
        if let Err(error) = self.claim.release(clock::unix_ms()).await {
            // The next claimant on this machine sees that this process has ended.
            tracing::warn!(%error, "the volume could not be given back; it looks as if this process had died");
        }
        closed.and(outcome).map_err(VolumeError::Store)
    }
}
