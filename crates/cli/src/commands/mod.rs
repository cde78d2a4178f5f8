//! The commands: one file or folder each, and what several of them need to talk to a mount process or a daemon.
//!
//! ```text
//! mount/, daemon/      the commands that serve volumes
//! requests             umount, sync, status
//! daemon_requests      mount --daemon, ls, tenants, set, events
//! top/, doctor/, man   the other commands
//! target               the mount that a word on the command line names
//! survey               the status of all mounts at one moment
//! ```

pub(crate) mod daemon;
pub(crate) mod daemon_requests;
pub(crate) mod doctor;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod requests;
pub(crate) mod survey;
pub(crate) mod target;
pub(crate) mod top;
