//! Long slices of zeros, whose memory is touched only where they are used.
//!
//! Built one element after the other, they would cost a page fault per 4 KiB at once. That would be a large part of the
//! time until a cache of some GiB can be used. Under loom and shuttle they are built that way.

#![allow(unsafe_code, reason = "zeroed memory counts as initialised")]

use crate::lock::RwWord;
use crate::shim::atomic::AtomicU32;

/// A type whose value [`zero`](Self::zero) consists of zero bytes.
///
/// # Safety
/// This holds on the machine. Under loom and shuttle the bytes do not matter.
pub unsafe trait Zeroed: Sized {
    /// The value.
    fn zero() -> Self;
}

// SAFETY: the same representation as the integer 0.
unsafe impl Zeroed for AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }
}

// SAFETY: a word with the value 0, and nothing else.
unsafe impl Zeroed for RwWord {
    fn zero() -> Self {
        Self::new()
    }
}

/// `len` zero values.
pub fn zeroed_slice<T: Zeroed>(len: usize) -> Box<[T]> {
    if cfg!(any(slackwater_loom, slackwater_shuttle)) {
        return (0..len).map(|_| T::zero()).collect();
    }
    // SAFETY: zero bytes are a value of `T`.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

#[cfg(test)]
#[cfg(not(any(slackwater_loom, slackwater_shuttle)))]
mod tests {
    use super::zeroed_slice;
    use crate::lock::RwWord;
    use crate::shim::atomic::{AtomicU32, Ordering};

    #[test]
    fn all_are_zero_and_separate() {
        let atomics = zeroed_slice::<AtomicU32>(100_000);
        atomics[99_999].store(7, Ordering::Relaxed);
        assert_eq!(atomics.iter().map(|atomic| atomic.load(Ordering::Relaxed)).sum::<u32>(), 7);
        assert!(zeroed_slice::<AtomicU32>(0).is_empty());
    }

    #[test]
    fn a_zeroed_lock_is_free() {
        let locks = zeroed_slice::<RwWord>(2);
        assert!(locks[0].try_write() && locks[1].try_write() && !locks[1].try_read());
    }
}
