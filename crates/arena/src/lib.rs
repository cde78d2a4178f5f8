//! Page frames and their tables in one mapped file.
//!
//! The cache keeps all page data in one file in memory: anonymous, or on tmpfs or hugetlbfs. The file has a fixed size
//! and each page frame is faulted in before its use, so it limits the size of the cache. For each frame it also records which page of which
//! inode the bytes are and whether the backend has them. So it survives a killed process: the next one opens it and
//! finds every write that had returned.
//!
//! # Reading order
//! * `layout`, `header`, `record`, `word`: the contents of the file, down to the single integer.
//! * `arena`: [`Arena`] and the life of a frame, where each step is safe against a kill.
//! * `inode_table`, `volume_table`: the records that frames name.
//! * `run_allocator`, `frame_pools`: allocation of frames, in runs, without a lock.
//! * `mapping`, `bundle`: bytes behind locks, one frame at a time or gathered for an I/O. `mapping` holds the unsafe
//!   code of the crate. Exceptions are `huge_pages`, which allocates memory, and one instruction each in `copy` and
//!   `prefetch`.
//! * `create`: a new file, and `filling`: the memory of an arena that is used before all of it is allocated.
//! * `open`, `validate`, `survivors`: from any bytes to a list of dirty pages and a list of damaged records, or to an
//!   error that names the field.
//! * `source`, `config`: the file and its size.

mod arena;
mod bundle;
mod checksum;
mod config;
mod copy;
mod create;
mod error;
mod filling;
mod frame_pools;
mod header;
mod huge_pages;
mod ids;
mod inode_table;
mod layout;
mod mapping;
mod open;
mod prefetch;
mod record;
mod run_allocator;
mod source;
mod survivors;
mod validate;
mod volume_table;
mod word;

pub use arena::Arena;
pub use bundle::{Gather, Scatter};
pub use config::ArenaConfig;
pub use copy::copy_bytes;
pub use error::{ArenaError, Mismatch};
pub use filling::Filler;
pub use frame_pools::Pool;
pub use ids::{FileHandleBytes, FrameId, InodeSlot, SHORT_BYTES_MAX, ShortBytes, VolumeId, VolumeSlot};
pub use inode_table::{InodeRecord, SourceStamp};
pub use layout::FRAME_BYTES;
pub use mapping::{FrameRead, FrameWrite};
pub use prefetch::prefetch_line;
pub use run_allocator::RUN_FRAMES;
pub use source::ArenaSource;
pub use survivors::{Damage, SetAsideFrame, SetAsidePage, SurvivingInode, SurvivingVolume, Survivors};
pub use volume_table::VolumeRecord;
