//! Integers that lie in the mapped file.
//!
//! The next process reads them there, so their size and bytes are part of the format. The atomics of a model checker
//! carry bookkeeping and have another size. Therefore these are the plain ones in every build, and this file is the
//! only one that names them.
//!
//! # Memory ordering
//! O1. A [`StateWord`] is stored with Release and loaded with Acquire, every other word with Relaxed. A kill stops each
//!     thread between two instructions, so the next process sees its stores in the order in which they were made.
//!     Release keeps the compiler from moving the state before the fields, or before the bytes of the frame.
//! O2. A [`Word64`] that decides whether other words are valid is published with Release, for the same reason.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("the arena format is little-endian, and its offsets need 64-bit pointers");

/// A 32-bit field.
#[repr(transparent)]
pub(crate) struct Word32(AtomicU32);

/// A 64-bit field.
#[repr(transparent)]
pub(crate) struct Word64(AtomicU64);

/// The field that decides whether the others are valid.
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU32);

impl Word32 {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Changes some of its bits, by a single store.
    pub(crate) fn set_bits(&self, mask: u32, bits: u32) {
        // Always made.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & !mask | bits & mask));
    }
}

impl Word64 {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Stores the value after the words that were set before (O2).
    pub(crate) fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl StateWord {
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, state: u32) {
        self.0.store(state, Ordering::Release);
    }
}
