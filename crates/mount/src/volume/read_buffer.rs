//! Buffers for reads through the backend: one per thread, kept between requests.
//!
//! A buffer is as long as the longest read of its thread, at most 1 MiB, and is freed when the thread ends. Data left
//! from an earlier read is overwritten or cut off before the buffer is sent.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use slackwater_sync::shim::thread_local;

thread_local! {
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The first `len` bytes of a thread's buffer. The thread that drops it keeps it.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    len: usize,
}

impl ReadBuffer {
    /// Takes `len` bytes of arbitrary content.
    pub(super) fn take(len: usize) -> Self {
        let mut bytes = KEPT.take();
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        Self { bytes, len }
    }

    /// Limits the buffer to `len` bytes.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        // The thread may be ending.
        let _ = KEPT.try_with(|kept| kept.set(std::mem::take(&mut self.bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::ReadBuffer;

    #[test]
    fn a_thread_keeps_its_buffer() {
        let mut first = ReadBuffer::take(1 << 20);
        first.fill(1);
        first.truncate(10);
        assert_eq!(first[..], [1; 10]);
        let place = first.as_ptr();
        drop(first);
        let again = ReadBuffer::take(1 << 20);
        assert_eq!((again.as_ptr(), again.len()), (place, 1 << 20));
        drop(again);
        assert_eq!(ReadBuffer::take(5).len(), 5);
    }
}
