//! Ranks of the locks in front of the engine. They are taken before any lock of the engine, or after all.
//!
//! | Rank | Class | Edge that fixes it |
//! |---|---|---|
//! | 4 | `UMOUNT` | one unmount or sync of a mount at a time, across all its steps |
//! | 5 | `CONFIGURING` | one change of what is configured for tenants at a time; files of cgroups are read under it |
//! | 6 | `DIRECTORY` | an open directory's entries, held while the backend is asked for more |
//! | 8 | `CALLER` | a caller that waits; a parked write takes its bytes under it |
//! | 10 | `WRITING` | a `write` beside pages of mappings; bytes are taken under it, of parked writes too |
//! | 76 | `TENANCY` | who pays; a tenant is made in the engine under it |
//! | 78 | `WORKER` | the queue of parked writes; when the first held reply is due is looked at under it |
//! | 80 | `LEAF` | tables of nodes and handles, queues: nothing is taken under them, but for the next |
//! | 82 | `KERNEL_PAGES` | what was written around the kernel's cache of a file; asked for under the table of nodes |

use slackwater_sync::lock::Rank;

pub(crate) const UMOUNT: Rank = Rank::new(4, "MOUNTED_UMOUNT");
pub(crate) const CONFIGURING: Rank = Rank::new(5, "CONFIGURING");
pub(crate) const DIRECTORY: Rank = Rank::new(6, "OPEN_DIRECTORY");
pub(crate) const CALLER: Rank = Rank::new(8, "CALLER");
pub(crate) const WRITING: Rank = Rank::new(10, "WRITING");
pub(crate) const TENANCY: Rank = Rank::new(76, "TENANCY");
pub(crate) const WORKER: Rank = Rank::new(78, "WORKER");
pub(crate) const LEAF: Rank = Rank::new(80, "volume leaf");
pub(crate) const KERNEL_PAGES: Rank = Rank::new(82, "KERNEL_PAGES");
