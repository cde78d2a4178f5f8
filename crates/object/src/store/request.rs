//! A request to a store, and the frame of layers that look at requests.
//!
//! A [`Layer`] says what happens before a request is passed on, and after it was answered. [`Layered`] puts it around
//! an [`ObjectStore`], whose many methods it reduces to [`Request`]s.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use slackwater_sync::shim::Arc;

/// The kind of a request.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Reads an object or a range of it.
    Get,
    /// Reads the attributes of an object.
    Head,
    /// Writes a whole object, over an older one if there is one.
    Put,
    /// Writes an object that must not exist.
    Create,
    /// Writes an object that must be the one that the caller knows.
    Update,
    /// Removes an object. Stores may remove many with one request; each object is counted.
    Delete,
    /// Reads names of objects: one page, or all pages.
    List,
    /// Copies an object within the store.
    Copy,
}

impl Operation {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 8] =
        [Self::Get, Self::Head, Self::Put, Self::Create, Self::Update, Self::Delete, Self::List, Self::Copy];
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Request {
    /// The kind of the request.
    pub operation: Operation,
    /// The object, or the prefix of a listing.
    pub path: Path,
    /// Bytes that it sends.
    pub sent_bytes: u64,
    /// Bytes that it asks for, if known beforehand.
    pub wanted_bytes: Option<u64>,
}

impl Request {
    fn new(operation: Operation, path: &Path) -> Self {
        Self { operation, path: path.clone(), sent_bytes: 0, wanted_bytes: None }
    }

    fn sending(operation: Operation, path: &Path, payload: &PutPayload) -> Self {
        Self { sent_bytes: payload.content_length() as u64, ..Self::new(operation, path) }
    }

    pub(super) fn get(path: &Path, options: &GetOptions) -> Self {
        let operation = if options.head { Operation::Head } else { Operation::Get };
        let wanted_bytes = match &options.range {
            Some(GetRange::Bounded(Range { start, end })) => Some(end.saturating_sub(*start)),
            Some(GetRange::Suffix(bytes)) => Some(*bytes),
            Some(GetRange::Offset(_)) | None => None,
        };
        Self { wanted_bytes, ..Self::new(operation, path) }
    }

    pub(super) fn put(path: &Path, payload: &PutPayload, options: &PutOptions) -> Self {
        let operation = match options.mode {
            PutMode::Overwrite => Operation::Put,
            PutMode::Create => Operation::Create,
            PutMode::Update(_) => Operation::Update,
        };
        Self::sending(operation, path, payload)
    }

    pub(super) fn list(prefix: Option<&Path>) -> Self {
        Self::new(Operation::List, prefix.unwrap_or(&Path::ROOT))
    }
}

/// A layer's work around each request.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// A value that [`Layer::before`] hands on about a request.
    type Note: Copy + Default + Send + Sync;

    /// Runs before the request is passed on. An error answers it, and the store below never sees it.
    async fn before(&self, request: &Request) -> Result<Self::Note>;

    /// Runs after the store below has answered, with its error if it failed; for listings, only if they failed. An
    /// error takes the place of the answer.
    async fn after(&self, _request: &Request, _note: Self::Note, _error: Option<&Error>) -> Result<()> {
        Ok(())
    }

    /// Whether [`Layer::body`] wants the bytes of an answer. Otherwise they pass by.
    fn takes_body(&self, _note: Self::Note) -> bool {
        false
    }

    /// Replaces a piece of the body of an answer, which starts `at` bytes into the body.
    async fn body(&self, _note: Self::Note, _at: u64, piece: Bytes) -> Result<Bytes> {
        Ok(piece)
    }
}

/// A store with a [`Layer`] around it.
#[derive(Debug)]
pub struct Layered<L: Layer> {
    layer: Arc<L>,
    inner: Arc<dyn ObjectStore>,
}

impl<L: Layer> Layered<L> {
    /// Puts `layer` around `inner`.
    pub fn new(layer: Arc<L>, inner: Arc<dyn ObjectStore>) -> Self {
        Self { layer, inner }
    }
}

impl<L: Layer> fmt::Display for Layered<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// `call` between the two halves of `layer`.
async fn around<L: Layer, T>(
    layer: &L,
    request: &Request,
    call: impl Future<Output = Result<T>>,
) -> Result<(T, L::Note)> {
    let note = layer.before(request).await?;
    let answer = call.await;
    layer.after(request, note, answer.as_ref().err()).await?;
    Ok((answer?, note))
}

#[async_trait]
impl<L: Layer> ObjectStore for Layered<L> {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let request = Request::put(location, &payload, &options);
        Ok(around(&*self.layer, &request, self.inner.put_opts(location, payload, options)).await?.0)
    }

    /// The layer that retries sends uploads in parts as one put, so none come here.
    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "`put_multipart_opts`".into(), implementer: self.to_string() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let request = Request::get(location, &options);
        let (found, note) = around(&*self.layer, &request, self.inner.get_opts(location, options)).await?;
        if request.operation == Operation::Head || !self.layer.takes_body(note) {
            return Ok(found);
        }
        let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
        let extensions = found.extensions.clone();
        let layer = self.layer.clone();
        let pieces = stream::try_unfold((found.into_stream(), 0), move |(mut pieces, at)| {
            let layer = layer.clone();
            async move {
                let Some(piece) = pieces.try_next().await? else { return Ok(None) };
                let end = at + piece.len() as u64;
                Ok(Some((layer.body(note, at, piece).await?, (pieces, end))))
            }
        });
        Ok(GetResult { payload: GetResultPayload::Stream(pieces.boxed()), meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (before, after) = (self.layer.clone(), self.layer.clone());
        let notes = Arc::new(Mutex::new(HashMap::new()));
        let noted = notes.clone();
        let locations = locations.and_then(move |path| {
            let (layer, noted) = (before.clone(), noted.clone());
            async move {
                let note = layer.before(&Request::new(Operation::Delete, &path)).await?;
                noted.lock().insert(path.clone(), note);
                Ok(path)
            }
        });
        let answers = self.inner.delete_stream(locations.boxed()).then(move |answer| {
            let (layer, notes) = (after.clone(), notes.clone());
            async move {
                let request = Request::new(Operation::Delete, answer.as_ref().unwrap_or(&Path::ROOT));
                let note = notes.lock().remove(&request.path).unwrap_or_default();
                layer.after(&request, note, answer.as_ref().err()).await?;
                answer
            }
        });
        answers.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listing(&self.layer, prefix, self.inner.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        listing(&self.layer, prefix, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        Ok(around(&*self.layer, &Request::list(prefix), self.inner.list_with_delimiter(prefix)).await?.0)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let request = Request::new(Operation::Copy, to);
        around(&*self.layer, &request, self.inner.copy_opts(from, to, options)).await?;
        Ok(())
    }
}

fn listing<L: Layer>(
    layer: &Arc<L>,
    prefix: Option<&Path>,
    entries: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let (before, after, request) = (layer.clone(), layer.clone(), Request::list(prefix));
    let failed = request.clone();
    let first = async move { before.before(&request).await.map(|_| entries) };
    let entries = first.into_stream().try_flatten().or_else(move |error| {
        let (after, failed) = (after.clone(), failed.clone());
        async move {
            after.after(&failed, L::Note::default(), Some(&error)).await?;
            Err(error)
        }
    });
    entries.boxed()
}
