//! Cgroups of both versions: the mounted hierarchies, and the cgroups of a thread.

mod layout;
mod membership;

pub use layout::{Hierarchy, Kind, Layout};
pub use membership::Membership;
