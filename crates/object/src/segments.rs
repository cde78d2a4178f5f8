//! The objects of segments.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use slackwater::{BackendError, ErrorKind};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

#[cfg(test)]
use crate::format::FOOTER_TAIL_BYTES;
use crate::format::{Footer, SegmentId};
use crate::pieces::Pieces;
use crate::store::{classify, reason};

/// The folder of all segments.
pub(crate) const FOLDER: &str = "seg";

/// Stores and reads the objects of segments. Clones share the store.
#[derive(Clone)]
pub(crate) struct Segments {
    /// Rooted at the prefix of the volume.
    store: Arc<dyn ObjectStore>,
    uploads: Arc<AtomicU64>,
}

/// Counts an upload until it is dropped: an upload that is given up ends without an answer.
struct Upload<'a>(&'a AtomicU64);

impl<'a> Upload<'a> {
    fn begin(uploads: &'a AtomicU64) -> Self {
        uploads.fetch_add(1, Ordering::Relaxed);
        Self(uploads)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The object of a segment: `seg/XX/ID`. Ids are in the order of time, so XX is their end: neighbours in time are under
/// different prefixes, on which some stores base their limits.
pub(crate) fn path_of(id: SegmentId) -> Path {
    let name = id.to_string();
    Path::from_iter([FOLDER, &name[name.len() - 2..], &name])
}

/// The segment of an object below [`FOLDER`]; `None` if the object is none.
pub(crate) fn id_of(path: &Path) -> Option<SegmentId> {
    let name = path.filename().filter(|name| name.len() == 32)?;
    let id = SegmentId::from_bytes(u128::from_str_radix(name, 16).ok()?.to_be_bytes());
    (path_of(id) == *path).then_some(id)
}

impl Segments {
    pub(crate) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, uploads: Arc::default() }
    }

    /// Segments that are being stored now.
    pub(crate) fn uploads(&self) -> u64 {
        self.uploads.load(Ordering::Relaxed)
    }

    /// Stores a segment: its data in pieces, and the footer.
    ///
    /// # Errors
    /// The store's. The object may be there nonetheless.
    pub(crate) async fn put(
        &self,
        id: SegmentId,
        data: impl IntoIterator<Item = Bytes>,
        footer: &Footer,
    ) -> Result<(), BackendError> {
        let _upload = Upload::begin(&self.uploads);
        let path = path_of(id);
        let payload: PutPayload = data.into_iter().chain([footer.to_bytes()]).collect();
        self.store.put(&path, payload).await.map_err(|error| failed("write", &path, &error))?;
        Ok(())
    }

    /// A range of the data of a segment.
    ///
    /// # Errors
    /// The store's; `Io` if the object is missing or shorter. The text and the log name the object.
    pub(crate) async fn get(&self, id: SegmentId, range: Range<u32>) -> Result<Pieces, BackendError> {
        let pieces = self.get_at_most(id, range.clone()).await?;
        if pieces.len() != range.len() {
            return Err(damaged(id, format_args!("it ends at byte {}", range.start as usize + pieces.len())));
        }
        Ok(pieces)
    }

    /// Reads a range as [`Segments::get`] does, up to the end of the object at most.
    ///
    /// # Errors
    /// As [`Segments::get`], also if the range begins behind the end.
    pub(crate) async fn get_at_most(&self, id: SegmentId, range: Range<u32>) -> Result<Pieces, BackendError> {
        let path = path_of(id);
        let wanted = GetRange::Bounded(u64::from(range.start)..u64::from(range.end));
        let options = GetOptions { range: Some(wanted), ..GetOptions::default() };
        let read = async { Pieces::of(self.store.get_opts(&path, options).await?).await };
        read.await.map_err(|error| failed("read", &path, &error))
    }

