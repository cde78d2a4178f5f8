//! Memory of one reading thread, where requests land.
//!
//! The header of a WRITE has 80 bytes. A message is read to 80 bytes before a page boundary, so that the payload is
//! page-aligned and the message contiguous whatever its type. The kernel copies to whole pages, and the handler gets an
//! aligned payload.
//!
//! When large writes are expected, their payload lands in memory that the file system lends, while the header is read
//! to the same place as usual. Any other message that is read this way is copied behind its header.
//!
//! With a ring, messages land one after the other until the memory is used up, then from its start again. By default
//! there is memory for one message, so that small writes always land in the same cache lines.

use std::any::Any;
use std::fmt::Debug;
use std::io::IoSliceMut;

use rustix::io::Errno;
use rustix::param::page_size;

use crate::abi::{InHeader, Opcode, Wire, WriteIn};
use crate::sys::Memory;

const HEADER: usize = InHeader::SIZE + WriteIn::SIZE;
/// Payloads from this length on land in lent memory. Measured: at 64 KiB exchanging page frames takes as long as copying.
const LARGE: usize = 128 << 10;
/// Slices of the longest message that lands in lent memory: the header and 1 MiB of separate pages.
const SLICES_MAX: usize = 257;
/// Bytes of the smallest slice of lent memory.
const PIECE_BYTES: usize = 4096;
/// The kernel refuses to read into a smaller buffer.
const MESSAGE_MIN: usize = 8192;

/// Memory that a file system lends for the payload of the next large WRITE, in slices of 4 KiB or more.
///
/// The file system gets it back in [`FileSystem::write_landed`](crate::FileSystem::write_landed), where it can be
/// downcast to its own type.
pub trait LandingMemory: Any + Debug {
    /// Puts the memory into `slices`, in order, and returns how many it takes.
    fn slices<'a>(&'a mut self, slices: &mut [IoSliceMut<'a>]) -> usize;

    /// Copies `to.len()` bytes from offset `from` of the payload.
    fn copy_to(&self, from: usize, to: &mut [u8]);
}

/// Memory for incoming requests.
pub(crate) struct LandingPad {
    memory: Memory,
    max_write: usize,
    /// Where the next payload begins; a page boundary, never the first.
    payload: usize,
}

impl LandingPad {
    /// Memory for messages with `max_write` bytes of payload, reused at the earliest after `ring` bytes. A ring is
    /// faulted in at once. Without one most threads never touch more than two pages, since large writes land in lent memory.
    /// `outlives` says that the mount outlives the process: then all of it is faulted in. If a process is killed while a
    /// page for a request is missing, the kernel fails that request.
    pub(crate) fn new(max_write: usize, ring: usize, outlives: bool) -> Result<Self, Errno> {
        let page = page_size();
        let max_write = max_write.max(MESSAGE_MIN).next_multiple_of(page);
        let memory = Memory::new(page + max_write.max(ring.next_multiple_of(page)), ring != 0 || outlives)?;
        Ok(Self { memory, max_write, payload: page })
    }

    /// The buffer for the next message.
    #[inline]
    pub(crate) fn buffers(&mut self) -> [IoSliceMut<'_>; 1] {
        let start = self.payload - HEADER;
        [IoSliceMut::new(&mut self.memory[start..self.payload + self.max_write])]
    }

    /// The number of bytes that lent memory must hold.
    pub(crate) fn max_write(&self) -> usize {
        self.max_write
    }

    /// Whether the last message, of `len` bytes, is a write large enough for lent memory.
    #[inline]
    pub(crate) fn is_large_write(&self, len: usize) -> bool {
        let fits = self.max_write <= (SLICES_MAX - 1) * PIECE_BYTES;
        fits && len >= HEADER + LARGE && is_write(&self.memory[self.payload - HEADER..self.payload])
    }

    /// The thread that made the last message, of `len` bytes; 0 for one of the kernel's own, or a malformed message.
    #[inline]
    pub(crate) fn client(&self, len: usize) -> u32 {
        let start = self.payload - HEADER;
        InHeader::take(&mut &self.memory[start..start + len.min(HEADER)]).map_or(0, |header| header.pid)
    }

