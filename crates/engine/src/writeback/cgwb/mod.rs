//! A wb for each tenant of a volume: made, contested, moved to, drained.
//!
//! ```text
//!  first dirtying             steady foreign majority             Engine::memcg_offline
//!  wb_get_create --> attached -----[foreign]---> switch <---[offline]--- killed, nothing dirty
//!   [lifecycle]                                 [switch]                      |
//!                                                             last reference put --> released
//! ```
//! [`drain`] is how an unmount waits for the switches of its volume.
//!
//! # Kernel counterpart
//! `cgwb_create`, `inode_switch_wbs`, `cleanup_offline_cgwb`, `cgroup_writeback_umount`; sem. 1.7, 1.8, 5, 6.3.

mod drain;
mod foreign;
mod lifecycle;
mod offline;
mod switch;

pub use drain::{DrainStats, UmountForm};
pub(crate) use foreign::{Foreign, Round};
pub(crate) use lifecycle::CgroupWbs;
pub(crate) use switch::{SwitchQueue, Switches};
