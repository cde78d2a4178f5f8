//! Where requests land: memory of one reading thread.
//!
//! The header of a WRITE has 80 bytes. A message is read to 80 bytes before a page, so that the payload begins on one and
//! the message is nevertheless in one piece, whatever it is. The kernel copies to whole pages, and who takes the payload
//! finds it aligned.
//!
//! Where large writes come, their payload lands in frames that the file system lends, right behind the header, which is
//! read to the same place as ever. Any other message that is read so is put together behind its header again.
//!
//! Messages land one behind the other, as far as the memory goes, then at its start again. The default is room for one:
//! then small writes always land in the same lines of the cache.

use std::io::IoSliceMut;

use rustix::io::Errno;
use rustix::param::page_size;

use slackwater::{LandingFrames, PAGE_BYTES};

use crate::abi::{InHeader, Opcode, Wire, WriteIn};
use crate::sys::Memory;

const HEADER: usize = InHeader::SIZE + WriteIn::SIZE;
/// From this length on a payload is worth frames. Measured: at 64 KiB exchanging them takes as long as copying.
const LARGE: usize = 128 << 10;
/// Slices of the longest message that lands in frames: its header, and each frame of 1 MiB by itself.
const SLICES_MAX: usize = 257;
const FRAME_BYTES: usize = PAGE_BYTES as usize;
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
    /// Room for messages with `max_write` bytes of payload, that come round again after `ring` bytes, at the earliest. A
    /// ring is faulted in. Without one most threads never use more than two pages: large writes go to frames.
    pub(crate) fn new(max_write: usize, ring: usize) -> Result<Self, Errno> {
        let page = page_size();
        let max_write = max_write.max(MESSAGE_MIN).next_multiple_of(page);
        let memory = Memory::new(page + max_write.max(ring.next_multiple_of(page)), ring != 0)?;
        Ok(Self { memory, max_write, payload: page })
    }

    /// Where to read the next message to.
    #[inline]
    pub(crate) fn buffers(&mut self) -> [IoSliceMut<'_>; 1] {
        let start = self.payload - HEADER;
        [IoSliceMut::new(&mut self.memory[start..self.payload + self.max_write])]
    }

    /// How much frames must hold to be read into.
    pub(crate) fn max_write(&self) -> usize {
        self.max_write
    }

    /// Whether the message of `len` bytes that was read last is a write that frames could have been read to with profit.
    #[inline]
    pub(crate) fn is_large_write(&self, len: usize) -> bool {
        let fits = self.max_write <= (SLICES_MAX - 1) * FRAME_BYTES;
        fits && len >= HEADER + LARGE && is_write(&self.memory[self.payload - HEADER..self.payload])
    }

    /// Reads the next message by `receive`, its payload to `frames`.
    pub(crate) fn receive_to(
        &mut self,
        frames: &mut LandingFrames,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut buffers: [IoSliceMut<'_>; SLICES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        buffers[0] = IoSliceMut::new(&mut self.memory[self.payload - HEADER..self.payload]);
        let mut count = 1;
        for (buffer, slice) in buffers[1..].iter_mut().zip(frames.slices_mut()) {
            *buffer = IoSliceMut::new(slice);
            count += 1;
        }
        receive(&mut buffers[..count])
    }

    /// The payload, in `frames`, of a message of `len` bytes, if it is worth it. If not, the message is in one piece
    /// now.
    pub(crate) fn landed<'a>(&'a mut self, frames: &'a mut LandingFrames, len: usize) -> Option<LandedMessage<'a>> {
        let payload = len.saturating_sub(HEADER);
        let start = self.payload - HEADER;
        let (head, rest) = self.memory[start..].split_at_mut(HEADER);
        if payload < LARGE || !is_write(head) {
            frames.copy_to(0, &mut rest[..payload]);
            return None;
        }
        Some(LandedMessage { head, landed: Landed { frames, len: payload, rest } })
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

/// A WRITE whose payload is in frames.
pub(crate) struct LandedMessage<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) landed: Landed<'a>,
}

/// The payload of a WRITE, in frames that the file system has lent.
#[derive(Debug)]
pub struct Landed<'a> {
    frames: &'a mut LandingFrames,
    len: usize,
    /// Memory for who needs it in one piece.
    rest: &'a mut [u8],
}

impl<'a> Landed<'a> {
    /// The same, and no more than `len` bytes.
    pub(crate) fn cut(self, len: usize) -> Self {
        Self { len: len.min(self.len), ..self }
    }

    /// Bytes of it.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The frames; the payload begins with the first.
    pub fn frames(&mut self) -> &mut LandingFrames {
        self.frames
    }

    /// The bytes from `from` on, copied into one piece of the reading thread's memory.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn into_bytes(self, from: usize) -> &'a [u8] {
        let bytes = &mut self.rest[..self.len - from];
        self.frames.copy_to(from, bytes);
        bytes
    }
}

/// Whether a message that begins so is a WRITE.
fn is_write(mut head: &[u8]) -> bool {
    InHeader::take(&mut head).is_some_and(|header| header.opcode == Opcode::Write as u32)
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
