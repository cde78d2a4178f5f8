//! The engine of Slackwater: a page cache with write-back, as a library.
//!
//! The engine puts a write-back cache in front of anything that implements [`backend::Backend`], with the mechanisms of
//! Linux: pages in an arena of fixed size, dirty lists ordered by age, and flushers that never wait. Every open file
//! gets each write-back error once. An unmount ends with all data in the backend, or changes nothing.
//!
//! # A tour, in reading order
//! 1. [`Engine`] owns the arena, the clock and the flusher threads, and mounts volumes.
//! 2. [`SuperBlock`] is a mounted volume: names, sync, status, unmount.
//! 3. [`Inode`] is the cached state of a file, and [`File`] an open file description.
//! 4. `filemap` reads, writes, truncates and syncs files. [`File::write_at`] and [`File::read_at`] are the simple
//!    forms.
//! 5. `page_cache` is the radix tree of 4 KiB frames with its marks; `leaf.rs` defines the states of a page.
//! 6. `writeback` takes a page from dirty to durable: lists, flusher, units, commit, sync. `cgroup` and
//!    `writeback::cgwb` attribute data to tenants, and give each [`Memcg`] a wb.
//! 7. `reclaim` frees frames of clean pages.
//! 8. [`shrink`] frees memory of other caches.
//! 9. `umount` shuts a volume down in numbered steps. `namespace` finds volumes by path.
//! 10. [`backend`] is the storage interface, with [`backend::MemBackend`] as the reference.
//!
//! `docs/SEMANTICS.md` lists the promises; each names its test. A module may use only those that
//! `xtask/src/tidy/arrows.rs` lists above it. One group is exempt: `page_cache`, `inode`, `super_block`, `engine`,
//! `cgroup`, `reclaim` and `writeback` refer to one another, as their counterparts in the kernel do.
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
pub use engine::{Engine, EngineStatus, register_barriers};
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