    /// Reads the next message with `receive`, its payload into `lent`.
    pub(crate) fn receive_to(
        &mut self,
        lent: &mut dyn LandingMemory,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut buffers: [IoSliceMut<'_>; SLICES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        buffers[0] = IoSliceMut::new(&mut self.memory[self.payload - HEADER..self.payload]);
        let count = 1 + lent.slices(&mut buffers[1..]);
        receive(&mut buffers[..count])
    }

    /// The message of `len` bytes with its payload in `lent`, if it is a large write. Otherwise `None`, and the
    /// message is now contiguous in this memory.
    pub(crate) fn landed<'a>(&'a mut self, lent: &'a mut dyn LandingMemory, len: usize) -> Option<LandedMessage<'a>> {
        let payload = len.saturating_sub(HEADER);
        let start = self.payload - HEADER;
        let (head, rest) = self.memory[start..].split_at_mut(HEADER);
        if payload < LARGE || !is_write(head) {
            lent.copy_to(0, &mut rest[..payload]);
            return None;
        }
        Some(LandedMessage { head, landed: Landed { lent, len: payload, rest } })
    }

    /// The last message, of `len` bytes.
    #[inline]
    pub(crate) fn message(&self, len: usize) -> &[u8] {
        let start = self.payload - HEADER;
        &self.memory[start..start + len]
    }

    /// Moves past the last message, of `len` bytes, which has been handled.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        let page = page_size();
        self.payload += len.saturating_sub(HEADER).next_multiple_of(page).max(page);
        if self.payload + self.max_write > self.memory.len() {
            self.payload = page;
        }
    }
}

/// A WRITE whose payload is in lent memory.
pub(crate) struct LandedMessage<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) landed: Landed<'a>,
}

/// The payload of a WRITE, in memory lent by the file system.
#[derive(Debug)]
pub struct Landed<'a> {
    lent: &'a mut dyn LandingMemory,
    len: usize,
    /// Memory for a contiguous copy.
    rest: &'a mut [u8],
}

impl<'a> Landed<'a> {
    /// The same, limited to `len` bytes.
    pub(crate) fn cut(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The lent memory, which begins with the payload.
    pub fn memory(&mut self) -> &mut dyn LandingMemory {
        self.lent
    }

    /// The bytes from `from` on, copied to contiguous memory of the reading thread.
    ///
    /// # Panics
    /// If `from` is beyond the end.
    #[must_use]
    pub fn into_bytes(self, from: usize) -> &'a [u8] {
        let bytes = &mut self.rest[..self.len - from];
        self.lent.copy_to(from, bytes);
        bytes
    }
}

/// Whether a message with this header is a WRITE.
fn is_write(mut head: &[u8]) -> bool {
    InHeader::take(&mut head).is_some_and(|header| header.opcode == Opcode::Write as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_begin_on_pages_and_the_memory_is_reused() {
        let page = page_size();
        let mut pad = LandingPad::new(64 << 10, 128 << 10, false).unwrap();
        let first = pad.message(HEADER + 1).as_ptr() as usize;
        assert_eq!((first + HEADER) % page, 0);
        assert_eq!(pad.buffers()[0].len(), HEADER + (64 << 10));
        pad.advance(HEADER + 1);
        assert_eq!(pad.message(0).as_ptr() as usize, first + page);
        pad.advance(HEADER + (60 << 10));
        assert_eq!(pad.message(0).as_ptr() as usize, first + (64 << 10));
        pad.advance(10);
        assert_eq!(pad.message(0).as_ptr() as usize, first, "a whole message does not fit any more");
    }

    #[test]
    fn without_a_ring_every_message_lands_in_the_same_place() {
        let mut pad = LandingPad::new(1 << 20, 0, false).unwrap();
        let first = pad.message(0).as_ptr();
        pad.advance(HEADER + 4096);
        assert_eq!(pad.message(0).as_ptr(), first);
    }
}
