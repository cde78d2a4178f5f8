//! Ranks of this crate's locks. Each is taken either before all locks of the engine or after all of them, and before
//! those of the transport (90).
//!
//! | Rank | Class | Edge that fixes it |
//! |---|---|---|
//! | 4 | `UMOUNT` | one unmount or sync of a mount at a time, across all its steps |
//! | 5 | `CONFIGURING` | one change of the tenant configuration at a time; cgroup files are read under it |
//! | 6 | `DIRECTORY` | the entries of an open directory, held while the backend is asked for more |
//! | 8 | `CALLER` | a waiting caller; a parked write copies its bytes to the cache under it |
//! | 10 | `WRITING` | a `write` beside mapped pages; bytes are copied to the cache under it, those of parked writes too |
//! | 76 | `TENANCY` | the table of tenants; a tenant is created in the engine under it |
//! | 77 | `RECORDING_ERRORS` | the errors in the record of a kept mount; the table of nodes is asked under it |
//! | 78 | `WORKER` | the queue of parked writes; the due time of the first held reply is read under it |
//! | 79 | `KEPT_NODES` | the nodes that the keeper has; the table of nodes is asked under it |
//! | 80 | `LEAF` | tables of nodes and handles, queues: nothing is taken under them except the next |
//! | 82 | `KERNEL_PAGES` | the record of one file's pages in the kernel; read under the table of nodes |
//! | 84 | `LAST` | caches of tenants, the state of the probe file: nothing is taken under them |

use slackwater_sync::lock::Rank;

pub(crate) const UMOUNT: Rank = Rank::new(4, "MOUNTED_UMOUNT");
pub(crate) const CONFIGURING: Rank = Rank::new(5, "CONFIGURING");
pub(crate) const DIRECTORY: Rank = Rank::new(6, "OPEN_DIRECTORY");
pub(crate) const CALLER: Rank = Rank::new(8, "CALLER");
pub(crate) const WRITING: Rank = Rank::new(10, "WRITING");
pub(crate) const TENANCY: Rank = Rank::new(76, "TENANCY");
pub(crate) const RECORDING_ERRORS: Rank = Rank::new(77, "RECORDING_ERRORS");
pub(crate) const WORKER: Rank = Rank::new(78, "WORKER");
pub(crate) const KEPT_NODES: Rank = Rank::new(79, "KEPT_NODES");
pub(crate) const LEAF: Rank = Rank::new(80, "volume leaf");
pub(crate) const KERNEL_PAGES: Rank = Rank::new(82, "KERNEL_PAGES");
pub(crate) const LAST: Rank = Rank::new(84, "tenants and probe");
