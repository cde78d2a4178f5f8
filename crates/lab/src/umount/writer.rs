//! A writer that syncs every block, on its own thread, for one tenant after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use slackwater::{Engine, File, Memcg, SuperBlock};

use crate::rig;

pub(crate) const BLOCK_BYTES: usize = 4096;

/// A file and who writes it. Each block is a round of write-back, and the file is written from its start again and again.
pub(crate) struct Writer {
    engine: Engine,
    volume: Arc<SuperBlock>,
    name: &'static str,
    /// Blocks that a tenant writes.
    blocks: u64,
    tenants: Tenants,
}

enum Tenants {
    /// A new one each time, which goes offline afterwards.
    Fresh,
    /// The same each time.
    Fixed(Arc<Memcg>),
}

impl Writer {
    /// A new file whose writers come and go.
    pub(crate) fn churning(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "churned", blocks, Tenants::Fresh)
    }

    /// A new file that has one writer.
    pub(crate) fn steady(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "steady", blocks, Tenants::Fixed(engine.memcg_create("steady", None, None)))
    }

    fn new(
        engine: &Engine,
        volume: &Arc<SuperBlock>,
        name: &'static str,
        blocks: u64,
        tenants: Tenants,
    ) -> Result<Self> {
        drop(rig::new_file(volume, name)?);
        Ok(Self { engine: engine.clone(), volume: Arc::clone(volume), name, blocks, tenants })
    }

    /// Writes until told to stop, and tells so when it fails. A fresh tenant is offline when this returns. `written`
    /// counts blocks.
    pub(crate) fn run(&self, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        self.write_until(stop, written).inspect_err(|_| stop.store(true, Ordering::Relaxed))
    }

    fn write_until(&self, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            match &self.tenants {
                Tenants::Fixed(memcg) => self.write_for(memcg, stop, written)?,
                Tenants::Fresh => {
                    let memcg = self.engine.memcg_create("fresh", None, None);
                    let outcome = self.write_for(&memcg, stop, written);
                    self.engine.memcg_offline(&memcg);
                    outcome?;
                }
            }
        }
        Ok(())
    }

    fn write_for(&self, memcg: &Arc<Memcg>, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        let inode = self.volume.lookup(&self.volume.root()?, self.name)?;
        let file = File::open_for(&inode, memcg)?;
        let block = [5; BLOCK_BYTES];
        for number in 0..self.blocks {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            file.write_at(number * BLOCK_BYTES as u64, &block)?;
            file.fsync()?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Tenants::Fixed(memcg) = &self.tenants {
            self.engine.memcg_offline(memcg);
        }
    }
}
