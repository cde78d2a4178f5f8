//! The mark of a file that a truncation has emptied: until it is closed, each close of a descriptor writes it back.

use slackwater_sync::shim::atomic::{AtomicU64, Ordering};

/// Whether a file was truncated to zero and not closed since, and which truncation that was.
///
/// Closes and truncations come at the same time. A close therefore names the truncation whose new bytes it has written back,
/// and a later one is kept. Bit 0 is the mark, the others count truncations.
#[derive(Debug, Default)]
pub(super) struct Emptied(AtomicU64);

const IS_EMPTIED: u64 = 1;

impl Emptied {
    /// Notes a truncation; returns whether the file was not marked before.
    pub(super) fn set(&self) -> bool {
        let next = |state: u64| Some((state | IS_EMPTIED).wrapping_add(IS_EMPTIED << 1));
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        before.is_ok_and(|state| state & IS_EMPTIED == 0)
    }

    /// The number of the last truncation, never 0, if the file is marked.
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|state| state & IS_EMPTIED != 0)
    }

    /// Ends the mark if `truncation` is the last one; returns whether it did.
    pub(super) fn clear(&self, truncation: u64) -> bool {
        truncation & IS_EMPTIED != 0
            && self
                .0
                .compare_exchange(truncation, truncation & !IS_EMPTIED, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_ends_the_mark_of_the_truncation_that_it_wrote_back() {
        let emptied = Emptied::default();
        assert_eq!((emptied.get(), emptied.clear(0)), (None, false));
        assert_eq!((emptied.set(), emptied.set()), (true, false));
        let first = emptied.get().unwrap();
        assert!(!emptied.set());
        assert!(!emptied.clear(first), "a later truncation is not written back");
        let second = emptied.get().unwrap();
        assert_eq!((emptied.clear(second), emptied.get(), emptied.clear(second)), (true, None, false));
        assert!(emptied.set());
        assert!(emptied.get().is_some_and(|third| third != second));
    }
}
