//! How SlateDB is set up: what it keeps in memory, and how often it asks the store by itself.
//!
//! | memory | limit |
//! |---|---|
//! | memtable that takes writes | [`L0_BYTES`] and one commit |
//! | memtables and logs on their way to the store | [`UNFLUSHED_BYTES_MAX`] |
//! | blocks of tables | [`BLOCK_CACHE_BYTES`] |
//! | indexes and filters of tables | [`META_CACHE_BYTES`] |
//! | compaction | [`COMPACTION_TABLE_BYTES`] and what it reads ahead |

use std::collections::HashMap;
use std::time::Duration;

use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, DbReaderOptions, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, MetricLevel, ScanOptions, Settings, SstBlockSize,
};

pub(super) const BLOCK_SIZE: SstBlockSize = SstBlockSize::Block32Kib;
const L0_BYTES: usize = 8 << 20;
/// Tables that no compaction has merged yet. With more of them commits wait, until the compactor has found them, its worker
/// has merged some, and the writer has seen that: each of the three looks only every so often.
const L0_TABLES_MAX: usize = 64;
/// Tables that one compaction merges, which is what it can do between two looks.
const COMPACTED_TABLES: &str = "16";
const UNFLUSHED_BYTES_MAX: usize = 64 << 20;
pub(super) const BLOCK_CACHE_BYTES: usize = 16 << 20;
pub(super) const META_CACHE_BYTES: usize = 32 << 20;
const COMPACTION_TABLE_BYTES: usize = 16 << 20;
/// Compaction reads ahead of each table by two requests of this size.
const FETCHED_BYTES: usize = 512 << 10;

/// Commits after which the memtable is stored as a table, so that the next mount reads few logs.
pub(super) const COMMITS_PER_TABLE: u64 = 512;

/// How often the writer looks whether another writer or a compaction has changed the manifest.
const MANIFEST_POLL: Duration = Duration::from_secs(15);
const COMPACTOR_POLL: Duration = Duration::from_secs(15);
/// How often files that no table list names any more are looked for.
const GARBAGE_POLL: Duration = Duration::from_secs(600);
/// The least age of such a file: more than a reader needs between its looks at the manifest.
const GARBAGE_AGE: Duration = Duration::from_secs(3_600);

/// The settings of a writer. `has_if_match`: whether the store can replace an object on the condition that it is
/// unchanged.
pub(super) fn writer(has_if_match: bool) -> Settings {
    Settings {
        flush_interval: None,
        manifest_poll_interval: MANIFEST_POLL,
        manifest_update_timeout: Duration::from_secs(60),
        min_filter_keys: 100,
        l0_sst_size_bytes: L0_BYTES,
        max_unflushed_bytes: UNFLUSHED_BYTES_MAX,
        l0_max_ssts: L0_TABLES_MAX,
        l0_max_ssts_per_key: L0_TABLES_MAX,
        l0_flush_parallelism: 1,
        compactor_options: Some(CompactorOptions {
            poll_interval: COMPACTOR_POLL,
            max_concurrent_compactions: 1,
            scheduler_options: HashMap::from([("max_compaction_sources".to_owned(), COMPACTED_TABLES.to_owned())]),
            commit_compacted_interval: COMPACTOR_POLL,
            worker: Some(CompactionWorkerOptions {
                max_concurrent_compactions: 1,
                compactions_poll_interval: COMPACTOR_POLL,
                max_sst_size: COMPACTION_TABLE_BYTES,
                max_fetch_tasks: 2,
                bytes_to_fetch: FETCHED_BYTES,
                max_subcompactions: 1,
                min_filter_keys: 100,
                ..CompactionWorkerOptions::default()
            }),
            ..CompactorOptions::default()
        }),
        garbage_collector_options: Some(garbage_collector(has_if_match)),
        metric_level: MetricLevel::Info,
        // The store below retries, and knows which errors are worth it.
        object_store_max_retries: Some(0),
        ..Settings::default()
    }
}

fn garbage_collector(has_if_match: bool) -> GarbageCollectorOptions {
    let directory =
        |min_age| Some(GarbageCollectorDirectoryOptions { interval: Some(GARBAGE_POLL), min_age, dry_run: false });
    GarbageCollectorOptions {
        manifest_options: directory(GARBAGE_AGE),
        wal_options: directory(GARBAGE_AGE),
        // A fence protects from a writer that wakes up late. Each mount leaves one, of no bytes.
        wal_fence_options: None,
        compacted_options: directory(GARBAGE_AGE),
        compactions_options: directory(GARBAGE_AGE),
        detach_options: None,
        metric_level: None,
        boundary_files_enabled: has_if_match,
        object_store_max_retries: Some(0),
    }
}

/// The options of a reader that is at most `age` behind: half of it for the looks at the store, the rest for what it
/// does with them.
pub(super) fn reader(age: Duration) -> DbReaderOptions {
    DbReaderOptions {
        manifest_poll_interval: age / 2,
        max_memtable_bytes: L0_BYTES as u64,
        metric_level: Some(MetricLevel::Info),
        object_store_max_retries: Some(0),
        ..DbReaderOptions::default()
    }
}

/// The options of all scans: they read ahead.
pub(super) fn scan() -> ScanOptions {
    ScanOptions::new().with_read_ahead_bytes(256 << 10).with_max_fetch_tasks(4).with_cache_blocks(true)
}
