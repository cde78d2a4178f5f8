//! The interface of a cache that can free memory.
//!
//! # Kernel counterpart
//! `struct shrinker` and `struct shrink_control`. `SHRINK_EMPTY`, 0 and `SHRINK_STOP` are variants here.

/// Cost of recreating an object for which the backend must be read.
pub const DEFAULT_SEEKS: u32 = 2;

/// A cache that can free objects. Its methods are called by every thread that walks the shrinkers, possibly by several
/// at once.
///
/// From inside them, registering, unregistering, mounting, unmounting and starting another walk are refused. The engine
/// holds no lock while it calls them.
pub trait Shrinker: Send + Sync {
    /// The shrinker's name, for people. Called to list the state of all shrinkers.
    fn name(&self) -> String;

    /// The number of objects it could free. It must count them even if a scan would be refused at the moment: refused
    /// work accumulates for later.
    ///
    /// # Blocking
    /// Never. It is also called just to display the state.
    fn count(&self, control: &ShrinkControl) -> Count;

    /// Examines up to `control.nr_to_scan` objects, least recently used first, and frees those that are unused.
    ///
    /// # Blocking
    /// It may sleep, but unregistering waits for it.
    fn scan(&self, control: &mut ShrinkControl) -> Scanned;

    /// The cost of recreating an object; the higher it is, the fewer are scanned. 0: almost free.
    fn seeks(&self) -> u32 {
        DEFAULT_SEEKS
    }

    /// Objects scanned per call. 0: 128.
    fn batch(&self) -> u64 {
        0
    }
}

/// The request to a shrinker.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ShrinkControl {
    /// Objects to examine; 0 in a count.
    pub nr_to_scan: u64,
    /// Objects examined. Equals `nr_to_scan` unless the scan lowers it.
    pub nr_scanned: u64,
}

/// The number of objects that can be freed.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Count {
    /// Nothing.
    Empty,
    /// A number that the shrinker cannot tell at the moment.
    Unknown,
    /// This many objects.
    Objects(u64),
}

/// The result of a scan.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Scanned {
    /// This many objects were freed.
    Freed(u64),
    /// The scan cannot continue now.
    Stop,
}
