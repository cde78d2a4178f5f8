//! Types for the numbers that cross function boundaries.
//!
//! A page index is not an offset, and a tick is not a duration: mixing them does not compile.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use slackwater_arena::FRAME_BYTES;

/// Bytes in one page, the unit of the cache: 4 KiB.
pub const PAGE_BYTES: u64 = FRAME_BYTES as u64;

/// Position of a page in its file: byte offset divided by [`PAGE_BYTES`].
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Default)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds the byte at `offset_bytes`.
    pub const fn of(offset_bytes: u64) -> Self {
        Self(offset_bytes / PAGE_BYTES)
    }

    /// The first page that lies wholly at or beyond `size_bytes`: the page count of a file of that size.
    pub const fn end_of(size_bytes: u64) -> Self {
        Self(size_bytes.div_ceil(PAGE_BYTES))
    }

    /// Byte offset of the page's first byte.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * PAGE_BYTES
    }

    /// The page `pages` after this one.
    #[must_use]
    pub const fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }
}

/// A point on the engine's monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Default)]
pub struct Tick(pub u64);

impl Tick {
    /// Later than any time.
    pub const MAX: Tick = Tick(u64::MAX);

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;
    fn add(self, by: Duration) -> Tick {
        Tick(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Tick {
    type Output = Tick;
    fn sub(self, by: Duration) -> Tick {
        Tick(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time in nanoseconds since the Unix epoch, as in a file's mtime.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Default)]
pub struct Timestamp(pub i64);

const NS_PER_S: i64 = 1_000_000_000;

impl Timestamp {
    /// From seconds since the epoch and nanoseconds. Saturates outside the years 1677 to 2262, which 64 bits of
    /// nanoseconds cannot express.
    pub fn from_parts(sec: i64, nsec: u32) -> Self {
        let ns = i128::from(sec) * i128::from(NS_PER_S) + i128::from(nsec);
        Self(ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Seconds since the epoch, rounded down, and nanoseconds after them.
    pub const fn to_parts(self) -> (i64, u32) {
        (self.0.div_euclid(NS_PER_S), self.0.rem_euclid(NS_PER_S) as u32)
    }
}

/// Identity of a file in its backend. Two nodes with equal ids are the same file. If the number of a deleted file is
/// reused, the new file has another `generation`.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct NodeId {
    /// Device or volume number (`st_dev`).
    pub dev: u64,
    /// File number on the device (`st_ino`).
    pub ino: u64,
    /// Distinguishes successive files with the same number; 0 if the backend cannot.
    pub generation: u64,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}.{}", self.dev, self.ino, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_where_the_next_begins() {
        assert_eq!(PageIndex::of(4095), PageIndex(0));
        assert_eq!(PageIndex::of(4096), PageIndex(1));
        assert_eq!(PageIndex::end_of(0), PageIndex(0));
        assert_eq!(PageIndex::end_of(1), PageIndex(1));
        assert_eq!(PageIndex::end_of(4097), PageIndex(2));
        assert_eq!(PageIndex::end_of(u64::MAX).0, 1 << 52);
    }

    #[test]
    fn times_before_1970_keep_positive_nanoseconds() {
        assert_eq!(Timestamp(-1).to_parts(), (-1, 999_999_999));
        for ns in [-1, 0, 1, -NS_PER_S, i64::MAX, i64::MIN] {
            let (sec, nsec) = Timestamp(ns).to_parts();
            assert!(i64::from(nsec) < NS_PER_S);
            assert_eq!(Timestamp::from_parts(sec, nsec), Timestamp(ns));
        }
        assert_eq!(Timestamp::from_parts(i64::MAX, 0), Timestamp(i64::MAX));
        assert_eq!(Timestamp::from_parts(i64::MIN, 0), Timestamp(i64::MIN));
    }

    #[test]
    fn ticks_saturate_at_both_ends() {
        assert_eq!(Tick(5).since(Tick(9)), Duration::ZERO);
        assert_eq!(Tick(u64::MAX) + Duration::MAX, Tick(u64::MAX));
        assert_eq!(Tick(3) - Duration::from_secs(1), Tick(0));
    }
}
