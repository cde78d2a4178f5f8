//! The checks of a store for `slackwater doctor URL`: everything that a volume needs, tried once.

use bytes::Bytes;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult, UpdateVersion,
};
use slackwater_sync::shim::Arc;

use super::errors::{advice, reason};
use super::location::Location;
use super::time::now;
use super::{Store, classify::classify};
use crate::runtime;

/// A check of a store.
#[derive(Clone, Debug)]
pub struct StoreCheck {
    /// The property that was checked, such as "create-only put".
    pub name: &'static str,
    /// The time that it took; or what is wrong, what to do, and what a volume needs the property for.
    pub result: Result<String, String>,
}

const CONTENT: Bytes = Bytes::from_static(b"an object of `slackwater doctor`, which may be removed");
const OTHER: Bytes = Bytes::from_static(b"another content of the same object");

/// Checks whether a store can be reached, and keeps the promises that a volume relies on. Writes small objects below
/// the location and deletes them. Stops at the first check without which the others make no sense.
///
/// # Blocking
/// For some requests to the store.
pub fn check_store(location: &Location) -> Vec<StoreCheck> {
    let unusable = |error: String| vec![StoreCheck { name: "store", result: Err(error) }];
    let store = match Store::connect(location, None) {
        Ok(store) => store,
        Err(error) => return unusable(error.to_string()),
    };
    let runtime = match runtime::handle() {
        Ok(runtime) => runtime,
        Err(error) => return unusable(error.to_string()),
    };
    let path = Path::from(format!("doctor-{:016x}", fastrand::u64(..)));
    let checks = Checks { location, store: store.hasty.clone(), path, done: Vec::new() };
    runtime.block_on(checks.run(store.has_if_match))
}

struct Checks<'a> {
    location: &'a Location,
    store: Arc<dyn ObjectStore>,
    path: Path,
    done: Vec<StoreCheck>,
}

/// The reason for which a check fails: an error, or an answer that a store must not give.
enum Wrong {
    Failed(Error),
    Answer(&'static str),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Checks<'_> {
    async fn run(mut self, has_if_match: bool) -> Vec<StoreCheck> {
        let (store, path) = (self.store.clone(), self.path.clone());
        if !self.check("list", "finding the volume, its writers and unused objects", list(&*store)).await {
            return self.done;
        }
        if !self.check("create-only put", "keeping two writers apart", create(&*store, &path)).await {
            self.clean().await;
            return self.done;
        }
        self.check("refused create-only put", "keeping two writers apart", create_again(&*store, &path)).await;
        self.check("get", "reading", get(&*store, &path, None)).await;
        self.check("get of a range", "reading a part of a segment", get(&*store, &path, Some(3..9))).await;
        self.check("put over an object", "showing that the writer lives", overwrite(&*store, &path)).await;
        if has_if_match {
            self.check("if-match put", "collecting old metadata safely", update(&*store, &path)).await;
        }
        self.check("delete", "giving back space", remove(&*store, &path)).await;
        self.done
    }

    /// True if the check succeeded.
    async fn check(
        &mut self,
        name: &'static str,
        needed_for: &'static str,
        attempt: impl Future<Output = Result<(), Wrong>>,
    ) -> bool {
        let start = now();
        let wrong = match attempt.await {
            Ok(()) => None,
            Err(Wrong::Answer(text)) => Some(text.to_owned()),
            Err(Wrong::Failed(error)) => Some(match advice(self.location, classify(&error)) {
                Some(advice) => format!("{}. {advice}", reason(&error)),
                None => reason(&error),
            }),
        };
        let is_fine = wrong.is_none();
        let result = match wrong {
            None => Ok(format!("{} ms", start.elapsed().as_millis())),
            Some(text) => Err(format!("{text} (needed for {needed_for})")),
        };
        self.done.push(StoreCheck { name, result });
        is_fine
    }

    /// Removes the object, if a check has left it.
    async fn clean(&self) {
        if let Err(error) = self.store.delete(&self.path).await {
            tracing::debug!(reason = reason(&error), "the doctor's object could not be removed");
        }
    }
}

async fn list(store: &dyn ObjectStore) -> Result<(), Wrong> {
    match store.list(None).next().await {
        Some(Err(error)) => Err(error.into()),
        Some(Ok(_)) | None => Ok(()),
    }
}

async fn put(store: &dyn ObjectStore, path: &Path, content: Bytes, mode: PutMode) -> Result<PutResult, Error> {
    store.put_opts(path, PutPayload::from_bytes(content), mode.into()).await
}

async fn create(store: &dyn ObjectStore, path: &Path) -> Result<(), Wrong> {
    put(store, path, CONTENT, PutMode::Create).await?;
    Ok(())
}

async fn create_again(store: &dyn ObjectStore, path: &Path) -> Result<(), Wrong> {
    match put(store, path, OTHER, PutMode::Create).await {
        Err(Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(Wrong::Answer(
            "the store ignores the condition of a create-only put (If-None-Match), so two writers would destroy each \
             other's volume. Do not use it for volumes",
        )),
    }
}

async fn get(store: &dyn ObjectStore, path: &Path, range: Option<std::ops::Range<u64>>) -> Result<(), Wrong> {
    let expected = range.as_ref().map_or(CONTENT, |range| CONTENT.slice(range.start as usize..range.end as usize));
    let options = GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() };
    let found = store.get_opts(path, options).await?.bytes().await?;
    if found == expected { Ok(()) } else { Err(Wrong::Answer("the store returned other bytes than it was given")) }
}

async fn overwrite(store: &dyn ObjectStore, path: &Path) -> Result<(), Wrong> {
    put(store, path, OTHER, PutMode::Overwrite).await?;
    let found = store.get(path).await?.bytes().await?;
    if found == OTHER { Ok(()) } else { Err(Wrong::Answer("the store returned the old bytes after a put")) }
}

async fn update(store: &dyn ObjectStore, path: &Path) -> Result<(), Wrong> {
    let meta = store.head(path).await?;
    let known = UpdateVersion { e_tag: meta.e_tag, version: meta.version };
    put(store, path, CONTENT, PutMode::Update(known.clone())).await?;
    match put(store, path, OTHER, PutMode::Update(known)).await {
        Err(Error::Precondition { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(Wrong::Answer(
            "the store ignores the condition of an if-match put, so the collection of old metadata is not safe beside a \
             second writer. Do not use it for volumes",
        )),
    }
}

async fn remove(store: &dyn ObjectStore, path: &Path) -> Result<(), Wrong> {
    store.delete(path).await?;
    match store.head(path).await {
        Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(Wrong::Answer("the object is still there after its deletion")),
    }
}
