//! A check of a volume that is not mounted here.

use crate::check::report::{FsckOptions, FsckReport};
use crate::check::run::{Subject, check, repair};
use crate::claimed::Claimed;
use crate::error::VolumeError;
use crate::look::look;
use crate::progress::Progress;
use crate::runtime;
use crate::store::{Location, Store};

/// Checks a volume, and repairs it if `options` say so: as its writer, with a claim. Calls `progress` several times per
/// second.
///
/// # Errors
/// The check itself failed: the store, there is no volume, or, for a repair, a process has it or has left it without
/// unmounting.
///
/// # Blocking
/// For the store, until the whole tree is read.
pub fn fsck(
    location: &Location,
    options: &FsckOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<FsckReport, VolumeError> {
    runtime::block_on(async {
        let store = Store::connect(location, None)?;
        let record = look(location, &*store.hasty).await?;
        let subject = Subject { store: store.patient.clone(), salt: record.salt, data: options.data };
        if !options.repair {
            return check(&subject, progress).await.map_err(VolumeError::Store);
        }
        let claimed = Claimed::of_unmounted(location, &store, &record).await?;
        let report = repair(&subject, &claimed.tree, progress).await;
        claimed.close().await.and(report).map_err(VolumeError::Store)
    })
}
