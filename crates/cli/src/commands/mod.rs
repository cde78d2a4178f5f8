//! The commands, in one file or folder each, and what several of them share for talking to mount processes and daemons.
//!
//! ```text
//! mount/, daemon/                     serve volumes
//! umount, sync, status                talk to a mount process, or to a daemon about a volume
//! umount_helper                       umount.slackwater, which umount(8) calls
//! restart, upgrade                    replace the process of a mount with --keep
//! ls, tenants, set, events            talk to a daemon
//! top/, doctor/, man, completions     other commands
//!
//! target          the mount that a word on the command line names
//! long_requests   requests that take a while to answer
//! mount_helpers   the lines that mount(8) and umount(8) pass to their helpers
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
mod mount_helpers;
pub(crate) mod restart;
pub(crate) mod set;
pub(crate) mod status;
mod survey;
pub(crate) mod sync;
pub(crate) mod target;
pub(crate) mod tenants;
pub(crate) mod top;
pub(crate) mod umount;
pub(crate) mod umount_helper;
pub(crate) mod upgrade;
