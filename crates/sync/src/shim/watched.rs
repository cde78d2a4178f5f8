//! A mark in memory that is freed by hand, which loom watches; elsewhere there is nothing to it.

/// See the module's head.
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
