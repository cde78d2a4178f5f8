//! A mark in memory that is freed by hand. Loom checks it; in other builds it is empty.

/// See the module documentation.
pub(crate) struct Watched;

impl Watched {
    /// Memory that is in use.
    pub(crate) const fn new() -> Self {
        Self
    }

    /// The memory is read.
    #[inline(always)]
    pub(crate) fn access(&self) {}

    /// The memory is about to be freed.
    #[inline(always)]
    pub(crate) fn free(&self) {}
}
