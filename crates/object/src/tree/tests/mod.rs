//! Tests of the tree on SlateDB in memory.

mod commits;
mod failures;
mod follow;
mod model;
mod requests;
pub(super) mod rig;
