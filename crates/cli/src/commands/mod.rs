//! The commands: one file or folder each, and what several of them need to talk to a mount process or a daemon.
//!
//! ```text
//! mount/, daemon/                     serve volumes
//! umount, sync, status                ask a mount process, or a daemon about a volume
//! ls, tenants, set, events            ask a daemon
//! top/, doctor/, man, completions     the others
//!
//! target          the mount that a word on the command line names
//! long_requests   requests whose answers take their time
//! survey          the status of all mounts at one moment
//! ```

pub(crate) mod completions;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod events;
mod long_requests;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod set;
pub(crate) mod status;
mod survey;
pub(crate) mod sync;
mod target;
pub(crate) mod tenants;
pub(crate) mod top;
pub(crate) mod umount;
