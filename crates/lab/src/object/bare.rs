//! The store without a file system: parallel requests with the client that object volumes use.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::server::{ACCESS_KEY, BUCKET, Delay, REGION, SECRET_KEY, Servers};

/// The size of the segments that object volumes write.
const OBJECT_BYTES: u64 = 8 << 20;
/// Requests at once.
const PARALLEL: usize = 16;

/// A client of the store.
pub(super) struct Bare {
    runtime: Runtime,
    store: Arc<AmazonS3>,
}

impl Bare {
    pub(super) fn connect(s3: &Servers, delay: Delay) -> Result<Self> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(s3.endpoint(delay))
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region(REGION)
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY);
        let store = Arc::new(builder.build().context("cannot make a client of the store")?);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, store })
    }

    /// Writes `bytes` in objects of 8 MiB.
    pub(super) fn put(&self, bytes: u64) -> Result<Duration> {
        let payload = PutPayload::from(vec![5; OBJECT_BYTES as usize]);
        self.each(bytes / OBJECT_BYTES, |store, path| {
            let payload = payload.clone();
            async move { store.put(&path, payload).await.map(drop) }
        })
    }

    /// Reads the `bytes` that [`put`](Self::put) has written.
    pub(super) fn get(&self, bytes: u64) -> Result<Duration> {
        self.each(bytes / OBJECT_BYTES, |store, path| async move { store.get(&path).await?.bytes().await.map(drop) })
    }

    /// Writes one small object.
    pub(super) fn put_small(&self, bytes: usize) -> Result<Duration> {
        let (path, payload) = (Path::from("small"), PutPayload::from(vec![5; bytes]));
        let start = Instant::now();
        self.runtime.block_on(self.store.put(&path, payload))?;
        Ok(start.elapsed())
    }

    /// Calls `request` for each of `count` objects, and returns the time of all.
    fn each<F>(&self, count: u64, request: impl Fn(Arc<AmazonS3>, Path) -> F) -> Result<Duration>
    where
        F: Future<Output = object_store::Result<()>> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(PARALLEL));
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut requests = JoinSet::new();
            for number in 0..count {
                let (slot, path) = (slots.clone().acquire_owned().await?, Path::from(format!("large/{number}")));
                let request = request(self.store.clone(), path);
                requests.spawn(async move {
                    let _slot = slot;
                    request.await
                });
            }
            while let Some(ended) = requests.join_next().await {
                if let Err(error) = ended.context("a request has panicked")? {
                    bail!("the bare store: {error}");
                }
            }
            Ok(())
        })?;
        Ok(start.elapsed())
    }
}
