//! Storage backends: directories, and layers that delay, fail and slow other backends.
//!
//! A backend answers the calls of [`slackwater::backend`]. [`DirBackend`] keeps a volume in a directory of a mounted
//! file system. A layer wraps any backend and is a backend itself, so layers stack:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use slackwater::backend::{Backend, MemBackend};
//! use slackwater_backends::{Delay, Fault};
//!
//! let disk: Arc<dyn Backend> = Arc::new(MemBackend::new());
//! let slow = Arc::new(Delay::new(disk).each(Duration::from_millis(5)));
//! let (slow_and_failing, control) = Fault::new(slow);
//! # let _ = (slow_and_failing, control);
//! ```
//!
//! The backend in memory is part of the engine: [`slackwater::backend::MemBackend`]. [`SystemClock`] is the only place
//! that reads the machine's clock. With the feature `conformance`, the module `conformance` is a test suite for
//! backends.

mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod dir;
mod layers;
mod random;
mod workers;

pub use clock::SystemClock;
pub use dir::{DirBackend, DirStats, OpenError};
pub use layers::{Delay, Fault, FaultControl, FaultCounts, Held, Rate, Rule, RuleId};
pub use random::Random;
pub use workers::{Lane, Workers};

use slackwater_sync::lock::Rank;

/// The rank of all locks of this crate, which are leaves: no call is passed on or answered while one is held.
const BACKEND: Rank = Rank::new(80, "BACKEND");
