//! Prefetching memory before it is needed.
//!
//! An access to a cached page touches two lines that are usually in no processor cache: the frame's lock, then the
//! frame's bytes. The locked instruction between them prevents the processor from looking ahead, so both are prefetched
//! together. One line of the bytes is enough: it loads the address translation, and the copy runs ahead from there.
//! Where the processor predicts the access itself, as in sequential reads, a prefetch disturbs it and makes the access
//! a third slower.

#![allow(unsafe_code, reason = "the instruction has no safe form; a hint cannot fault and changes nothing")]

/// Prefetches the line of memory in which `at` begins. An invalid address is ignored.
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
