//! A collection in a volume that is not mounted.

use crate::maintenance::Maintenance;
use crate::opened::look;
use crate::segments::Segments;
use crate::space::collect::{Limits, collect};
use crate::store::{Location, Store};
use crate::volume::{GcOptions, GcReport, Progress, VolumeError};

/// Collects as the writer of the volume, with a claim.
///
/// # Errors
/// The store's, there is no volume, or a process has it or has left it without unmounting: its local log may have
/// changes that only a mount can bring back, and that are lost once there is a later writer.
pub(crate) async fn gc(
    location: &Location,
    options: &GcOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<GcReport, VolumeError> {
    let store = Store::connect(location, None)?;
    let record = look(location, &*store.hasty).await?;
    let maintenance = Maintenance::begin(location, &store, &record).await?;
    let tree = &maintenance.tree;
    // Nothing else works on the volume.
    let limits = Limits::new(options, tree.new_segment_id());
    let report = collect(tree, &Segments::new(store.patient.clone()), &limits, progress).await;
    maintenance.end(report).await
}
