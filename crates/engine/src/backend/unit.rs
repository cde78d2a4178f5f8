//! Units of I/O: a run of pages on its way between frames and backend.
//!
//! A unit holds the locks of its frames until it completes, on whatever thread it is. So the bytes do not change while
//! a device reads or fills them.

use std::fmt;

use slackwater_arena::{Gather, Scatter};
use slackwater_sync::lock::Mutex;

use crate::backend::{Done, Node};
use crate::error::{BackendError, ErrorKind};
use crate::lock_order::LEAVES;

type WriteDone = Box<dyn FnOnce(Gather, Result<usize, BackendError>) + Send>;
type ReadDone = Box<dyn FnOnce(Scatter, Result<usize, BackendError>) + Send>;

/// Consecutive pages to write to a node. The last one may be partial, at the end of the file.
pub struct WriteUnit {
    node: Node,
    offset_bytes: u64,
    len_bytes: usize,
    refills: bool,
    is_for_sync: bool,
    flushes: bool,
    /// The lock is never contended: it makes units `Sync`, so that a backend can lend their bytes to several threads.
    pending: Option<(Gather, Mutex<WriteDone>)>,
}

impl WriteUnit {
    pub(crate) fn new(node: Node, offset_bytes: u64, len_bytes: usize, frames: Gather, done: WriteDone) -> Self {
        let pending = Some((frames, Mutex::new(LEAVES, done)));
        Self { node, offset_bytes, len_bytes, refills: false, is_for_sync: false, flushes: false, pending }
    }

    /// A sync waits for the unit.
    #[must_use]
    pub fn for_sync(mut self, is_for_sync: bool) -> Self {
        self.is_for_sync = is_for_sync;
        self
    }

    /// Whether a sync waits for it. A backend that gathers or queues units should write it before others.
    pub fn is_for_sync(&self) -> bool {
        self.is_for_sync
    }

    /// Syncs are being made on the device. Each waits until the cache of the device is written, so these bytes should
    /// have left it when the unit completes.
    #[must_use]
    pub fn flushing(mut self, flushes: bool) -> Self {
        self.flushes = flushes;
        self
    }

    /// Whether the bytes should have left the cache of the device when the unit completes. No promise depends on it: they
    /// count as durable only after a sync. Never set unless the [limits](crate::backend::Limits::flushes) of the backend
    /// say that it does this.
    pub fn flushes(&self) -> bool {
        self.flushes
    }

    /// The file was truncated to nothing, and these bytes replace its former content. They are to become durable soon:
    /// after a crash that keeps the truncation but not the bytes, the file would be empty.
    #[must_use]
    pub fn refilling(mut self, refills: bool) -> Self {
        self.refills = refills;
        self
    }

    /// Whether it [refills](WriteUnit::refilling) a truncated file.
    pub fn refills(&self) -> bool {
        self.refills
    }

    /// A unit without an engine, for tests of backends. The frames are released before `done` is called.
    pub fn detached(node: Node, offset_bytes: u64, frames: Gather, len_bytes: usize, done: Done<usize>) -> Self {
        let then = move |frames, written| {
            drop(frames);
            done.complete(written);
        };
        Self::new(node, offset_bytes, len_bytes, frames, Box::new(then))
    }

    /// The file to write to.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The file offset of the first byte: a multiple of the page size.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The number of bytes to write: at most the backend's unit size. It is not a multiple of the page size if the unit
    /// ends the file.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes, in order. Adjacent frames form one slice. Each slice is page-aligned in memory.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pending.iter().flat_map(|(frames, _)| frames.slices(self.len_bytes))
    }

    /// Shortens the unit. A layer uses it for short writes, which are allowed at any time.
    ///
    /// # Panics
    /// If `len_bytes` is more than the unit has.
    pub fn shorten(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.len_bytes, "a unit cannot grow");
        self.len_bytes = len_bytes;
    }

    /// Completes the unit with the number of bytes written. If it is less than requested, the rest is written again
    /// later. Zero counts as a failure.
    pub fn complete(mut self, written: Result<usize, BackendError>) {
        if let Some((frames, done)) = self.pending.take() {
            done.into_inner()(frames, written);
        }
    }
}

impl Drop for WriteUnit {
    fn drop(&mut self) {
        if let Some((frames, done)) = self.pending.take() {
            done.into_inner()(frames, Err(ErrorKind::Abandoned.into()));
        }
    }
}

impl fmt::Debug for WriteUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteUnit({}+{})", self.offset_bytes, self.len_bytes)
    }
}

/// Consecutive pages to fill from a node.
pub struct ReadUnit {
    node: Node,
    offset_bytes: u64,
    len_bytes: usize,
    pending: Option<(Scatter, ReadDone)>,
}

impl ReadUnit {
    pub(crate) fn new(node: Node, offset_bytes: u64, len_bytes: usize, frames: Scatter, done: ReadDone) -> Self {
        Self { node, offset_bytes, len_bytes, pending: Some((frames, done)) }
    }

    /// A unit without an engine, for tests of backends. The frames are released before `done` is called.
    pub fn detached(node: Node, offset_bytes: u64, frames: Scatter, len_bytes: usize, done: Done<usize>) -> Self {
        let then = move |frames, read| {
            drop(frames);
            done.complete(read);
        };
        Self::new(node, offset_bytes, len_bytes, frames, Box::new(then))
    }

    /// The file to read from.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The file offset of the first byte: a multiple of the page size.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The number of bytes to read: a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The destination, in order. Adjacent frames form one slice. Each slice is page-aligned.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let len_bytes = self.len_bytes;
        self.pending.iter_mut().flat_map(move |(frames, _)| frames.slices_mut(len_bytes))
    }

    /// Completes the unit with the number of bytes read. If it is less than requested, the file ends there, and the
    /// engine zeroes the rest.
    pub fn complete(mut self, read: Result<usize, BackendError>) {
        if let Some((frames, done)) = self.pending.take() {
            done(frames, read);
        }
    }
}

impl Drop for ReadUnit {
    fn drop(&mut self) {
        if let Some((frames, done)) = self.pending.take() {
            done(frames, Err(ErrorKind::Abandoned.into()));
        }
    }
}

impl fmt::Debug for ReadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadUnit({}+{})", self.offset_bytes, self.len_bytes)
    }
}
