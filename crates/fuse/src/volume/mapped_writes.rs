//! MappedWrite from mappings that could not be taken at once, with their replies.
//!
//! Nobody waits for such a page who could be told of a failure, and the kernel has no other copy once it is answered. So
//! it is answered when the cache has it and not before, and waits here with its bytes and without a thread. That
//! slows the programs which store to mappings of this volume: the kernel bounds what a FUSE mount may have dirty and under
//! write-back (`max_bytes` and `strict_limit` of its `/sys/class/bdi`), and lets programs wait in their next store.
//!
//! # Invariants
//! Q1. What waits is bounded by the kernel's limit of the mount and counted in [`Volume::parked_bytes`].
//! Q2. No frame beyond the share of the volume and the limit of its tenant is taken for a page from a mapping.
//! Q3. A page that waits is tried by the worker, which never waits for the backend; what has to be read first
//!     is read on one of the few threads that parked writes have.
//!
//! # Lock order
//! The lock is a leaf: a page is taken out to be tried.
//!
//! # Kernel counterpart
//! `fuse_writepages`, whose pages are under write-back until they are answered.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rustix::io::Errno;
use slackwater::{ErrorKind, FileError};
use slackwater_sync::lock::Mutex;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};
use slackwater_sync::shim::{Arc, thread};

use crate::abi::WriteIn;
use crate::reply::Reply;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::{self, Failure};
use crate::volume::lock_order::LEAF;
use crate::volume::open_files::OpenFile;

/// When a page is tried for the second time that something else of its file was in the way of.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// How often that time doubles.
const DOUBLINGS_MAX: u32 = 6;

/// A write-back of pages from a mapping, but for its bytes.
struct MappedWrite {
    open: Arc<OpenFile>,
    offset_bytes: u64,
    /// Bytes that are done with.
    done: usize,
    /// The count to answer.
    size: u32,
}

/// What became of an attempt to take them.
enum Attempt {
    Done,
    /// No frame is free for them.
    NoRoom,
    /// Something else has the file, or changes wait.
    Later,
    /// The backend has to be asked first.
    WouldBlock,
    Failed(Failure),
}

impl MappedWrite {
    /// Takes what is left of `bytes`.
    fn attempt(&mut self, volume: &Volume, bytes: &[u8]) -> Attempt {
        let OpenFile { node, file, .. } = &*self.open;
        // The rest of the last page is not part of the file.
        let inside = node.inode.size_bytes().saturating_sub(self.offset_bytes).min(bytes.len() as u64) as usize;
        let Some(rest) = bytes.get(self.done..inside) else { return Attempt::Done };
        let at = self.offset_bytes + self.done as u64;
        let taken = node.kernel_pages.write_back(at, rest, |at, bytes| file.write_from_mapping(at, bytes));
        let Some((bytes, stopped)) = taken else { return Attempt::Later };
        self.done += bytes;
        match stopped {
            None => Attempt::Done,
            Some(_) if volume.is_refusing() => Attempt::Failed(Errno::IO.into()),
            Some(Ok(_)) => Attempt::NoRoom,
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => Attempt::WouldBlock,
            Some(Err(FileError::NotMounted)) if volume.sb.is_frozen() => Attempt::Later,
            Some(Err(error)) => Attempt::Failed(error.into()),
        }
    }
}

/// MappedWrite that wait.
struct QueuedWrite {
    pages: MappedWrite,
    bytes: Vec<u8>,
    reply: Reply,
    /// How often something was in the way.
    tries: u32,
    /// What it needs of the backend was brought since it was tried.
    is_prepared: bool,
    /// Somebody else has removed the file in the backend, and it cannot be opened again.
    is_gone: bool,
}

/// The pages that wait on a volume.
pub(super) struct MappedWrites {
    queue: Mutex<VecDeque<QueuedWrite>>,
    bytes: AtomicUsize,
}

impl MappedWrites {
    pub(super) fn new() -> Self {
        Self { queue: Mutex::new(LEAF, VecDeque::new()), bytes: AtomicUsize::new(0) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Fails what waits: the volume ends, and the kernel that would hear of it is gone.
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
        // What comes later does not overtake what waits for room.
        let attempt = if mapped_writes.is_empty() { pages.attempt(self, bytes) } else { Attempt::NoRoom };
        self.schedule_mapped_flush();
        match attempt {
            Attempt::Done => self.deliver(reply, Ok(Answer::Written(pages.size))),
            Attempt::Failed(failure) => self.deliver(reply, Err(failure)),
            Attempt::NoRoom | Attempt::Later | Attempt::WouldBlock => {
                mapped_writes.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
                let bytes = bytes.to_vec();
                mapped_writes.queue.lock().push_back(QueuedWrite {
                    pages,
                    bytes,
                    reply,
                    tries: 0,
                    is_prepared: false,
                    is_gone: false,
                });
                self.wake_worker();
            }
        }
    }

    /// Tries all pages that wait. Returns when to try the rest again, at the latest.
    pub(super) fn retry_mapped_writes(self: &Arc<Self>, longest: Duration) -> Option<Duration> {
        let waiting = std::mem::take(&mut *self.worker.mapped_writes.queue.lock());
        let (mut short, mut left, mut pause) = (BTreeSet::new(), VecDeque::new(), None);
        for mut waiting in waiting {
            let tenant = waiting.pages.open.node.inode.memcg().id();
            let attempt = match short.contains(&tenant) {
                true => Attempt::NoRoom,
                false => waiting.pages.attempt(self, &waiting.bytes),
            };
            let wait = match attempt {
                Attempt::Done => {
                    self.answer_mapped_write(waiting, None);
                    continue;
                }
                Attempt::Failed(failure) => {
                    self.answer_mapped_write(waiting, Some(failure));
                    continue;
                }
                Attempt::WouldBlock if waiting.is_gone => {
                    self.answer_mapped_write(waiting, Some(errno::of(ErrorKind::Stale).into()));
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
                Attempt::NoRoom => {
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

    fn answer_mapped_write(&self, waiting: QueuedWrite, failure: Option<Failure>) {
        let QueuedWrite { pages, bytes, reply, .. } = waiting;
        self.worker.mapped_writes.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
        self.deliver(reply, failure.map_or(Ok(Answer::Written(pages.size)), Err));
    }

    /// Q3. Gives it back where no thread is left.
    fn prepare_on_thread(self: &Arc<Self>, waiting: QueuedWrite) -> Option<QueuedWrite> {
        let Some(one) = self.worker.reserve_thread() else { return Some(waiting) };
        let place = Arc::new(Mutex::new(LEAF, Some(waiting)));
        let (volume, own) = (Arc::clone(self), Arc::clone(&place));
        let prepare = move || {
            let Some(mut waiting) = own.lock().take() else { return };
            let MappedWrite { open, offset_bytes, done, .. } = &waiting.pages;
            // Another failure may pass: it is tried again.
            let prepared = open.file.prepare_write_from_mapping(offset_bytes + *done as u64);
            waiting.is_gone = prepared.is_err_and(|error| error.kind() == ErrorKind::Stale);
            waiting.is_prepared = true;
            volume.worker.mapped_writes.queue.lock().push_front(waiting);
            volume.wake_worker();
            drop(one);
        };
        let started = thread::Builder::new().name("sw-parked".to_owned()).spawn(prepare);
        if started.is_ok() { None } else { place.lock().take() }
    }
}
