//! The engine, with a cache so small that all its frames are soon in use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use slackwater::backend::MemBackend;
use slackwater::{Engine, File, Memcg, PAGE_BYTES, ReadRequest, SuperBlock, Tunables};
use slackwater_arena::Pool;

use crate::rig;

/// Bytes of a read of [`Subject::stream`].
const STREAM_BYTES: usize = 1 << 20;

pub(super) struct Subject {
    pub(super) engine: Engine,
    volume: Arc<SuperBlock>,
    file: File,
    page: Vec<u8>,
}

impl Subject {
    /// An arena of `arena_bytes`, and a sparse file of `pages` pages. With `background`, threads free frames.
    pub(super) fn new(arena_bytes: u64, pages: u64, background: bool) -> Result<Self> {
        let flusher_threads = if background { Tunables::default().flusher_threads } else { 0 };
        // Without readahead, so that only the pages of the trace are read.
        let tunables = Tunables { flusher_threads, readahead_pages: 0, ..Tunables::default() };
        let engine = rig::engine(arena_bytes, tunables)?;
        let volume = rig::mount(&engine, "reclaim", Arc::new(MemBackend::new()))?;
        let file = rig::new_file(&volume, "pages")?;
        file.set_len(pages * PAGE_BYTES)?;
        Ok(Self { engine, volume, file, page: vec![0; PAGE_BYTES as usize] })
    }

    /// Pages that fit into the cache: the frames outside the reserve.
    pub(super) fn capacity(&self) -> u64 {
        self.engine.arena().free_frames_in(Pool::Normal)
    }

    /// Reads a page, charged to `payer`, and returns whether it was cached.
    pub(super) fn access(&mut self, payer: &Arc<Memcg>, page: u64) -> Result<bool> {
        let offset_bytes = page * PAGE_BYTES;
        if self.file.peek(ReadRequest::at(offset_bytes), self.page.len(), |_| ()).is_some() {
            return Ok(true);
        }
        let read = self.file.read(ReadRequest::at(offset_bytes).memcg(payer), &mut self.page)?;
        ensure!(read == self.page.len(), "a short read of page {page}");
        Ok(false)
    }

    /// Reads the first `pages` in order, in large pieces, and returns the time per page.
    pub(super) fn stream(&self, pages: u64) -> Result<Duration> {
        let mut piece = vec![0; STREAM_BYTES];
        let start = Instant::now();
        for offset_bytes in (0..pages * PAGE_BYTES).step_by(STREAM_BYTES) {
            self.file.read_at(offset_bytes, &mut piece)?;
        }
        let time = start.elapsed();
        let pages = u32::try_from(pages).context("too many pages to stream")?;
        Ok(time / pages)
    }

    pub(super) fn end(self) -> Result<()> {
        drop(self.file);
        rig::discard(&self.volume)
    }
}
