//! Pages from shared mappings that could not be taken at once, kept with their replies.
//!
//! No program waits for such a page and could write it again, and once it is answered the kernel has no other copy. So it
//! is answered only when it is in the cache. Until then it waits here with its bytes, without a thread. This throttles
//! the programs that store to mappings of this volume: the kernel limits a FUSE mount's dirty pages and pages under
//! write-back (`max_bytes` and `strict_limit` of its `/sys/class/bdi`), and blocks a program in its next store.
//!
//! # Invariants
//! Q1. The waiting pages are bounded by the kernel's limit for the mount, and counted in [`Volume::parked_bytes`].
//! Q2. A page from a mapping takes no frame beyond the volume's share and its tenant's limit.
//! Q3. Waiting pages are retried by the worker, which never waits for the backend. Data that must be read first is read
//!     on one of the few threads that parked writes have.
//! Q4. A page waits for ever only for a backend that does not answer. If the backend answers with errors, the page is
//!     refused with the last one after a while ([`SuperBlock::refusal`](slackwater::SuperBlock::refusal)). The kernel
//!     then returns it from msync, fsync or close. The bytes are counted before the answer.
//!
//! # Lock order
//! The lock is a leaf: a page is taken out of the queue to be tried.
//!
//! # Kernel counterpart
//! `fuse_writepages`, whose pages are under write-back until they are answered, and `fuse_writepage_end`, which keeps the
//! error of a page in its mapping.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rustix::io::Errno;
use slackwater::{ErrorKind, FileError, Tick, WriteRequest};
use slackwater_fuse::Reply;
use slackwater_fuse::abi::WriteIn;
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, thread};

use crate::lock_order::LEAF;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::{self, Failure};
use crate::volume::open_files::OpenFile;

/// First retry delay of a page that another operation on its file blocked.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// How often that delay doubles.
const DOUBLINGS_MAX: u32 = 6;

/// A write of pages from a mapping, without their bytes.
struct MappedWrite {
    open: Arc<OpenFile>,
    offset_bytes: u64,
    /// Bytes that are done with.
    done: usize,
    /// The count to return.
    size: u32,
}

/// Result of an attempt to take the pages.
enum Attempt {
    Done,
    /// No frame is free.
    NoFrames,
    /// Another operation has the file, or changes are frozen.
    Later,
    /// The backend must be asked first.
    WouldBlock,
    Failed(Failure),
}

impl MappedWrite {
    /// Takes the rest of `bytes`.
    fn attempt(&mut self, volume: &Volume, bytes: &[u8]) -> Attempt {
        let OpenFile { node, file, .. } = &*self.open;
        // The last page may extend beyond the end of the file.
        let inside = node.inode.size_bytes().saturating_sub(self.offset_bytes).min(bytes.len() as u64) as usize;
        let Some(rest) = bytes.get(self.done..inside) else { return Attempt::Done };
        let at = self.offset_bytes + self.done as u64;
        let taken =
            node.kernel_pages.write_back(at, rest, |at, bytes| file.write(WriteRequest::from_mapping(at), bytes));
        let Some((bytes, stopped)) = taken else { return Attempt::Later };
        self.done += bytes;
        match stopped {
            None => Attempt::Done,
            Some(_) if volume.is_refusing() => Attempt::Failed(Errno::IO.into()),
            Some(Ok(_)) => match volume.sb.refusal(&node.inode) {
                Some(kind) => Attempt::Failed(Failure(errno::of(kind))),
                None => Attempt::NoFrames,
            },
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => Attempt::WouldBlock,
            Some(Err(FileError::NotMounted)) if volume.sb.is_frozen() => Attempt::Later,
            Some(Err(error)) => Attempt::Failed(error.into()),
        }
    }
}

/// A waiting write with its bytes and reply.
struct QueuedWrite {
    pages: MappedWrite,
    bytes: Vec<u8>,
    reply: Reply,
    /// Number of attempts that were blocked.
    tries: u32,
    /// The data it needs from the backend was read since the last attempt.
    is_prepared: bool,
    /// The error of the last read, and when such reads began to fail.
    failed: Option<(ErrorKind, Tick)>,
}

impl QueuedWrite {
    /// The error with which to refuse it, because the data it needs cannot be read (Q4). A file that was removed from
    /// the backend from outside cannot be opened again.
    fn unreadable(&self, volume: &Volume) -> Option<Failure> {
        let (kind, since) = self.failed?;
        let is_final = kind == ErrorKind::Stale || volume.sb.now().since(since) >= volume.sb.patience(kind);
        is_final.then(|| errno::of(kind).into())
    }
}

/// The mapped writes that wait on a volume.
pub(super) struct MappedWrites {
    queue: Mutex<VecDeque<QueuedWrite>>,
    bytes: AtomicUsize,
    /// Refused so far.
    refused_bytes: AtomicU64,
    /// The last pages were refused, and that was logged.
    is_refusing: AtomicBool,
}

impl MappedWrites {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(LEAF, VecDeque::new()),
            bytes: AtomicUsize::new(0),
            refused_bytes: AtomicU64::new(0),
            is_refusing: AtomicBool::new(false),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Bytes waiting.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes refused so far.
    pub(super) fn refused_bytes(&self) -> u64 {
        self.refused_bytes.load(Ordering::Relaxed)
    }

    /// Counts and logs the end of a write with `bytes` that are not in the cache.
    fn ended(&self, pages: &MappedWrite, bytes: usize, failure: Option<Failure>) {
        let Some(Failure(errno)) = failure else { return self.is_refusing.store(false, Ordering::Relaxed) };
        self.refused_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !self.is_refusing.swap(true, Ordering::Relaxed) {
            let (ino, offset_bytes) = (pages.open.node.inode.id().ino, pages.offset_bytes);
            tracing::error!(ino, offset_bytes, bytes, %errno, "stores to a mapping are lost: the source refuses data; \
                msync, fsync and close return the error");
        }
    }

