//! The source directory: where it is, and which process may serve it.
//!
//! ```text
//! location       a directory and those above it
//! ownership      one owner per source, and the obstacles for a mount
//! lock           the lock of the owner
//! lock_holders   the processes that hold such a lock
//! ```

pub(crate) mod location;
mod lock;
mod lock_holders;
pub(crate) mod ownership;
