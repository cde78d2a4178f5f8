//! Write-back: how dirty pages reach the backend, and how callers learn the outcome.
//!
//! ```text
//!  mark_inode_dirty           step(now)                 unit of <= 1 MiB             Sync / SyncVolume
//!  write --> wb's lists --> [`flusher`] --> [`writepages`] --> backend --> unstable --> [`commit`] --> clean
//!              [`io_lists`]      ^   |                            |                        |
//!                                |   '--- [`gate`], slots of      '------ failed: dirty again, backed off
//!   [`work`]: sync, umount ------'        [`bdi`]                         error latched (errseq)
//! ```
//! [`dontcache`] requests write-back at once and evicts pages as soon as they are durable. [`wb`] holds the lists,
//! counters and state of one tenant, and [`cgwb`] assigns inodes to wbs. [`sync`] waits for the right-hand end.
//! `balance` pauses writers at the left-hand end. `pool` runs the flushers, `write_inode` sends metadata after the data,
//! and `cancel` drops pages that will not be written.

mod ages;
mod backoff;
mod balance;
mod bdi;
mod cancel;
mod cgwb;
pub(crate) mod check;
pub(crate) mod commit;
mod dontcache;
mod flusher;
mod gate;
mod io_lists;
mod pool;
mod refusal;
mod setattr_turn;
mod slots;
pub(crate) mod sync;
mod wb;
mod work;
pub(crate) mod write_inode;
pub(crate) mod writepages;

pub(crate) use backoff::Backoff;
pub(crate) use balance::WriterAccount;
pub(crate) use bdi::Attempt;
pub use bdi::BackingDevInfo;
pub(crate) use cancel::cancel_pages;
pub(crate) use cgwb::{CgroupWbs, Foreign, Round, SwitchQueue};
pub use cgwb::{DrainStats, UmountForm};
pub use dontcache::DontcacheForm;
pub(crate) use dontcache::{DroppedBehind, StartWriteback};
pub(crate) use gate::DeviceGates;
pub(crate) use io_lists::ListName;
pub(crate) use pool::FlusherPool;
pub(crate) use setattr_turn::SetattrTurn;
pub(crate) use slots::UnitClass;
pub(crate) use wb::{BdiWriteback, Pages, Settled};
pub use work::WbReason;
