//! What a cache offers that can give memory back.
//!
//! # Kernel counterpart
//! `struct shrinker` and `struct shrink_control`; sem. 10.1. `SHRINK_EMPTY`, 0 and `SHRINK_STOP` are variants here.

/// Cost of having an object again, where a read of the backend makes one.
pub const DEFAULT_SEEKS: u32 = 2;

/// A cache that can give objects back. Its methods are called by whoever walks the shrinkers, by several at once.
///
/// From inside them nothing is registered or unregistered, no volume is mounted or unmounted, and no walk is begun: that is
/// refused. The engine holds no lock while it calls them.
pub trait Shrinker: Send + Sync {
    /// What it is called, for people. Asked by who looks at the state of all.
    fn name(&self) -> String;

    /// How many objects it could give back. Says so even if a scan would have to refuse: what is refused adds up for later.
    ///
    /// # Blocking
    /// Never: also whoever only looks asks for it.
    fn count(&self, control: &ShrinkControl) -> Count;

    /// Looks at up to `control.nr_to_scan` objects, those unused longest first, and gives back what nobody uses.
    ///
    /// # Blocking
    /// It may sleep, but who unregisters it waits for it meanwhile.
    fn scan(&self, control: &mut ShrinkControl) -> Scanned;

    /// What it costs to have an object again; the higher, the fewer are scanned. 0: next to nothing.
    fn seeks(&self) -> u32 {
        DEFAULT_SEEKS
    }

    /// Objects to be scanned at a time. 0: 128.
    fn batch(&self) -> u64 {
        0
    }
}

/// What is asked of a shrinker.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct ShrinkControl {
    /// Objects to look at; 0 in a count.
    pub nr_to_scan: u64,
    /// Objects that were looked at: the same, unless the scan lowers it.
    pub nr_scanned: u64,
}

/// What can be given back.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Count {
    /// Nothing.
    Empty,
    /// It cannot say now.
    Unknown,
    /// So many objects.
    Objects(u64),
}

/// How a scan went.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Scanned {
    /// So many objects were given back.
    Freed(u64),
    /// It cannot go on now.
    Stop,
}
