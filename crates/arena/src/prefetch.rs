//! Asking for memory before it is needed.
//!
//! A cached access goes from one line that no cache holds to the next: the frame's lock, then the frame's bytes. The
//! locked instruction between them keeps the processor from looking ahead, so both are asked for together. One line of
//! the bytes is enough: it brings the translation of the address, and the copy runs ahead of itself from there. Where the
//! processor foresees the access itself, as in reading on, asking disturbs it: that costs a third.

#![allow(unsafe_code, reason = "the instruction has no safe form; a hint cannot fault and changes nothing")]

/// Asks the processor for the line of memory that `at` begins in; an address of nothing is let pass.
#[inline]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint may have any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
