//! Backends around backends: each changes one thing about the calls that pass through it.

mod delay;
mod fault;
mod rate;
mod rule;
mod timer;

pub use self::delay::Delay;
pub use self::fault::{Fault, FaultControl, FaultCounts, Held};
pub use self::rate::Rate;
pub use self::rule::{Rule, RuleId};
