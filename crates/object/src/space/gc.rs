//! A collection in a volume that is not mounted.

use crate::claimed::Claimed;
use crate::error::VolumeError;
use crate::look::look;
use crate::progress::Progress;
use crate::runtime;
use crate::segments::Segments;
use crate::space::collect::{Limits, collect};
use crate::space::report::{GcOptions, GcReport};
use crate::store::{Location, Store};

/// Deletes the objects of a volume that nothing uses, as its writer, with a claim. A mounted volume does so by itself, and
/// refuses this. Safe beside readers that are not further behind than the grace time.
///
/// # Errors
/// The store failed, there is no volume, a process has it for writing, or one has ended without unmounting it.
///
/// # Blocking
/// For the store, until all objects are listed.
pub fn gc(
    location: &Location,
    options: &GcOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<GcReport, VolumeError> {
    runtime::block_on(async {
        let store = Store::connect(location, None)?;
        let record = look(location, &*store.hasty).await?;
        let claimed = Claimed::of_unmounted(location, &store, &record).await?;
        let tree = &claimed.tree;
        // Nothing else works on the volume.
        let limits = Limits::new(options, tree.new_segment_id());
        let report = collect(tree, &Segments::new(store.patient.clone()), &limits, progress).await;
        claimed.close().await.and(report).map_err(VolumeError::Store)
    })
}
