//! How a read is made, beside where.

/// A set of wishes for one read. Kernel: `rwf_t`.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ReadFlags(u8);

impl ReadFlags {
    /// An ordinary read.
    pub const NONE: Self = Self(0);
    /// The cache is a station on the way only: pages that the read brings here, and those that it has read ahead, leave once
    /// such a read has had them. Pages that are here already stay. Kernel: `RWF_DONTCACHE`.
    pub const DONTCACHE: Self = Self(1);

    /// Whether all of `flags` are in it.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}
