//! Listings that go on after a failure where they stopped.

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

use super::classify::classify;
use super::patience::{Worth, worth};
use super::retry::Retry;

/// A listing on its way.
struct Listing {
    place: Place,
    /// Whether the entries so far came in order, so that the last one says which are missing. A `file:` store has no
    /// order.
    is_ordered: bool,
    entries: Option<Entries>,
}

/// Where a listing stands.
struct Place {
    store: Retry,
    prefix: Option<Path>,
    /// The last entry that was passed on, or the offset of the caller.
    last: Option<Path>,
}

type Entries = BoxStream<'static, Result<ObjectMeta>>;

/// The objects below `prefix` after `offset`.
pub(super) fn list(store: Retry, prefix: Option<Path>, offset: Option<Path>) -> Entries {
    let place = Place { store, prefix, last: offset };
    let listing = Listing { place, is_ordered: true, entries: None };
    stream::try_unfold(listing, |mut listing| async move {
        let entry = listing.next().await?;
        Ok(entry.map(|entry| (entry, listing)))
    })
    .boxed()
}

impl Listing {
    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        let (entry, entries) = match self.entries.take() {
            None => self.place.begin().await?,
            Some(mut entries) => match self.place.next(&mut entries).await {
                Ok(entry) => (entry, entries),
                Err(error) if self.is_ordered && worth(classify(&error)) != Worth::Never => self.place.begin().await?,
                Err(error) => return Err(error),
            },
        };
        self.entries = Some(entries);
        if let Some(entry) = &entry {
            self.is_ordered &= self.place.last.as_ref().is_none_or(|last| *last < entry.location);
            self.place.last = Some(entry.location.clone());
        }
        Ok(entry)
    }
}

impl Place {
    /// The next entry, from a listing that begins here.
    async fn begin(&self) -> Result<(Option<ObjectMeta>, Entries)> {
        let path = self.prefix.clone().unwrap_or_default();
        let begin = || async {
            let mut entries = match &self.last {
                Some(last) => self.store.inner.list_with_offset(self.prefix.as_ref(), last),
                None => self.store.inner.list(self.prefix.as_ref()),
            };
            let entry = self.next(&mut entries).await?;
            Ok((entry, entries))
        };
        self.store.repeat(&path, begin).await
    }

    async fn next(&self, entries: &mut Entries) -> Result<Option<ObjectMeta>> {
        self.store.limited(0, entries.next().map(Ok)).await.and_then(Option::transpose)
    }
}
