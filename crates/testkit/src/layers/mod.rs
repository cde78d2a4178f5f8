//! Layers: backends that wrap a backend and change one thing about the calls that pass through.

mod delay;
mod fault;
mod rate;
mod rule;
mod timer;

pub use self::delay::Delay;
pub use self::fault::{Fault, FaultControl, FaultCounts, Held};
pub use self::rate::Rate;
pub use self::rule::{Rule, RuleId};