    /// The footer of an object, and the length of its data.
    ///
    /// # Errors
    /// As [`Segments::get`]; `Io` if the footer is damaged.
    #[cfg(test)]
    pub(crate) async fn footer(&self, id: SegmentId) -> Result<(Footer, u64), BackendError> {
        let path = path_of(id);
        let read = |range: Range<u64>| async {
            self.store.get_range(&path, range).await.map_err(|error| failed("read", &path, &error))
        };
        let size = self.store.head(&path).await.map_err(|error| failed("read", &path, &error))?.size;
        let Some(tail_at) = size.checked_sub(FOOTER_TAIL_BYTES as u64) else {
            return Err(damaged(id, format_args!("it has no footer")));
        };
        let tail = read(tail_at..size).await?;
        let tail = tail.as_ref().try_into().map_err(|_| damaged(id, format_args!("it changed its length")))?;
        let Some(at) = tail_at.checked_sub(u64::from(Footer::encoded_len(tail))) else {
            return Err(damaged(id, format_args!("it has no footer")));
        };
        let footer = Footer::from_bytes(&read(at..size).await?);
        Ok((footer.map_err(|error| damaged(id, format_args!("{error}")))?, at))
    }

    /// All of an object: the data, and the footer.
    ///
    /// # Errors
    /// The store's; `Io` if the object is missing.
    pub(crate) async fn whole(&self, id: SegmentId) -> Result<Bytes, BackendError> {
        let path = path_of(id);
        let read = async { self.store.get(&path).await?.bytes().await };
        read.await.map_err(|error| failed("read", &path, &error))
    }

    /// All objects in the folder of segments.
    pub(crate) fn list(&self) -> BoxStream<'static, Result<ObjectMeta, BackendError>> {
        let folder = Path::from(FOLDER);
        let listed = self.store.list(Some(&folder));
        listed.map_err(move |error| failed("list", &folder, &error)).boxed()
    }

    /// Removes the objects of segments, many with one request where the store can. It is no error if one is missing.
    ///
    /// # Errors
    /// The store's; some of the objects may be gone.
    pub(crate) async fn delete(&self, ids: Vec<SegmentId>) -> Result<(), BackendError> {
        let paths = stream::iter(ids).map(|id| Ok(path_of(id))).boxed();
        let mut deleted = self.store.delete_stream(paths);
        while let Some(answer) = deleted.next().await {
            match answer {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(failed("delete", &Path::from(FOLDER), &error)),
            }
        }
        Ok(())
    }
}

/// Reports that a segment is not what was stored.
pub(crate) fn damaged(id: SegmentId, what: impl fmt::Display) -> BackendError {
    let path = path_of(id);
    tracing::error!(target: "slackwater::object", object = %path, "a segment is damaged: {what}");
    BackendError::new(ErrorKind::Io, format!("object {path} is damaged: {what}"))
}

fn failed(action: &str, path: &Path, error: &object_store::Error) -> BackendError {
    let (kind, reason) = (classify(error).kind(), reason(error));
    tracing::error!(target: "slackwater::object", object = %path, reason, "cannot {action} a segment");
    // A segment that is missing is damage of the volume, whatever the store calls it.
    let is_passed_on =
        matches!(kind, ErrorKind::NoSpace | ErrorKind::Quota | ErrorKind::Permission | ErrorKind::TimedOut);
    BackendError::new(
        if is_passed_on { kind } else { ErrorKind::Io },
        format!("cannot {action} object {path}: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::layers::{Fault, Layered, Rule};

    #[tokio::test]
    async fn uploads_are_counted_until_they_end_or_are_given_up() {
        let fault = Arc::new(Fault::new());
        fault.add(Rule::hang());
        let segments = Segments::new(Arc::new(Layered::new(fault.clone(), Arc::new(InMemory::new()))));
        let (footer, data) = (Footer::default(), || [Bytes::from_static(b"data")]);
        let first = segments.put(SegmentId::new(1, 1, 1), data(), &footer);
        let mut second = Box::pin(segments.put(SegmentId::new(2, 1, 2), data(), &footer));
        assert_eq!(segments.uploads(), 0);
        let both = async {
            fault.held(1).await;
            assert!(futures::poll!(second.as_mut()).is_pending());
            assert_eq!(segments.clone().uploads(), 2);
            drop(second);
            assert_eq!(segments.uploads(), 1);
            fault.release();
        };
        let (stored, ()) = futures::join!(first, both);
        stored.expect("the store works");
        assert_eq!(segments.uploads(), 0);
    }
}
