//! Storage backends for the engine: directories, and what other backends need.
//!
//! A backend answers the calls of [`slackwater::backend`]. [`DirBackend`] keeps a volume in a directory of a mounted
//! file system. [`Workers`] are threads for backends whose calls block. [`SystemClock`] is the only place that reads the
//! machine's clock.
//!
//! The backend in memory is part of the engine: [`slackwater::backend::MemBackend`]. The test suite for backends, and
//! layers that delay, fail and slow calls, are in the crate `slackwater-testkit`.

mod clock;
mod dir;
mod workers;

pub use clock::SystemClock;
pub use dir::{DirBackend, DirStats, OpenError};
pub use workers::{Lane, Workers};

use slackwater_sync::lock::Rank;

/// The rank of all locks of this crate, which are leaves: no call is passed on or answered while one is held.
const BACKEND: Rank = Rank::new(80, "BACKEND");
