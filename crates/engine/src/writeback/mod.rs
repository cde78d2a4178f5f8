//! Write-back: how dirty pages get to the backend, and how anybody knows.
//!
//! ```text
//!  mark_inode_dirty           step(now)                 unit of <= 1 MiB             Sync / SyncVolume
//!  write --> wb's lists --> [`flusher`] --> [`writepages`] --> backend --> unstable --> [`commit`] --> clean
//!              [`io_lists`]      ^   |                            |                        |
//!                                |   '--- [`gate`], slots of      '------ failed: dirty again, backed off
//!   [`work`]: sync, umount ------'        [`bdi`]                         error latched (errseq)
//! ```
//! [`dontcache`] has written back at once, and takes out what is durable.
//! [`wb`] ties lists, counters and state of one tenant together, [`cgwb`] gives inodes to them; [`sync`] waits for the right-hand end.

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
mod setattr_turn;
mod slots;
pub(crate) mod sync;
mod wb;
mod work;
pub(crate) mod writepages;

pub(crate) use backoff::Backoff;
pub(crate) use balance::WriterAccount;
pub(crate) use bdi::Attempt;
pub use bdi::BackingDevInfo;
pub(crate) use cancel::cancel_pages;
pub(crate) use cgwb::{CgroupWbs, Foreign, Round, SwitchQueue};
pub use cgwb::{DrainStats, UmountForm};
pub use dontcache::DontcacheForm;
pub(crate) use dontcache::{DroppedBehind, Start};
pub(crate) use gate::DeviceGate;
pub(crate) use io_lists::ListName;
pub(crate) use pool::FlusherPool;
pub(crate) use setattr_turn::SetattrTurn;
pub(crate) use slots::UnitClass;
pub(crate) use wb::{BdiWriteback, Pages, Settled};
pub use work::WbReason;
