//! Where requests land: memory of one reading thread.
//!
//! The header of a WRITE has 80 bytes. A message is read to 80 bytes before a page, so that the payload begins on one and
//! the message is nevertheless in one piece, whatever it is. The kernel copies to whole pages, and who takes the payload
//! finds it aligned.
//!
//! Messages land one behind the other, as far as the memory goes, then at its start again. The default is room for one:
//! then small writes always land in the same lines of the cache.

use std::io::IoSliceMut;

use rustix::io::Errno;
use rustix::param::page_size;

use crate::abi::{InHeader, Wire, WriteIn};
use crate::sys::Memory;

const HEADER: usize = InHeader::SIZE + WriteIn::SIZE;
/// The kernel refuses to read into less.
const MESSAGE_MIN: usize = 8192;

/// Memory for incoming requests.
pub(crate) struct LandingPad {
    memory: Memory,
    max_write: usize,
    /// Where the next payload begins; on a page, never the first.
    payload: usize,
}

impl LandingPad {
    /// Room for messages with `max_write` bytes of payload, that come round again after `ring` bytes, at the earliest.
    pub(crate) fn new(max_write: usize, ring: usize) -> Result<Self, Errno> {
        let page = page_size();
        let max_write = max_write.max(MESSAGE_MIN).next_multiple_of(page);
        let memory = Memory::new(page + max_write.max(ring.next_multiple_of(page)))?;
        Ok(Self { memory, max_write, payload: page })
    }

    /// Where to read the next message to.
    #[inline]
    pub(crate) fn buffers(&mut self) -> [IoSliceMut<'_>; 1] {
        let start = self.payload - HEADER;
        [IoSliceMut::new(&mut self.memory[start..self.payload + self.max_write])]
    }

    /// The message that was read there; it has `len` bytes.
    #[inline]
    pub(crate) fn message(&self, len: usize) -> &[u8] {
        let start = self.payload - HEADER;
        &self.memory[start..start + len]
    }

    /// Moves behind a message of `len` bytes, which is used up.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        let page = page_size();
        self.payload += len.saturating_sub(HEADER).next_multiple_of(page).max(page);
        if self.payload + self.max_write > self.memory.len() {
            self.payload = page;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_begin_on_pages_and_come_round() {
        let page = page_size();
        let mut pad = LandingPad::new(64 << 10, 128 << 10).unwrap();
        let first = pad.message(HEADER + 1).as_ptr() as usize;
        assert_eq!((first + HEADER) % page, 0);
        assert_eq!(pad.buffers()[0].len(), HEADER + (64 << 10));
        pad.advance(HEADER + 1);
        assert_eq!(pad.message(0).as_ptr() as usize, first + page);
        pad.advance(HEADER + (60 << 10));
        assert_eq!(pad.message(0).as_ptr() as usize, first + (64 << 10));
        pad.advance(10);
        assert_eq!(pad.message(0).as_ptr() as usize, first, "no room for a whole message is left");
    }

    #[test]
    fn without_a_ring_every_message_lands_in_the_same_place() {
        let mut pad = LandingPad::new(1 << 20, 0).unwrap();
        let first = pad.message(0).as_ptr();
        pad.advance(HEADER + 4096);
        assert_eq!(pad.message(0).as_ptr(), first);
    }
}
