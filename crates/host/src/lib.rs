//! Facts about the host, and its names as text.
//!
//! * `mountinfo`: the mounts of a process. [`cgroup`]: which cgroup hierarchies are among them.
//! * `memory`: how much memory the machine and the cgroups of this process allow.
//! * `local_stat`: attributes of a file without a request to the server of its file system.
//! * `printable` and [`size`]: names and byte sizes as text for people.

pub mod cgroup;
mod local_stat;
mod memory;
mod mountinfo;
mod printable;
pub mod size;

pub use local_stat::{device_at, local_stat};
pub use memory::{Limit, MemoryLimits, Scope, memory_cgroups, memory_limits, smallest_limit};
pub use mountinfo::MountInfo;
pub use printable::{Escaped, Printable};
