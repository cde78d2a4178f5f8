//! The operating system: its mounts, processes and directories, and calls that need more than one line.
//!
//! ```text
//! kernel           the version of the kernel
//! namespace        enters a mount namespace
//! utab             the list of options that umount(8) reads
//! socket_user      the user of a TCP client on this machine
//! early_exit       exit of a process whose sources may hang
//! killed_process   processes that were killed and cannot end
//! memory_file      bytes in memory whose descriptor another process can get
//! sys              descriptors, locks and the heap; the only file with `unsafe`
//! ```

pub(crate) mod early_exit;
pub(crate) mod kernel;
pub(crate) mod killed_process;
pub(crate) mod memory_file;
pub(crate) mod namespace;
pub(crate) mod socket_user;
pub(crate) mod sys;
pub(crate) mod utab;