    /// Fails the waiting writes: the volume ends, and the kernel that would get the error is gone.
    pub(super) fn fail(&self) {
        let failed = std::mem::take(&mut *self.queue.lock());
        for waiting in failed {
            self.bytes.fetch_sub(waiting.bytes.len(), Ordering::Relaxed);
            let _ = waiting.reply.error(Errno::IO);
        }
    }
}

impl Volume {
    /// WRITE of pages that the kernel held for a mapping.
    pub(super) fn write_mapped(self: &Arc<Self>, args: &WriteIn, bytes: &[u8], reply: Reply) {
        let open = match self.open_file(args.fh) {
            Ok(open) => open,
            Err(failure) => return self.deliver(reply, Err(failure)),
        };
        let mut pages = MappedWrite { open, offset_bytes: args.offset, done: 0, size: args.size };
        let mapped_writes = &self.worker.mapped_writes;
        // Later pages do not overtake those that wait for a frame.
        let attempt = if mapped_writes.is_empty() { pages.attempt(self, bytes) } else { Attempt::NoFrames };
        self.schedule_mapped_flush();
        match attempt {
            Attempt::Done => self.answer_mapped_write(&pages, 0, None, reply),
            Attempt::Failed(failure) => {
                self.answer_mapped_write(&pages, bytes.len() - pages.done, Some(failure), reply);
            }
            Attempt::NoFrames | Attempt::Later | Attempt::WouldBlock => {
                mapped_writes.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
                let bytes = bytes.to_vec();
                mapped_writes.queue.lock().push_back(QueuedWrite {
                    pages,
                    bytes,
                    reply,
                    tries: 0,
                    is_prepared: false,
                    failed: None,
                });
                self.wake_worker();
            }
        }
    }

    /// Retries all waiting writes. Returns the delay until the next retry, at most `longest`; `None` if nothing waits.
    pub(super) fn retry_mapped_writes(self: &Arc<Self>, longest: Duration) -> Option<Duration> {
        let waiting = std::mem::take(&mut *self.worker.mapped_writes.queue.lock());
        let (mut short, mut left, mut pause) = (BTreeSet::new(), VecDeque::new(), None);
        for mut waiting in waiting {
            let tenant = waiting.pages.open.node.inode.memcg().id();
            let attempt = match short.contains(&tenant) {
                true => Attempt::NoFrames,
                false => waiting.pages.attempt(self, &waiting.bytes),
            };
            let attempt = match (attempt, waiting.unreadable(self)) {
                (Attempt::WouldBlock, Some(failure)) => Attempt::Failed(failure),
                (attempt, _) => attempt,
            };
            let wait = match attempt {
                Attempt::Done => {
                    self.end_mapped_write(waiting, None);
                    continue;
                }
                Attempt::Failed(failure) => {
                    self.end_mapped_write(waiting, Some(failure));
                    continue;
                }
                Attempt::WouldBlock if !waiting.is_prepared => match self.prepare_on_thread(waiting) {
                    Some(back) => {
                        waiting = back;
                        longest
                    }
                    None => continue,
                },
                Attempt::Later | Attempt::WouldBlock => {
                    waiting.is_prepared = false;
                    waiting.tries += 1;
                    RETRY_MIN * (1 << waiting.tries.min(DOUBLINGS_MAX))
                }
                Attempt::NoFrames => {
                    short.insert(tenant);
                    longest
                }
            };
            pause = Some(pause.map_or(wait, |pause: Duration| pause.min(wait)));
            left.push_back(waiting);
        }
        let mut queue = self.worker.mapped_writes.queue.lock();
        left.append(&mut queue);
        *queue = left;
        pause
    }

    fn end_mapped_write(&self, waiting: QueuedWrite, failure: Option<Failure>) {
        let QueuedWrite { pages, bytes, reply, .. } = waiting;
        self.worker.mapped_writes.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
        self.answer_mapped_write(&pages, bytes.len() - pages.done, failure, reply);
    }

    /// Answers a write with `left` bytes that are not done with.
    fn answer_mapped_write(&self, pages: &MappedWrite, left: usize, failure: Option<Failure>, reply: Reply) {
        self.worker.mapped_writes.ended(pages, left, failure);
        self.deliver(reply, failure.map_or(Ok(Answer::Written(pages.size)), Err));
    }

    /// Reads what a write needs on a thread that may wait for the backend (Q3). Returns the write if no thread is left.
    fn prepare_on_thread(self: &Arc<Self>, waiting: QueuedWrite) -> Option<QueuedWrite> {
        let Some(one) = self.worker.reserve_thread() else { return Some(waiting) };
        let place = Arc::new(Mutex::new(LEAF, Some(waiting)));
        let (volume, own) = (Arc::clone(self), Arc::clone(&place));
        let prepare = move || {
            let Some(mut waiting) = own.lock().take() else { return };
            let MappedWrite { open, offset_bytes, done, .. } = &waiting.pages;
            // A failure may be transient: the write is retried for a while.
            let prepared = open.file.prepare_write_from_mapping(offset_bytes + *done as u64);
            let since = waiting.failed.map_or_else(|| volume.sb.now(), |(_, since)| since);
            waiting.failed = prepared.err().map(|error| (error.kind(), since));
            waiting.is_prepared = true;
            volume.worker.mapped_writes.queue.lock().push_front(waiting);
            volume.wake_worker();
            drop(one);
        };
        let started = thread::Builder::new().name("sw-parked".to_owned()).spawn(prepare);
        if started.is_ok() { None } else { place.lock().take() }
    }
}
