//! Errors that happened while no caller was waiting, kept until every observer has got them.
//!
//! An [`ErrSeq`] is one word: the last error, and a counter that advances only if the previous error was seen. Each
//! observer keeps a cursor, which is a past value of the word. An error is new to the observer if word and cursor
//! differ. So every observer gets an error exactly once, and a million errors between two checks cost one step.
//!
//! ```text
//!  31  30                 13  12  11           0
//! +---+---------------------+----+--------------+
//! | 0 |       counter       |seen|  error code  |      0: never an error
//! +---+---------------------+----+--------------+
//! ```
//!
//! Word and cursors can be given to the engine of a later process as numbers ([`ErrSeq::restore`]).
//!
//! # Invariants
//! E1. The counter advances only if the previous error was seen, so it wraps only after 2^18 reported errors.
//! E2. A cursor taken while the last error is unseen is 0, so that error is still new to its owner. So a cursor is 0 or
//!     has the seen bit.
//!
//! # Memory ordering
//! The word carries no other data: an observer gets the error from the word itself. So `SeqCst` is not needed. The
//! compare-and-swap is `AcqRel`, so that the observer also sees what the failing thread did before.
//!
//! # Kernel counterpart
//! `errseq_t`, `lib/errseq.c`. Differs: the counter has one bit less, so that a cursor fits in 30 bits.

use slackwater_sync::shim::atomic::{AtomicU32, Ordering};

use crate::error::ErrorKind;

const CODE_MASK: u32 = 0xfff;
const SEEN: u32 = 1 << 12;
const COUNT_ONE: u32 = 1 << 13;
const WORD_MASK: u32 = u32::MAX >> 1;

/// The last error of an object, and how many were seen.
#[derive(Debug, Default)]
pub struct ErrSeq(AtomicU32);

/// A past value of an [`ErrSeq`]: its owner has got all errors up to it. The owner serialises access to it.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ErrCursor(u32);

impl ErrCursor {
    /// The cursor as a number below 2^30.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0 & CODE_MASK | self.0 >> 13 << 12
    }

    /// The cursor with this number.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        if bits == 0 { Self(0) } else { Self((bits & CODE_MASK | SEEN | bits >> 12 << 13) & WORD_MASK) }
    }
}

impl ErrSeq {
    /// A word without an error.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Records an error.
    pub fn set(&self, error: ErrorKind) {
        self.change(|old| with_error(old, error.code()));
    }

