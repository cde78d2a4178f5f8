//! How a write is made, beside where and for whom.

/// A set of wishes for one write. Kernel: `rwf_t`.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct WriteFlags(u8);

impl WriteFlags {
    /// An ordinary write.
    pub const NONE: Self = Self(0);
    /// The cache is a station on the way only: pages that the write brings here are written back soon, and leave once they
    /// are durable. Pages that are here already stay, and so does a page that an ordinary write writes to before it has
    /// left; reads change nothing. Kernel: `RWF_DONTCACHE`.
    pub const DONTCACHE: Self = Self(1);

    /// Whether all of `flags` are in it.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}
