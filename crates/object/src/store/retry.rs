//! The layer that repeats requests.
//!
//! # Invariants
//! R1. This is the only place in which requests are repeated. The clients of `object_store` get no retries, and SlateDB
//!     gets `object_store_max_retries: Some(0)`.
//! R2. A repeated change has the effect of one. Puts bring the same bytes, a removed object that is missing counts as
//!     removed. A create-only put may find the object of its own earlier attempt, whose reply was lost, and then fails
//!     with `AlreadyExists`: the caller has to recognise its object. SlateDB does so by an attribute, and our objects
//!     have unique contents ([`create`](super::create)).
//! R3. A store without attributes (`file:`) cannot give SlateDB that proof. Its create-only puts have no time limit and
//!     are not repeated, so that a slow disk does not look like another writer.
//! R4. An answer with a body is complete: the body is read as part of the attempt, and its length is checked. It is the
//!     store's: all stores send a tag of the object, and a proxy that asks for a login does not.
//!
//! The limit of sent bytes is here as well, since a wait for it is no part of an attempt; repeated attempts are few, and
//! are not limited.
//!
//! Uploads in parts are gathered in memory and sent as one put, so no parts are ever left behind. SlateDB alone uses
//! them, for tables whose size is bounded.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use slackwater_sync::shim::Arc;
use tokio::time::{sleep, timeout, timeout_at};

use super::classify::{NoAnswer, NotFromStore, Truncated, classify};
use super::errors::reason;
use super::limit::Limit;
use super::listing;
use super::patience::{Budget, Patience, Worth, pause, worth};
use super::request::Request;
use super::time::now;
use crate::pieces::Pieces;

/// Objects of one bulk deletion of S3.
const BULK: usize = 1000;

/// Repeats the requests to a store. Clones share its budget.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    pub(super) inner: Arc<dyn ObjectStore>,
    patience: Patience,
    budget: Arc<Budget>,
    limit: Option<Arc<Limit>>,
    has_attributes: bool,
}

