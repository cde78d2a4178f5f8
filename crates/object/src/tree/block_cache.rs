//! The blocks, indexes and filters of SlateDB's tables in memory, bounded by bytes.
//!
//! Calls that miss the same block together load it once: the multi-get of a directory listing wants many keys of one
//! block.

use std::collections::{HashMap, VecDeque};

use async_trait::async_trait;
use parking_lot::Mutex;
use slackwater_sync::shim::Arc;
use slatedb::Error;
use slatedb::db_cache::{CacheFetch, CacheLoader, CachedEntry, CachedKey, DbCache, SplitCache};

use crate::tree::settings::{BLOCK_CACHE_BYTES, META_CACHE_BYTES};

/// Memory that an entry takes beside its content.
const ENTRY_BYTES: usize = 128;

/// A cache for one tree: blocks of data do not displace indexes and filters.
pub(super) fn new() -> Arc<dyn DbCache> {
    let of = |limit_bytes| Some(Arc::new(BlockCache::new(limit_bytes)) as Arc<dyn DbCache>);
    Arc::new(SplitCache::new().with_block_cache(of(BLOCK_CACHE_BYTES)).with_meta_cache(of(META_CACHE_BYTES)).build())
}

struct BlockCache {
    entries: Mutex<Entries>,
    /// Loads that are on their way. A second one waits for the lock of the first, and then finds the entry.
    loading: Mutex<HashMap<CachedKey, Arc<tokio::sync::Mutex<()>>>>,
    limit_bytes: usize,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<CachedKey, Entry>,
    /// The order of eviction. An entry that was used since it was last at the front goes to the back instead.
    order: VecDeque<CachedKey>,
    bytes: usize,
}

struct Entry {
    value: CachedEntry,
    bytes: usize,
    was_used: bool,
}

impl BlockCache {
    fn new(limit_bytes: usize) -> Self {
        Self { entries: Mutex::default(), loading: Mutex::default(), limit_bytes }
    }

    fn get(&self, key: &CachedKey) -> Option<CachedEntry> {
        let mut entries = self.entries.lock();
        let entry = entries.by_key.get_mut(key)?;
        entry.was_used = true;
        Some(entry.value.clone())
    }

    fn put(&self, key: CachedKey, value: CachedEntry) {
        let mut evicted = Vec::new();
        let mut entries = self.entries.lock();
        let bytes = ENTRY_BYTES + value.size();
        entries.bytes += bytes;
        match entries.by_key.insert(key.clone(), Entry { value, bytes, was_used: false }) {
            Some(old) => entries.bytes -= old.bytes,
            None => entries.order.push_back(key),
        }
        while entries.bytes > self.limit_bytes
            && let Some(oldest) = entries.order.pop_front()
        {
            match entries.by_key.get_mut(&oldest) {
                Some(entry) if entry.was_used => {
                    entry.was_used = false;
                    entries.order.push_back(oldest);
                }
                Some(_) => {
                    let entry = entries.by_key.remove(&oldest);
                    entries.bytes -= entry.as_ref().map_or(0, |entry| entry.bytes);
                    evicted.push(entry);
                }
                // It was removed.
                None => {}
            }
        }
        // The memory is freed without the lock.
        drop(entries);
        drop(evicted);
    }

    async fn fetch(&self, key: CachedKey, loader: CacheLoader) -> Result<CacheFetch, Error> {
        if let Some(entry) = self.get(&key) {
            return Ok(CacheFetch::hit(entry));
        }
        let turn = Arc::clone(self.loading.lock().entry(key.clone()).or_default());
        let _turn = turn.lock().await;
        let _mark = Loading { cache: self, key: &key };
        if let Some(entry) = self.get(&key) {
            return Ok(CacheFetch::hit(entry));
        }
        let loaded = loader().await;
        if let Ok(entry) = &loaded {
            self.put(key.clone(), entry.clone());
        }
        loaded.map(CacheFetch::miss)
    }
}

/// Removes the mark of a load when the load ends, or is cancelled. Later ones find the entry, or load it anew.
struct Loading<'a> {
    cache: &'a BlockCache,
    key: &'a CachedKey,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.loading.lock().remove(self.key);
    }
}

#[async_trait]
impl DbCache for BlockCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        self.put(key, value);
    }

    async fn remove(&self, key: &CachedKey) {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.by_key.remove(key) {
            entries.bytes -= entry.bytes;
            entries.order.retain(|other| other != key);
        }
    }

    fn entry_count(&self) -> u64 {
        self.entries.lock().by_key.len() as u64
    }

    async fn fetch_block(&self, key: CachedKey, loader: CacheLoader) -> Result<CacheFetch, Error> {
        self.fetch(key, loader).await
    }

    async fn fetch_index(&self, key: CachedKey, loader: CacheLoader) -> Result<CacheFetch, Error> {
        self.fetch(key, loader).await
    }

    async fn fetch_filter(&self, key: CachedKey, loader: CacheLoader) -> Result<CacheFetch, Error> {
        self.fetch(key, loader).await
    }

    async fn fetch_stats(&self, key: CachedKey, loader: CacheLoader) -> Result<CacheFetch, Error> {
        self.fetch(key, loader).await
    }
}
