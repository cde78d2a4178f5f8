//! Writing and reading on a store in memory.

mod damage;
mod order;
pub(crate) mod rig;
mod round_trip;
