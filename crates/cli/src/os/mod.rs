//! The operating system: its mounts, processes and directories, and calls that need more than one line.
//!
//! ```text
//! kernel           the version of the kernel
//! mount_table      what is mounted where
//! detach           lazy unmount
//! namespace        enters a mount namespace
//! utab             the list of options that umount(8) reads
//! private_dir      a directory of this user where everyone may make files
//! private_socket   a Unix socket to which only this user can connect
//! socket_user      the user of a TCP client on this machine
//! early_exit       exit of a process whose sources may hang
//! killed_process   processes that were killed and cannot end
//! memory_file      bytes in memory whose descriptor another process can get
//! sys              signals, descriptors, locks and the heap; the only file with `unsafe`
//! ```

pub(crate) mod detach;
pub(crate) mod early_exit;
pub(crate) mod kernel;
pub(crate) mod killed_process;
pub(crate) mod memory_file;
pub(crate) mod mount_table;
pub(crate) mod namespace;
pub(crate) mod private_dir;
pub(crate) mod private_socket;
pub(crate) mod socket_user;
pub(crate) mod sys;
pub(crate) mod utab;
