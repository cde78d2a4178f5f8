//! Making an empty volume.

use std::fs::File;
use std::io::Read;

use object_store::path::Path;
use slackwater::{BackendError, ErrorKind};

use crate::claimed::Claimed;
use crate::clock;
use crate::delete::{delete_at, is_interrupted};
use crate::error::VolumeError;
use crate::format::{Key, ROOT, VOLUME_OBJECT, VolumeRecord};
use crate::look::look;
use crate::names;
use crate::store::{Location, Store, create, explain, make_place};

/// Makes an empty volume, whose root has these permissions. The last step is `volume.json`, so a volume that has one is
/// complete.
///
/// # Errors
/// There is one already, another process makes one, or the store failed.
pub(crate) async fn mkfs(location: &Location, mode: u32) -> Result<(), VolumeError> {
    make_place(location)?;
    let store = Store::connect(location, None)?;
    match look(location, &*store.hasty).await {
        Err(VolumeError::NoVolume(_)) => {}
        Ok(_) => return Err(VolumeError::Exists(location.to_string())),
        Err(error) => return Err(error),
    }
    // Objects of a deleted volume must not become part of the new one.
    if is_interrupted(&*store.hasty).await.map_err(|error| explain(location, "make", &error))? {
        delete_at(location).await?;
        make_place(location)?;
    }
    let (id, salt) = (u128::from_ne_bytes(random()?), u64::from_ne_bytes(random()?));
    let record = VolumeRecord { id, salt, created_unix_ms: clock::unix_ms() };
    let Claimed { tree, claim } = Claimed::of_new(location, &store, &record).await?;
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let made = tree.run(|view| {
        // An earlier attempt may have come this far.
        if view.get(Key::Inode(ROOT))?.is_none() {
            names::make_root(view, mode, owner);
        }
        Ok(())
    });
    let made = made.await;
    let closed = tree.close().await;
    let is_created = match made.and(closed) {
        Ok(()) => {
            let created = create(&*store.hasty, &Path::from(VOLUME_OBJECT), record.encode()).await;
            created.map_err(|error| explain(location, "make", &error))
        }
        Err(error) => Err(VolumeError::Store(error)),
    };
    let released = claim.release(clock::unix_ms()).await.map_err(|error| error.at(location));
    if is_created? { released } else { Err(VolumeError::Exists(location.to_string())) }
}

fn random<const N: usize>() -> Result<[u8; N], VolumeError> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| VolumeError::Store(BackendError::new(ErrorKind::Io, format!("/dev/urandom: {error}"))))?;
    Ok(bytes)
}
