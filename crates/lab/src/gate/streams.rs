//! Tenants that overwrite their files as fast as the cache accepts it, and one that syncs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use slackwater::{Engine, File, SuperBlock, Tunables};

use crate::harness::threads::beside;
use crate::scratch::Scratch;
use crate::{interrupt, rig};

/// Tenants that stream.
pub(crate) const STREAMS: usize = 4;
/// Size of each stream's file.
pub(crate) const STREAM_BYTES: u64 = 256 << 20;
/// Size of a stream's writes.
const BLOCK_BYTES: usize = 1 << 20;
/// Size of the file that is synced, and of the write before each sync.
const SYNCED_BYTES: u64 = 64 << 20;
const SYNC_BYTES: usize = 64 << 10;

/// Less than the streams' files together, so that what they write has to reach the disk soon.
pub(crate) const ARENA_BYTES: u64 = 640 << 20;

/// Writeback never ends, and no tenant can take another's frames: the arena has five shares.
fn tunables(gate: bool) -> Tunables {
    Tunables { dirty_background_percent: 5, volume_share_percent: 20, gate, ..Tunables::default() }
}

/// An engine with its tenants, all in directories on one file system.
pub(crate) struct Tenants {
    streams: Vec<File>,
    synced: Option<File>,
    volumes: Vec<Arc<SuperBlock>>,
    next_sync: u64,
    _engine: Engine,
    _scratch: Scratch,
}

/// The result of one turn.
pub(crate) struct Seen {
    pub(crate) latencies: Latencies,
    /// Bytes that were written back for the streams.
    pub(crate) stream_bytes: u64,
    pub(crate) time: Duration,
}

/// Latencies in nanoseconds.
pub(crate) struct Latencies {
    /// Writing and syncing together.
    pub(crate) whole: Histogram<u64>,
    /// Writing alone.
    pub(crate) write: Histogram<u64>,
}

impl Latencies {
    /// No samples yet; from a microsecond to a minute, to three digits.
    pub(crate) fn new() -> Result<Self> {
        let empty = || Histogram::new_with_bounds(1_000, 60_000_000_000, 3);
        Ok(Self { whole: empty()?, write: empty()? })
    }
}

impl Tenants {
    /// Makes volumes and files in `folder`; all blocks of the files are allocated.
    pub(crate) fn new(folder: &Path, gate: bool) -> Result<Self> {
        let scratch = Scratch::in_folder(folder)?;
        let engine = rig::engine(ARENA_BYTES, tunables(gate))?;
        let (mut files, mut volumes) = (Vec::new(), Vec::new());
        for number in 0..=STREAMS {
            let name = format!("tenant-{number}");
            let (volume, _) = rig::mount_dir(&engine, &name, &scratch.subdirectory(&name)?)?;
            let file = rig::new_file(&volume, "file")?;
            let bytes = if number < STREAMS { STREAM_BYTES } else { SYNCED_BYTES };
            fill(&file, bytes).with_context(|| format!("cannot fill the file of {name}"))?;
            file.fsync()?;
            volumes.push(volume);
            files.push(file);
        }
        let synced = files.pop();
        Ok(Self { streams: files, synced, volumes, next_sync: 0, _engine: engine, _scratch: scratch })
    }

    /// Runs the streams. After `warm_up`, writes and syncs every `pause` for `time`, and measures that.
    pub(crate) fn observe(&mut self, warm_up: Duration, time: Duration, pause: Duration) -> Result<Seen> {
        let volumes = &self.volumes[..STREAMS];
        let synced = self.synced.as_ref().context("the file to sync is open")?;
        let next_sync = &mut self.next_sync;
        let streams = self.streams.iter().map(|file| move |stop: &AtomicBool| stream(file, stop));
        let (seen, _) = beside(streams, |_| {
            std::thread::sleep(warm_up);
            let (written, start) = (written_bytes(volumes), Instant::now());
            let latencies = sync_often(synced, next_sync, start + time, pause)?;
            Ok(Seen { latencies, stream_bytes: written_bytes(volumes) - written, time: start.elapsed() })
        })?;
        // The other engine's turn begins with nothing to write back.
        self.volumes.iter().try_for_each(|volume| volume.sync())?;
        Ok(seen)
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        self.streams.clear();
        self.synced = None;
        for volume in &self.volumes {
            if let Err(error) = rig::discard(volume) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn written_bytes(volumes: &[Arc<SuperBlock>]) -> u64 {
    volumes.iter().map(|volume| volume.bdi().written_bytes()).sum()
}

fn fill(file: &File, bytes: u64) -> Result<()> {
    let block = vec![1; BLOCK_BYTES];
    for offset_bytes in (0..bytes).step_by(BLOCK_BYTES) {
        interrupt::check()?;
        file.write_at(offset_bytes, &block)?;
    }
    Ok(())
}

/// Overwrites the whole file, again and again.
fn stream(file: &File, stop: &AtomicBool) -> Result<()> {
    let block = vec![2; BLOCK_BYTES];
    let goes_on = |_: &u64| !stop.load(Ordering::Relaxed) && !interrupt::is_interrupted();
    for offset_bytes in (0..STREAM_BYTES).step_by(BLOCK_BYTES).cycle().take_while(goes_on) {
        file.write_at(offset_bytes, &block)?;
    }
    Ok(())
}

fn sync_often(file: &File, next: &mut u64, end: Instant, pause: Duration) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    let bytes = vec![3; SYNC_BYTES];
    while Instant::now() < end {
        interrupt::check()?;
        let start = Instant::now();
        file.write_at(*next * SYNC_BYTES as u64 % SYNCED_BYTES, &bytes)?;
        latencies.write.saturating_record(start.elapsed().as_nanos() as u64);
        file.fsync()?;
        latencies.whole.saturating_record(start.elapsed().as_nanos() as u64);
        *next += 1;
        std::thread::sleep(pause);
    }
    Ok(latencies)
}
