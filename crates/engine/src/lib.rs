//! A page cache with writeback, as a library: the engine of Slackwater.
//!
//! It puts a write-back cache in front of anything that implements [`backend::Backend`], with the mechanism
//! of Linux: pages in a fixed arena, dirty lists ordered by age, flushers that never wait, errors that every
//! open file hears of once, and an unmount that ends with everything in the backend or changes nothing.
//!
//! # A tour, in reading order
//! 1. [`Engine`] owns the arena, the clock and the flusher threads, and mounts volumes.
//! 2. [`SuperBlock`] is a mounted volume: names, sync, status, unmount.
//! 3. [`Inode`] and [`File`]: what is cached of a file, and an open description of it.
//! 4. `filemap`: what read, write, truncate and fsync do. [`File::write_at`] and [`File::read_at`] are the simple forms.
//! 5. `page_cache`: the radix tree of 4 KiB frames with its marks; `leaf.rs` has the states of a page.
//! 6. `writeback`: from the dirty mark to durable: lists, flusher, units, commit, sync. `cgroup` and `writeback::cgwb`:
//!    whose data it is, and a wb for each [`Memcg`].
//! 7. `reclaim`: where frames come from when none is free.
//! 8. [`shrink`]: caches of objects that can be had again, and who asks them to give some back.
//! 9. `umount`: the numbered steps. `namespace`: volumes by path.
//! 10. [`backend`]: the storage port, and [`backend::MemBackend`] as its reference.
//!
//! `docs/SEMANTICS.md` states what is promised; each promise names its test.
//!
//! ```
//! use std::sync::Arc;
//! use slackwater::backend::{MemBackend, NewNode};
//! use slackwater::{Engine, File, ManualClock, Timestamp, Tunables, UmountOptions};
//! use slackwater_arena::{Arena, ArenaConfig};
//!
//! let arena = Arena::create(&ArenaConfig::memfd(16 << 20))?;
//! let clock = Arc::new(ManualClock::new(Timestamp(0)));
//! let engine = Engine::new(arena, clock, Tunables::default());
//! let volume = engine.mount("scratch", Arc::new(MemBackend::new()))?;
//!
//! let file = File::open(&volume.make(&volume.root()?, "hello", NewNode::File, 0o644)?)?;
//! file.write_at(0, b"slack water")?;
//! file.fsync()?;
//! drop(file);
//! volume.umount(UmountOptions::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test"))]

pub mod backend;
mod cgroup;
mod clock;
mod engine;
mod error;
mod errseq;
mod file;
mod filemap;
mod inode;
mod lock_order;
mod names;
mod namespace;
mod page_cache;
mod reclaim;
mod recovery;
pub mod shrink;
mod super_block;
mod throttle;
mod tunables;
mod umount;
mod units;
mod wait;
mod writeback;

pub use cgroup::{Memcg, MemcgId, MemcgState};
pub use clock::{Clock, ManualClock};
#[doc(hidden)]
pub use engine::Forms;
pub use engine::{Engine, EngineStatus};
pub use error::{BackendError, ErrorKind, FileError, InsideScan, MountError, NamespaceError, UmountError};
pub use errseq::{ErrCursor, ErrSeq};
pub use file::File;
pub use filemap::{LandingFrames, ReadFlags, ReadRequest, WaitFor, WriteFlags, WriteRequest, Written};
pub use inode::{Inode, InodeRef};
pub use names::NamedInode;
pub use namespace::{MountRef, Namespace, PathFile, UmountGrace};
pub use super_block::{Rescued, RescuedFrom, SuperBlock, TenantStatus, VolumeStatus};
pub use throttle::Pause;
pub use tunables::Tunables;
pub use umount::{UmountOptions, UncleanFile};
pub use units::{NodeId, PAGE_BYTES, PageIndex, Tick, Timestamp};
pub use writeback::{BackingDevInfo, DontcacheForm, DrainStats, UmountForm, WbReason};
