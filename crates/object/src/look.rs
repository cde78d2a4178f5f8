//! Which volume is at a place.

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::error::VolumeError;
use crate::format::{VOLUME_OBJECT, VolumeRecord};
use crate::store::{Failure, Location, classify, explain};

/// Reads the record of the volume at a place.
///
/// # Errors
/// There is none, or one of a newer format, or the store failed.
pub(crate) async fn look(location: &Location, objects: &dyn ObjectStore) -> Result<VolumeRecord, VolumeError> {
    let read = async { objects.get(&Path::from(VOLUME_OBJECT)).await?.bytes().await };
    match read.await {
        Ok(bytes) => VolumeRecord::decode(&bytes)
            .map_err(|text| VolumeError::Unreadable { location: location.to_string(), text }),
        Err(error) if classify(&error) == Failure::NotFound => Err(VolumeError::NoVolume(location.to_string())),
        Err(error) => Err(explain(location, "open", &error)),
    }
}
