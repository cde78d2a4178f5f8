//! Deleting a whole volume.
//!
//! ```text
//! claim -> deleted.json -> volume.json away -> meta/ and seg/ away -> deleted.json away -> claims away
//! ```
//!
//! # Invariants
//! E1. Without `volume.json` there is no volume. So what an interrupted deletion leaves is never mounted.
//! E2. `deleted.json` says that what is left belongs to a volume that was deleted. [`mkfs`](crate::mkfs) deletes it first:
//!     a new volume must not begin with the metadata of an old one.
//! E3. Until the last object is gone, the claim keeps others from making or opening a volume here. A process that lost
//!     the volume earlier is fenced by nothing after that: a prefix should not be used again while one may be alive.
//! E4. Only objects of the names that a volume has are deleted, and only if `volume.json`, `deleted.json` or a claim
//!     shows that there was one.

use std::fs;
use std::path::Path as FsPath;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use crate::clock;
use crate::error::VolumeError;
use crate::format::{DELETED_OBJECT, VOLUME_OBJECT};
use crate::runtime;
use crate::segments;
use crate::store::{Failure, Location, Store, classify, explain};
use crate::tree::FOLDER as TREE_FOLDER;
use crate::writer::{Claims, FOLDER as CLAIMS_FOLDER};

/// Objects that are deleted together.
const DELETED_TOGETHER: usize = 1000;
/// Objects are listed again until none is found: a process that has lost the volume may still write some.
const PASSES_MAX: u32 = 16;

/// Deletes a volume and all of its objects, or what an interrupted deletion has left. It is no error if there is none.
/// Once the first object is deleted, no process can open the volume.
///
/// # Errors
/// A process has the volume for writing: nothing is deleted then. Or the store failed, and the call can be repeated.
///
/// # Blocking
/// For the store, until all objects are deleted.
pub fn delete(location: &Location) -> Result<(), VolumeError> {
    runtime::block_on(delete_at(location))
}

/// The work of [`delete`], in the runtime.
///
/// # Errors
/// As [`delete`].
pub(crate) async fn delete_at(location: &Location) -> Result<(), VolumeError> {
    let failed = |error: Error| explain(location, "delete", &error);
    if location.is_gone() {
        return Ok(());
    }
    let store = Store::connect(location, None)?.hasty;
    let claims = Claims::new(store.clone());
    let is_here = exists(&*store, VOLUME_OBJECT).await.map_err(failed)?
        || is_interrupted(&*store).await.map_err(failed)?
        || claims.exist().await.map_err(failed)?;
    if is_here {
        let claim = claims.acquire(false, clock::unix_ms()).await.map_err(|error| error.at(location))?;
        claim.confirm(clock::unix_ms()).await.map_err(|error| error.at(location))?;
        delete_all(&*store).await.map_err(failed)?;
    }
    if let Some(directory) = location.local_directory() {
        for folder in [TREE_FOLDER, segments::FOLDER, CLAIMS_FOLDER] {
            remove_empty(&directory.join(folder));
        }
        let _ = fs::remove_dir(directory);
    }
    Ok(())
}

/// Whether a deletion was interrupted here (E2).
pub(crate) async fn is_interrupted(store: &dyn ObjectStore) -> Result<bool, Error> {
    exists(store, DELETED_OBJECT).await
}

async fn delete_all(store: &dyn ObjectStore) -> Result<(), Error> {
    let [volume, deleted] = [VOLUME_OBJECT, DELETED_OBJECT].map(Path::from);
    store.put(&deleted, b"{}\n".as_slice().into()).await?;
    remove(store, &volume).await?; // E1
    for folder in [TREE_FOLDER, segments::FOLDER] {
        delete_folder(store, &Path::from(folder)).await?;
    }
    remove(store, &deleted).await?;
    delete_folder(store, &Path::from(CLAIMS_FOLDER)).await // E3
}

async fn delete_folder(store: &dyn ObjectStore, folder: &Path) -> Result<(), Error> {
    for _ in 0..PASSES_MAX {
        let mut listed = 0;
        let mut objects = store.list(Some(folder)).map_ok(|object| object.location).try_chunks(DELETED_TOGETHER);
        while let Some(paths) = objects.next().await {
            let paths = paths.map_err(|failed| failed.1)?;
            listed += paths.len();
            let mut deleted = store.delete_stream(stream::iter(paths).map(Ok).boxed());
            while let Some(answer) = deleted.next().await {
                match answer {
                    Err(error) if classify(&error) != Failure::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        if listed == 0 {
            return Ok(());
        }
    }
    Err(Error::Generic { store: "slackwater", source: format!("a process still writes to {folder}/").into() })
}

async fn remove(store: &dyn ObjectStore, object: &Path) -> Result<(), Error> {
    match store.delete(object).await {
        Err(error) if classify(&error) != Failure::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn exists(store: &dyn ObjectStore, object: &str) -> Result<bool, Error> {
    match store.head(&Path::from(object)).await {
        Ok(_) => Ok(true),
        Err(error) if classify(&error) == Failure::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a directory and those below it that have no files. Others stay, and do no harm.
fn remove_empty(directory: &FsPath) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}
