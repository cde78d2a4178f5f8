//! The copy through the engine: one thread walks the tree and makes directories and links, others copy files.
//!
//! # Invariants
//! T1. A directory gets its mode and times when no more entries will be made in it. The thread that drops the last
//!     reference to its [`OpenDirectory`] sets them.
//! T2. The queue of files is bounded, so few directories are open at once however many there are.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use slackwater::backend::{AttrChange, NewNode};
use slackwater::{File, InodeRef, SuperBlock, Timestamp};

use super::plan::{Entry, Kind, Plan};
use crate::harness::threads::join;
use crate::interrupt;

/// Files listed ahead of the threads that copy them.
const QUEUE: usize = 256;
/// Bytes read and written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// How much has been copied so far.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// A directory of the volume in which entries are still made (T1).
struct OpenDirectory {
    parent: Option<Arc<OpenDirectory>>,
    inode: InodeRef,
    mode: u32,
    mtime: Timestamp,
}

struct Job<'a> {
    entry: &'a Entry,
    directory: Arc<OpenDirectory>,
}

struct Copier<'a> {
    plan: &'a Plan,
    volume: &'a Arc<SuperBlock>,
    progress: &'a Progress,
    /// A thread has failed, so the others stop.
    failed: AtomicBool,
}

/// Copies everything in `plan` to the root of `volume` with `threads` threads beside the calling one.
///
/// # Errors
/// The first failure, with its path, or an interrupt.
pub(crate) fn copy(plan: &Plan, volume: &Arc<SuperBlock>, threads: usize, progress: &Progress) -> Result<()> {
    let copier = Copier { plan, volume, progress, failed: AtomicBool::new(false) };
    let (send, receive) = sync_channel(QUEUE);
    let receive = Mutex::new(receive);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| copier.work(&receive))).collect();
        let walked = copier.noting_failure(copier.walk(send));
        let worked = workers.into_iter().map(join).collect::<Result<Vec<()>>>();
        // If the walk stopped because a worker failed, the worker's error says more.
        worked.and(walked)
    })
}

impl<'a> Copier<'a> {
    fn noting_failure<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Makes directories and links, and queues files.
    fn walk(&self, queue: SyncSender<Job<'a>>) -> Result<()> {
        let root = OpenDirectory {
            parent: None,
            inode: self.volume.root()?,
            mode: self.plan.root_mode,
            mtime: self.plan.root_mtime,
        };
        let mut above = vec![Arc::new(root)];
        for entry in &self.plan.entries {
            interrupt::check()?;
            if self.failed.load(Ordering::Relaxed) {
                bail!("stopped, since a file could not be copied");
            }
            while above.len() > entry.depth {
                above.pop().map_or(Ok(()), |directory| self.leave(directory))?;
            }
            let Some(directory) = above.last() else { bail!("{} has no parent", entry.path.display()) };
            let cannot = || format!("cannot create {} in the volume", entry.path.display());
            match &entry.kind {
                Kind::Directory => above.push(self.make_directory(entry, directory).with_context(cannot)?),
                Kind::Symlink { target } => {
                    let link = self.make(entry, directory, NewNode::Symlink(target.clone()), 0o777);
                    let link = link.with_context(cannot)?;
                    let change = AttrChange { mtime: Some(entry.mtime), ..AttrChange::default() };
                    self.volume.setattr(&link, change).with_context(cannot)?;
                }
                Kind::File { .. } => {
                    let job = Job { entry, directory: Arc::clone(directory) };
                    if queue.send(job).is_err() {
                        bail!("stopped, since every thread that copies files has failed");
                    }
                }
            }
        }
        while let Some(directory) = above.pop() {
            self.leave(directory)?;
        }
        Ok(())
    }

    fn make(&self, entry: &Entry, directory: &OpenDirectory, what: NewNode, mode: u32) -> Result<InodeRef> {
        let name = entry.path.file_name().context("an entry without a name")?;
        Ok(self.volume.make(&directory.inode, name, what, mode)?)
    }

    fn make_directory(&self, entry: &Entry, parent: &Arc<OpenDirectory>) -> Result<Arc<OpenDirectory>> {
        // Its own mode is set last, because it may be read-only.
        let inode = self.make(entry, parent, NewNode::Directory, 0o700)?;
        let parent = Some(Arc::clone(parent));
        Ok(Arc::new(OpenDirectory { parent, inode, mode: entry.mode, mtime: entry.mtime }))
    }

    /// Drops a reference to a directory. The last one sets its mode and times, and drops the reference to its parent (T1).
    fn leave(&self, directory: Arc<OpenDirectory>) -> Result<()> {
        let mut left = Some(directory);
        while let Some(directory) = left.take().and_then(Arc::into_inner) {
            let (mode, mtime) = (Some(directory.mode), Some(directory.mtime));
            self.volume.setattr(&directory.inode, AttrChange { mode, mtime, ..AttrChange::default() })?;
            left = directory.parent;
        }
        Ok(())
    }

    /// Copies files until there are no more.
    fn work(&self, queue: &Mutex<Receiver<Job<'a>>>) -> Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            // The walk has ended, or failed.
            let Ok(Job { entry, directory }) = job else { return Ok(()) };
            if self.failed.load(Ordering::Relaxed) {
                continue; // and drain the queue: the walk may be waiting for space in it
            }
            let source = self.plan.source.join(&entry.path);
            let copied = self.copy_file(entry, &directory, &source, &mut buffer).and_then(|()| self.leave(directory));
            self.noting_failure(copied.with_context(|| format!("cannot copy {}", source.display())))?;
        }
    }

    fn copy_file(&self, entry: &Entry, directory: &OpenDirectory, source: &Path, buffer: &mut [u8]) -> Result<()> {
        let mut from = fs::File::open(source)?;
        let inode = self.make(entry, directory, NewNode::File, entry.mode | 0o600)?;
        let to = File::open(&inode)?;
        let mut offset_bytes = 0;
        loop {
            interrupt::check()?;
            let count = from.read(buffer)?;
            if count == 0 {
                break;
            }
            to.write_at(offset_bytes, &buffer[..count])?;
            offset_bytes += count as u64;
            self.progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
        let mode = (entry.mode & 0o600 != 0o600).then_some(entry.mode);
        if mode.is_some() && !geteuid().is_root() {
            // A backend opens files when it writes back, and only root may open a read-only file for writing.
            to.fsync()?;
        }
        self.volume.setattr(&inode, AttrChange { mode, mtime: Some(entry.mtime), ..AttrChange::default() })?;
        self.progress.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