impl Retry {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, patience: Patience, has_attributes: bool) -> Self {
        Self { inner, patience, budget: Arc::default(), limit: None, has_attributes }
    }

    /// The same store, which sends at most so many bytes per second.
    pub(super) fn limited_to(self, bytes_per_s: Option<u64>) -> Self {
        Self { limit: bytes_per_s.map(|bytes_per_s| Arc::new(Limit::new(bytes_per_s))), ..self }
    }

    /// The same store and budget, with other limits.
    pub(super) fn with(&self, patience: Patience) -> Self {
        Self { patience, ..self.clone() }
    }

    /// Calls `attempt` until it succeeds, its failure is final, or the time is over.
    pub(super) async fn repeat<T, F>(&self, path: &Path, attempt: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let deadline = now() + self.patience.request;
        let mut failures = 0;
        let mut permit = None;
        loop {
            let error = match attempt().await {
                Ok(answer) => {
                    if self.budget.refill() {
                        tracing::warn!("the store answers again");
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            drop(permit.take());
            let failure = classify(&error);
            let is_worth = match worth(failure) {
                Worth::Repeat => true,
                Worth::Once => failures == 0,
                Worth::Never => {
                    // An answer, if not the wished one.
                    self.budget.refill();
                    false
                }
            };
            let pause = pause(failure, failures);
            if !is_worth || now() + pause >= deadline {
                return Err(error);
            }
            failures += 1;
            tracing::debug!(%path, failures, reason = reason(&error), "repeating a request");
            let was_empty = self.budget.is_empty();
            match timeout_at(deadline, self.budget.permit()).await {
                Ok(granted) => permit = granted,
                Err(_) => return Err(error),
            }
            if !was_empty && self.budget.is_empty() {
                tracing::warn!(reason = reason(&error), "the store does not answer; one request at a time is repeated");
            }
            sleep(pause).await;
        }
    }

    /// Makes an attempt, with a time limit for its bytes.
    pub(super) async fn limited<T>(&self, bytes: u64, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.patience.limit(bytes);
        timeout(limit, attempt).await.unwrap_or_else(|_| Err(no_answer(limit)))
    }

    async fn get_once(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let wanted = Request::get(location, &options).wanted_bytes.unwrap_or_default();
        let found = self.limited(wanted, self.inner.get_opts(location, options.clone())).await?;
        if found.meta.e_tag.is_none() {
            return Err(Error::Generic { store: "slackwater", source: Box::new(NotFromStore) });
        }
        if options.head {
            return Ok(found);
        }
        let (meta, range, attributes) = (found.meta.clone(), found.range.clone(), found.attributes.clone());
        let (extensions, len_bytes) = (found.extensions.clone(), range.end - range.start);
        let pieces = self.limited(len_bytes, Pieces::of(found)).await?;
        if pieces.len() as u64 != len_bytes {
            let source = Truncated { path: location.to_string(), expected: len_bytes, found: pieces.len() as u64 };
            return Err(Error::Generic { store: "slackwater", source: Box::new(source) });
        }
        let body = stream::iter(pieces.into_iter().map(Ok)).boxed();
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions })
    }

    /// Removes `paths`, and answers in their order.
    async fn delete_all(&self, paths: Vec<Path>) -> Result<Vec<Path>> {
        let Some(first) = paths.first() else { return Ok(paths) };
        self.repeat(first, || async {
            let locations = stream::iter(paths.clone().into_iter().map(Ok)).boxed();
            let mut answers = self.inner.delete_stream(locations);
            while let Some(answer) = self.limited(0, answers.next().map(Ok)).await? {
                match answer {
                    Err(Error::NotFound { .. }) | Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
        .await?;
        Ok(paths)
    }
}

fn no_answer(limit: Duration) -> Error {
    Error::Generic { store: "slackwater", source: Box::new(NoAnswer(limit)) }
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Retry {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let bytes = payload.content_length() as u64;
        if let Some(limit) = &self.limit {
            limit.wait(bytes).await;
        }
        if options.mode != PutMode::Overwrite && !self.has_attributes {
            return self.inner.put_opts(location, payload, options).await;
        }
        self.repeat(location, || self.limited(bytes, self.inner.put_opts(location, payload.clone(), options.clone())))
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() && !self.has_attributes {
            // As the store below would answer: SlateDB then asks again without them.
            return Err(Error::NotImplemented { operation: "attributes".into(), implementer: self.to_string() });
        }
        let PutMultipartOptions { tags, attributes, extensions } = options;
        let options = PutOptions { mode: PutMode::Overwrite, tags, attributes, extensions };
        Ok(Box::new(Gathered { store: self.clone(), location: location.clone(), options, parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.repeat(location, || self.get_once(location, options.clone())).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let removed = locations.try_ready_chunks(BULK).map_err(|error| error.1).and_then(move |paths| {
            let store = store.clone();
            async move { Ok(stream::iter(store.delete_all(paths).await?.into_iter().map(Ok))) }
        });
        removed.try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listing::list(self.clone(), prefix.cloned(), None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        listing::list(self.clone(), prefix.cloned(), Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.repeat(prefix.unwrap_or(&Path::ROOT), || self.limited(0, self.inner.list_with_delimiter(prefix))).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.repeat(to, || self.limited(0, self.inner.copy_opts(from, to, options.clone()))).await
    }
}

/// An upload in parts, in memory until it is complete.
struct Gathered {
    store: Retry,
    location: Path,
    options: PutOptions,
    parts: Vec<PutPayload>,
}

impl fmt::Debug for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").field("location", &self.location).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for Gathered {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.parts.push(data);
        std::future::ready(Ok(())).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let whole: PutPayload = std::mem::take(&mut self.parts).into_iter().flatten().collect::<PutPayload>();
        self.store.put_opts(&self.location, whole, self.options.clone()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.clear();
        Ok(())
    }
}
