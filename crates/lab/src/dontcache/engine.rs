//! Files of an engine of their own, in a directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use slackwater::backend::Backend;
use slackwater::{
    DontcacheForm, Engine, File, Forms, PAGE_BYTES, SuperBlock, Tunables, WriteFlags, WriteRequest, Written,
};
use slackwater_backends::{DirBackend, Rate};

use super::site::{Place, Site};
use crate::rig;
use crate::scratch::Scratch;

const BYTES_PER_S: u64 = 200_000_000;
const LATENCY: Duration = Duration::from_millis(1);

pub(super) struct EngineSite {
    files: Vec<File>,
    volume: Arc<SuperBlock>,
    engine: Engine,
    _scratch: Scratch,
}

impl EngineSite {
    pub(super) fn new(
        arena_bytes: u64,
        dontcache: DontcacheForm,
        place: Place,
        files: usize,
        folder: &Path,
    ) -> Result<Self> {
        let scratch = Scratch::in_folder(folder)?;
        let forms = Forms { dontcache, ..Forms::default() };
        let engine = rig::engine_with_forms(arena_bytes, Tunables::default(), forms)?;
        let directory: Arc<dyn Backend> = Arc::new(DirBackend::open(scratch.path())?);
        let backend = match place {
            Place::Disk | Place::Paced => directory,
            Place::Slow => Arc::new(Rate::new(directory, BYTES_PER_S).latency(LATENCY)),
        };
        let volume = rig::mount(&engine, "dontcache", backend)?;
        // Not synced: for a second after a sync the flusher's units are small.
        let files = (0..files).map(|number| rig::new_file(&volume, &number.to_string())).collect::<Result<_>>()?;
        Ok(Self { files, volume, engine, _scratch: scratch })
    }
}

impl Site for EngineSite {
    fn write(&self, file: usize, dontcache: bool, offset_bytes: u64, block: &[u8]) -> Result<()> {
        let flags = if dontcache { WriteFlags::DONTCACHE } else { WriteFlags::NONE };
        let written = self.files[file].write(WriteRequest::at(offset_bytes).flags(flags), block)?;
        ensure!(written == Written::Bytes(block.len()), "a block was not written whole: {written:?}");
        Ok(())
    }

    fn dirty_bytes(&self) -> Result<u64> {
        Ok(self.volume.status().dirty_bytes)
    }

    fn clean(&self) -> Result<u64> {
        self.volume.sync()?;
        let arena = self.engine.arena();
        Ok((u64::from(arena.frames()) - arena.free_frames()) * PAGE_BYTES)
    }

    fn passes(&self) -> u64 {
        self.volume.status().dontcache_passes
    }
}

impl Drop for EngineSite {
    fn drop(&mut self) {
        self.files.clear();
        if let Err(error) = rig::discard(&self.volume) {
            eprintln!("{error:#}");
        }
    }
}
