//! A volume as a mount process and a daemon serve it, from its two directories to its unmount.
//!
//! ```text
//! endpoints              source and mount point
//! arena_file, rescued    the cache file, and the data of an earlier mount
//! damaged_arena          a cache file with damaged records
//! node_search            files of an earlier mount, on sources that cannot open by handle
//! mounting               the volume behind its FUSE mount
//! keeping                a volume that outlives its process
//! session/               one mounted volume: its state, its status, its unmount
//! tenants, shrinkers     parts of its status
//! unwritten_files        files that are not yet written back, by name
//! pressure/              memory pressure, and freeing memory
//! process                limits and settings of a process that serves volumes
//! ```

pub(crate) mod arena_file;
mod damaged_arena;
pub(crate) mod endpoints;
pub(crate) mod keeping;
pub(crate) mod mounting;
pub(crate) mod node_search;
pub(crate) mod pressure;
pub(crate) mod process;
pub(crate) mod rescued;
pub(crate) mod session;
mod shrinkers;
pub(crate) mod tenants;
mod unwritten_files;

pub(crate) use self::unwritten_files::UnwrittenFiles;
