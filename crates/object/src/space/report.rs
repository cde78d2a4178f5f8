//! The options and the result of a collection.

use std::time::Duration;

/// How to collect the objects that nothing uses.
#[derive(Copy, Clone, Debug)]
pub struct GcOptions {
    /// Delete nothing.
    pub dry_run: bool,
    /// Keep objects that have been unused for a shorter time: readers may still use them.
    pub grace: Duration,
}

/// The result of a collection.
#[derive(Copy, Clone, Debug, Default)]
pub struct GcReport {
    /// Objects looked at.
    pub objects: u64,
    /// Objects that were deleted, or would be.
    pub deleted_objects: u64,
    /// The bytes of the deleted objects.
    pub deleted_bytes: u64,
    /// Objects that nothing uses, and that are within the grace period.
    pub young_objects: u64,
}
