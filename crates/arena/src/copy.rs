//! Copying bytes to and from frames.
//!
//! A whole page is copied by the processor's string instruction where there is one. The C library's `memcpy` copies
//! page-aligned pages of this size backwards, against the prefetcher, and writes the last line first. On memory that is
//! in no processor cache, it was measured to be a fifth slower. For parts of pages it is equally fast.

#![allow(unsafe_code, reason = "the instruction has no safe form; slices give its addresses and lengths")]

/// From this length on, the start-up cost of the instruction pays off.
#[cfg(target_arch = "x86_64")]
const STRING_BYTES_MIN: usize = 2048;

/// Copies `from` to `to`, which must have the same length: as `copy_from_slice`, but faster for whole pages.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy_bytes(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if from.len() >= STRING_BYTES_MIN {
        assert!(to.len() == from.len(), "{} bytes to copy into {}", from.len(), to.len());
        copy_by_string(to, from);
        return;
    }
    to.copy_from_slice(from);
}

/// The slices have the same length.
#[cfg(target_arch = "x86_64")]
#[inline]
fn copy_by_string(to: &mut [u8], from: &[u8]) {
    // SAFETY: it reads `from.len()` bytes of one slice and writes as many to the other, which has the same length; they
    // do not overlap, since one is borrowed exclusively. The direction flag is clear, as the calling convention
    // requires.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") from.len() => _,
            inout("rdi") to.as_mut_ptr() => _,
            inout("rsi") from.as_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::copy_bytes;

    #[test]
    fn a_copy_of_any_length_and_alignment_changes_no_other_byte() {
        let from: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, 63, 2047, 2048, 2049, 4095, 4096, 4097] {
            for (skip_to, skip_from) in [(0, 0), (1, 0), (0, 3), (7, 5)] {
                let mut to = vec![0xee_u8; 5000];
                copy_bytes(&mut to[skip_to..skip_to + len], &from[skip_from..skip_from + len]);
                assert!(to[skip_to..skip_to + len] == from[skip_from..skip_from + len], "{len} bytes");
                assert!(to[..skip_to].iter().chain(&to[skip_to + len..]).all(|byte| *byte == 0xee));
            }
        }
    }

    #[test]
    #[should_panic(expected = "4096 bytes to copy into 4095")]
    fn different_lengths_panic() {
        copy_bytes(&mut [0; 4095], &[0; 4096]);
    }
}
