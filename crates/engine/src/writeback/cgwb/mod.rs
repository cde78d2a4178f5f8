//! A wb for each tenant of a volume: made, contested, moved to, drained.
//!
//! ```text
//!  first dirtying             steady foreign majority             Engine::memcg_offline
//!  wb_get_create --> attached -----[foreign]---> switch <---[offline]--- killed, nothing dirty
//!   [lifecycle]                                 [switch]                      |
//!                                                             last reference put --> released
//! ```
//! [`pending`] is where switches wait, and from where an unmount takes those of its volume back; [`drain`] is how it waits
//! for the others.
//!
//! # Kernel counterpart
//! `cgwb_create`, `inode_switch_wbs`, `cleanup_offline_cgwb`, `cgroup_writeback_umount`; sem. 1.7, 1.8, 5, 6.3.

mod drain;
mod foreign;
mod lifecycle;
mod offline;
mod pending;
mod switch;

pub use drain::{DrainStats, UmountForm};
pub(crate) use foreign::{Foreign, Round};
pub(crate) use lifecycle::CgroupWbs;
pub(crate) use pending::Switches;
pub(crate) use switch::SwitchQueue;
