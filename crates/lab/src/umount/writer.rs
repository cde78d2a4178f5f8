//! A writer that syncs every block, for one tenant or for one after another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::Result;
use slackwater::{Engine, File, Memcg, SuperBlock};

use crate::rig;

pub(crate) const BLOCK_BYTES: usize = 4096;

/// Overwrites a file from its start, again and again. Each block is one round of writeback.
pub(crate) struct Writer {
    engine: Engine,
    volume: Arc<SuperBlock>,
    name: &'static str,
    /// Blocks that a tenant writes before the next one takes over.
    blocks: u64,
    /// `None`: a new tenant each time, which goes offline afterwards.
    tenant: Option<Arc<Memcg>>,
}

impl Writer {
    /// A writer whose tenants come and go, and its file.
    pub(crate) fn churning(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "churned", blocks, None)
    }

    /// A writer with one tenant, and its file.
    pub(crate) fn steady(engine: &Engine, volume: &Arc<SuperBlock>, blocks: u64) -> Result<Self> {
        Self::new(engine, volume, "steady", blocks, Some(engine.memcg_create("steady", None, None)))
    }

    fn new(
        engine: &Engine,
        volume: &Arc<SuperBlock>,
        name: &'static str,
        blocks: u64,
        tenant: Option<Arc<Memcg>>,
    ) -> Result<Self> {
        drop(rig::new_file(volume, name)?);
        Ok(Self { engine: engine.clone(), volume: Arc::clone(volume), name, blocks, tenant })
    }

    /// Writes until `stop` and counts blocks in `written`. A fresh tenant is offline when this returns.
    pub(crate) fn run(&self, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(tenant) = &self.tenant {
                self.write_for(tenant, stop, written)?;
            } else {
                let fresh = self.engine.memcg_create("fresh", None, None);
                let outcome = self.write_for(&fresh, stop, written);
                self.engine.memcg_offline(&fresh);
                outcome?;
            }
        }
        Ok(())
    }

    fn write_for(&self, memcg: &Arc<Memcg>, stop: &AtomicBool, written: &AtomicU64) -> Result<()> {
        let inode = self.volume.lookup(&self.volume.root()?, self.name)?;
        let file = File::open_for(&inode, memcg)?;
        let block = [5; BLOCK_BYTES];
        for number in (0..self.blocks).take_while(|_| !stop.load(Ordering::Relaxed)) {
            file.write_at(number * BLOCK_BYTES as u64, &block)?;
            file.fsync()?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(tenant) = &self.tenant {
            self.engine.memcg_offline(tenant);
        }
    }
}
