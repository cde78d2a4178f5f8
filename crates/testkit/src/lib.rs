//! Test equipment for storage backends: a conformance suite, layers that delay, fail and slow calls, and random numbers.
//!
//! The author of a backend has this crate as a dev-dependency. The [`conformance`] suite checks the backend against the
//! contract in [`slackwater::backend`], with a `#[test]` for each rule:
//!
//! ```
//! use slackwater::backend::MemBackend;
//! use slackwater_testkit::conformance_tests;
//!
//! conformance_tests!(memory, |rule| rule.check(MemBackend::new()));
//! # fn main() {}
//! ```
//!
//! A layer wraps any backend and is a backend itself, so layers stack. They show what an engine, or a program on it, does
//! when storage is slow or fails:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use slackwater::ErrorKind;
//! use slackwater::backend::{Backend, MemBackend};
//! use slackwater_testkit::{Delay, Fault, Rule};
//!
//! let disk: Arc<dyn Backend> = Arc::new(MemBackend::new());
//! let slow = Arc::new(Delay::new(disk).each(Duration::from_millis(5)));
//! let (slow_and_failing, control) = Fault::new(slow);
//! control.add(Rule::fail(ErrorKind::NoSpace).on("write").nth(3));
//! # let _ = slow_and_failing;
//! ```
//!
//! The backend in memory is part of the engine: [`slackwater::backend::MemBackend`].
//!
//! [`damage`] has damaged text, for tests of parsers.

pub mod conformance;
pub mod damage;
mod layers;
mod random;

pub use layers::{Delay, Fault, FaultControl, FaultCounts, Held, Rate, Rule, RuleId};
pub use random::{Random, pattern};

use slackwater_sync::lock::Rank;

/// The rank of the locks of layers, which are leaves: no call is passed on or answered while one is held.
const LAYER: Rank = Rank::new(80, "LAYER");
