//! Units of I/O: a run of pages on its way between frames and backend.
//!
//! A unit owns the locks of its frames until it completes, so their bytes stay put while a device reads or
//! fills them, whatever thread it is on.

use std::fmt;

use slackwater_arena::{Gather, Scatter};

use crate::backend::{Done, Node};
use crate::error::{BackendError, ErrorKind};

type WriteDone = Box<dyn FnOnce(Gather, Result<usize, BackendError>) + Send>;
type ReadDone = Box<dyn FnOnce(Scatter, Result<usize, BackendError>) + Send>;

/// Consecutive pages to be written to a node, the last one at its exact length.
pub struct WriteUnit {
    node: Node,
    offset_bytes: u64,
    len_bytes: usize,
    refills: bool,
    pending: Option<(Gather, WriteDone)>,
}

impl WriteUnit {
    pub(crate) fn new(node: Node, offset_bytes: u64, len_bytes: usize, frames: Gather, done: WriteDone) -> Self {
        Self { node, offset_bytes, len_bytes, refills: false, pending: Some((frames, done)) }
    }

    /// The file was cut to nothing, and these bytes are what it gets in place of those it had. They are to become durable
    /// soon: a crash that finds the cut durable and not them leaves the file empty.
    #[must_use]
    pub fn refilling(mut self, refills: bool) -> Self {
        self.refills = refills;
        self
    }

    /// Whether it [refills](WriteUnit::refilling) a file that was emptied.
    pub fn refills(&self) -> bool {
        self.refills
    }

    /// A unit that belongs to no engine, for the tests of backends. The frames are released before `done`
    /// is answered.
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

    /// Where the first byte goes: a multiple of the page size.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// How many bytes to write: at most the backend's unit size; not a multiple of the page size when the
    /// unit ends the file.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes, in order; neighbouring frames come as one slice. Each starts page-aligned in memory.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pending.iter().flat_map(|(frames, _)| frames.slices(self.len_bytes))
    }

    /// Leaves the end of the unit out: a layer's way to make a write short, which is allowed at any time.
    ///
    /// # Panics
    /// When `len_bytes` is more than the unit has.
    pub fn shorten(&mut self, len_bytes: usize) {
        assert!(len_bytes <= self.len_bytes, "a unit cannot grow");
        self.len_bytes = len_bytes;
    }

    /// Answers with the number of bytes written. Fewer than asked, and the rest is written again later; none
    /// at all counts as a failure.
    pub fn complete(mut self, written: Result<usize, BackendError>) {
        if let Some((frames, done)) = self.pending.take() {
            done(frames, written);
        }
    }
}

impl Drop for WriteUnit {
    fn drop(&mut self) {
        if let Some((frames, done)) = self.pending.take() {
            done(frames, Err(ErrorKind::Abandoned.into()));
        }
    }
}

impl fmt::Debug for WriteUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteUnit({}+{})", self.offset_bytes, self.len_bytes)
    }
}

/// Consecutive pages to be filled from a node.
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

    /// A unit that belongs to no engine, for the tests of backends. The frames are released before `done`
    /// is answered.
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

    /// Where the first byte comes from: a multiple of the page size.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// How many bytes to read: a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where the bytes go, in order; neighbouring frames come as one slice. Each starts page-aligned.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let len_bytes = self.len_bytes;
        self.pending.iter_mut().flat_map(move |(frames, _)| frames.slices_mut(len_bytes))
    }

    /// Answers with the number of bytes read. Fewer than asked means that the file ends there: the engine
    /// zeroes the rest.
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
