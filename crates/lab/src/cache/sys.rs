//! Memory in huge pages.

#![allow(unsafe_code, reason = "madvise takes an address")]

use rustix::mm::{Advice, madvise};

/// Size of a huge page on x86-64, and on arm64 with pages of 4 KiB.
const HUGE_BYTES: usize = 2 << 20;

/// Memory that has been written, in huge pages where the kernel has them.
pub(super) fn huge_buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    let skipped = buffer.as_ptr().align_offset(HUGE_BYTES).min(bytes);
    let whole = (bytes - skipped) / HUGE_BYTES * HUGE_BYTES;
    let start = buffer[skipped..].as_mut_ptr().cast();
    // SAFETY: the range is inside the buffer, and the advice leaves the bytes as they are.
    let _ = unsafe { madvise(start, whole, Advice::LinuxHugepage) };
    buffer.fill(1); // to the kernel, untouched memory is one page of zeroes
    buffer
}
