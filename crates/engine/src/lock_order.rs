//! The table of lock ranks. Locks are taken in ascending rank, and test builds check that on every lock.
//!
//! | Rank | Class | Edge that fixes it |
//! |---|---|---|
//! | 15 | `SHRINKER_RWSEM` | in one form of the shrinkers: walks hold it across scans, unmount takes it to unregister |
//! | 20 | `NAMESPACE_SEM` | one change of the namespace at a time |
//! | 22 | `MOUNT_LOCK` | changes that a lookup must not miss; references to mounts are counted under it |
//! | 30 | `I_RWSEM` | write and truncate hold it across everything below |
//! | 35 | `WB_PASS` | the one thread that runs a wb, across submissions |
//! | 40 | `INODE_HASH` | inode lookup takes references under it |
//! | 42 | `FOLIO` | a frame's own lock; only try-locked while a lock from 45 up is held |
//! | 43 | `F_LOCK` | the errors reported through an open file |
//! | 44 | `RELEASING` | releasing the node and the record of an inode that became clean |
//! | 45 | `CGWB_TREE` | a bdi's wbs by tenant: one is made and added under it |
//! | 46 | `CGROUP` | a tenant's list of wbs; a new one is refused or added under it |
//! | 48 | `WAIT_TABLE` | a waiter checks its condition, with what is below, under its bucket |
//! | 50 | `LIST_LOCK` | a wb's lists; inodes are marked and moved under it, between two wbs with both held |
//! | 60 | `I_LOCK` | an inode's state; to go from inode to list: drop it, take the list lock, check again |
//! | 70 | `I_PAGES` | the shape of a page tree |
//! | 72 | `LEAF` | 64 pages and their marks |
//! | 80 | leaves | work queues, slots, gates, commit lists: nothing is taken under them |
//!
//! `FOLIO` is a word lock without rank checking, because another thread may release it. Ranks below 45 may be held
//! across a wait. From 45 up, a thread neither sleeps nor calls a backend.

use slackwater_sync::lock::Rank;

pub(crate) const SHRINKER_RWSEM: Rank = Rank::new(15, "SHRINKER_RWSEM");
pub(crate) const NAMESPACE_SEM: Rank = Rank::new(20, "NAMESPACE_SEM");
pub(crate) const MOUNT_LOCK: Rank = Rank::new(22, "MOUNT_LOCK");
pub(crate) const I_RWSEM: Rank = Rank::new(30, "I_RWSEM");
pub(crate) const WB_PASS: Rank = Rank::new(35, "WB_PASS");
pub(crate) const INODE_HASH: Rank = Rank::new(40, "INODE_HASH");
pub(crate) const RELEASING: Rank = Rank::new(44, "RELEASING");
pub(crate) const F_LOCK: Rank = Rank::new(43, "F_LOCK");
pub(crate) const CGWB_TREE: Rank = Rank::new(45, "CGWB_TREE");
pub(crate) const CGROUP: Rank = Rank::new(46, "CGROUP");
pub(crate) const LIST_LOCK: Rank = Rank::new(50, "LIST_LOCK");
pub(crate) const I_LOCK: Rank = Rank::new(60, "I_LOCK");
pub(crate) const I_PAGES: Rank = Rank::new(70, "I_PAGES");
pub(crate) const LEAF: Rank = Rank::new(72, "LEAF");
pub(crate) const WAIT_TABLE: Rank = Rank::new(48, "WAIT_TABLE");
pub(crate) const LEAVES: Rank = Rank::new(80, "leaf lock");
