//! The store of a volume: where it is, how to reach it, what its errors mean.
//!
//! ```text
//! PrefixStore -> Retry -> Count -> layers of a test -> S3, GCS, Azure, directory, memory
//! ```
//!
//! Everything else in this crate sees an [`ObjectStore`] rooted at the volume's prefix. Requests are repeated in
//! one place, [`retry`]: the client of `object_store` and SlateDB do not repeat any.

mod classify;
mod connect;
mod count;
mod doctor;
mod environment;
mod errors;
mod failure;
mod fault;
mod http;
mod limit;
mod listing;
mod location;
mod patience;
mod profile;
mod profile_keys;
mod request;
mod retry;
#[cfg(test)]
pub(crate) mod tests;
mod time;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};
use slackwater_sync::shim::Arc;

pub(crate) use classify::classify;
pub(crate) use connect::make_place;
pub(crate) use count::{Count, Counts};
pub use doctor::{StoreCheck, check_store};
pub use environment::Environment;
pub(crate) use errors::{explain, fenced, is_missing, of_database, of_store, reason};
pub use failure::Failure;
pub use fault::{Fault, Rule};
pub use location::Location;
pub use patience::Patience;
pub use request::{Layer, Layered, Operation, Request};
use retry::Retry;

use crate::error::VolumeError;
use crate::runtime;

/// An open store. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// The store for work in the background: it waits long for a store that is slow or gone.
    pub(crate) patient: Arc<dyn ObjectStore>,
    /// The store for what a person waits for: the same one, with the same counts and retry budget.
    pub(crate) hasty: Arc<dyn ObjectStore>,
    /// Whether it can replace an object on the condition that it is unchanged.
    pub(crate) has_if_match: bool,
    count: Arc<Count>,
}

impl Store {
    /// Connects to the store of `location`. All paths are below its prefix. Sends no request.
    ///
    /// # Errors
    /// [`VolumeError::Location`]: settings are missing or wrong, or a `file:` directory does not exist.
    ///
    /// # Blocking
    /// Reads profiles and directories.
    pub(crate) fn connect(location: &Location, upload_limit_bytes_per_s: Option<u64>) -> Result<Self, VolumeError> {
        let count = Arc::new(Count::default());
        let objects = Arc::new(Layered::new(count.clone(), connect::connect(location)?));
        let patience = location.patience();
        let patient = Retry::new(objects, patience.unwrap_or(Patience::LONG), location.has_attributes())
            .limited_to(upload_limit_bytes_per_s);
        let hasty = patient.with(patience.unwrap_or(Patience::SHORT));
        let has_if_match = location.has_attributes();
        Ok(Self { patient: Arc::new(patient), hasty: Arc::new(hasty), has_if_match, count })
    }

    /// The requests that reached the store.
    pub(crate) fn counts(&self) -> Counts {
        self.count.counts()
    }
}

/// The names directly below a place, each of which may be the prefix of a volume. None if there is no such place; that of a
/// directory which is missing with the one above is not known, since its disk may not be mounted.
///
/// # Errors
/// The store failed.
///
/// # Blocking
/// For the store: one request for a thousand names.
pub fn names_below(location: &Location) -> Result<Vec<String>, VolumeError> {
    if location.is_gone() {
        return Ok(Vec::new());
    }
    let listed = runtime::block_on(async {
        let store = Store::connect(location, None)?.hasty;
        store.list_with_delimiter(None).await.map_err(|error| explain(location, "list", &error))
    })?;
    Ok(listed.common_prefixes.iter().filter_map(|prefix| Some(prefix.filename()?.to_owned())).collect())
}

/// Makes an object whose content is like no other's. False if there is another object of this name.
///
/// # Errors
/// The store's. The object may be there nonetheless.
pub(crate) async fn create(store: &dyn ObjectStore, path: &Path, content: Bytes) -> Result<bool, Error> {
    match store.put_opts(path, content.clone().into(), PutMode::Create.into()).await {
        Ok(_) => return Ok(true),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
        Err(error) => return Err(error),
    }
    // It may be ours: a put whose reply was lost is repeated.
    let found = async { store.get(path).await?.bytes().await };
    match found.await {
        Ok(found) => Ok(found == content),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