    fn change(&self, new: impl Fn(u32) -> u32) {
        let mut old = self.0.load(Ordering::Relaxed);
        while new(old) != old {
            match self.0.compare_exchange_weak(old, new(old), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// The word as a number. 0: there was no error.
    pub fn to_bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Continues after `bits`, the word of an earlier process. An error that was set before this call counts as set
    /// after those.
    pub fn restore(&self, bits: u32) {
        let bits = bits & WORD_MASK;
        self.change(|own| if own == 0 || bits == 0 { own | bits } else { with_error(bits, (own & CODE_MASK) as u16) });
    }

    /// A cursor for a new observer. Every later error is new to it, and so is the last one if no observer saw it yet.
    pub fn sample(&self) -> ErrCursor {
        let word = self.0.load(Ordering::Acquire);
        ErrCursor(if word & SEEN == 0 { 0 } else { word })
    }

    /// The error that is new to `since`, without marking it as seen.
    pub fn check(&self, since: ErrCursor) -> Option<ErrorKind> {
        let word = self.0.load(Ordering::Acquire);
        (word != since.0).then(|| kind_of(word))
    }

    /// The error that is new to `since`. It is marked as seen, and `since` advances past it.
    pub fn check_and_advance(&self, since: &mut ErrCursor) -> Option<ErrorKind> {
        let word = self.0.load(Ordering::Acquire);
        if word == since.0 {
            return None;
        }
        // One attempt is enough: if it fails, there is a newer error, which rightly stays unseen.
        let seen = word | SEEN;
        if seen != word {
            let _ = self.0.compare_exchange(word, seen, Ordering::AcqRel, Ordering::Relaxed);
        }
        since.0 = seen;
        Some(kind_of(word))
    }
}

/// The word after one more error.
fn with_error(word: u32, code: u16) -> u32 {
    let new = (word & !(CODE_MASK | SEEN)) | u32::from(code);
    if word & SEEN == 0 { new } else { new.wrapping_add(COUNT_ONE) & WORD_MASK }
}

fn kind_of(word: u32) -> ErrorKind {
    ErrorKind::from_code((word & CODE_MASK) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_observer_gets_an_error_exactly_once() {
        let word = ErrSeq::new();
        let (mut first, mut second) = (word.sample(), word.sample());
        word.set(ErrorKind::Io);
        for cursor in [&mut first, &mut second] {
            assert_eq!(word.check_and_advance(cursor), Some(ErrorKind::Io));
            assert_eq!(word.check_and_advance(cursor), None);
        }
        word.set(ErrorKind::Io);
        assert_eq!(word.check_and_advance(&mut first), Some(ErrorKind::Io), "the same error again is news");
    }

    #[test]
    fn a_new_observer_gets_an_earlier_error_only_if_it_is_unseen() {
        let word = ErrSeq::new();
        let mut early = word.sample();
        word.set(ErrorKind::NoSpace);
        let mut unseen = word.sample();
        assert_eq!(word.check_and_advance(&mut unseen), Some(ErrorKind::NoSpace));
        let mut late = word.sample();
        assert_eq!(word.check_and_advance(&mut late), None);
        assert_eq!(word.check_and_advance(&mut early), Some(ErrorKind::NoSpace));
    }

    #[test]
    fn unseen_errors_do_not_advance_the_counter() {
        let word = ErrSeq::new();
        for _ in 0..1000 {
            word.set(ErrorKind::Io);
        }
        assert_eq!(word.0.load(Ordering::Relaxed), u32::from(ErrorKind::Io.code()));
        word.set(ErrorKind::NoSpace);
        let mut cursor = ErrCursor::default();
        assert_eq!(word.check_and_advance(&mut cursor), Some(ErrorKind::NoSpace), "the last one wins");
    }

    #[test]
    fn the_next_process_reports_what_is_new_to_each_observer_and_nothing_else() {
        let word = ErrSeq::new();
        let (mut seer, mut other) = (word.sample(), word.sample());
        for round in 0..3 {
            word.set(ErrorKind::NoSpace);
            assert_eq!(word.check_and_advance(&mut seer), Some(ErrorKind::NoSpace), "round {round}");
        }
        let next = ErrSeq::new();
        next.restore(word.to_bits());
        let mut seen = ErrCursor::from_bits(seer.to_bits());
        let mut unseen = ErrCursor::from_bits(other.to_bits());
        assert_eq!((seen, unseen), (seer, other));
        assert_eq!(next.check_and_advance(&mut seen), None);
        assert_eq!(next.check_and_advance(&mut unseen), Some(ErrorKind::NoSpace));
        assert_eq!(word.check_and_advance(&mut other), Some(ErrorKind::NoSpace));
        assert_eq!(next.check(next.sample()), None);
    }

    #[test]
    fn an_error_before_the_restoration_is_new_to_all() {
        for seen in [false, true] {
            let word = ErrSeq::new();
            let mut cursor = word.sample();
            word.set(ErrorKind::Io);
            if seen {
                word.check_and_advance(&mut cursor);
            }
            let next = ErrSeq::new();
            next.set(ErrorKind::Io);
            next.restore(word.to_bits());
            assert_eq!(next.check(cursor), Some(ErrorKind::Io), "seen before: {seen}");
            assert_eq!(next.check(next.sample()), Some(ErrorKind::Io), "seen before: {seen}");
        }
    }

    #[test]
    fn every_cursor_is_a_number_of_thirty_bits() {
        let last = ErrSeq(AtomicU32::new(WORD_MASK));
        let cursor = last.sample();
        assert!(cursor.to_bits() < 1 << 30);
        assert_eq!((ErrCursor::from_bits(cursor.to_bits()), ErrCursor::from_bits(0)), (cursor, ErrCursor::default()));
        last.set(ErrorKind::Io);
        assert_eq!(last.to_bits(), u32::from(ErrorKind::Io.code()), "the counter wraps");
    }
}
