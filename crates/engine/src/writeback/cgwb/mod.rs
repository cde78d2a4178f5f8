//! The wb of each tenant on a volume: created, contested, switched to, drained.
//!
//! ```text
//!  first dirtying             steady foreign majority             Engine::memcg_offline
//!  wb_get_create --> attached -----[foreign]---> switch <---[offline]--- killed, nothing dirty
//!   [lifecycle]                                 [switch]                      |
//!                                                             last reference put --> released
//! ```
//! Queued switches wait in [`pending`], from where an unmount takes back those of its volume. [`drain`] waits for the
//! others.
//!
//! # Kernel counterpart
//! `cgwb_create`, `inode_switch_wbs`, `cleanup_offline_cgwb`, `cgroup_writeback_umount`.

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
