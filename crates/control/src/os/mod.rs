//! The operating system, as several programs need it.
//!
//! ```text
//! mount_table      what is mounted where
//! detach           lazy unmount
//! private_dir      a directory of this user where everyone may make files
//! private_socket   a Unix socket to which only this user can connect
//! sys              the signals that end a process; the only file with `unsafe`
//! ```

pub mod detach;
pub mod mount_table;
pub mod private_dir;
pub mod private_socket;
pub mod sys;
