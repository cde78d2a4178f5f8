//! A process that serves volumes: one in a mount process, many in a daemon.
//!
//! ```text
//! main_loop     events until the end: signals, unmounts, a takeover on purpose
//! escalation    what a signal leads to
//! kept          what a server inherits from its predecessor
//! start         the specification of a process, for the process that another one starts
//! ```
//!
//! The rest of a mount process is [`crate::commands::mount`], and of a daemon [`crate::commands::daemon`].

pub(crate) mod escalation;
pub(crate) mod kept;
pub(crate) mod main_loop;
pub(crate) mod start;
