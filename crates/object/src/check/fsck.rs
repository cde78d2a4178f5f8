//! A check of a volume that is not mounted here.

use object_store::path::Path;

use crate::check::report::{FsckOptions, FsckReport};
use crate::check::run::{Subject, check, repair};
use crate::maintenance::Maintenance;
use crate::opened::{META_FOLDER, look};
use crate::store::{Location, Store};
use crate::volume::{Progress, VolumeError};

/// Checks a volume, and repairs it if `options` say so: as its writer, with a claim.
///
/// # Errors
/// The store's, there is no volume, or, for a repair, a process has it or has left it without unmounting.
pub(crate) async fn fsck(
    location: &Location,
    options: FsckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<FsckReport, VolumeError> {
    let store = Store::connect(location, None)?;
    let record = look(location, &*store.hasty).await?;
    let subject =
        Subject { store: store.patient.clone(), tree: Path::from(META_FOLDER), salt: record.salt, data: options.data };
    if !options.repair {
        return check(&subject, progress).await.map_err(VolumeError::Store);
    }
    let maintenance = Maintenance::begin(location, &store, &record).await?;
    let report = repair(&subject, &maintenance.tree, progress).await;
    maintenance.end(report).await
}
