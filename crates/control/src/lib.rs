//! The way to talk with the processes that serve volumes: the protocol and its client, the specification of a volume, and
//! the failures that all programs report.
//!
//! ```text
//! protocol        the messages; status is the longest of them
//! client, line    one request per connection, one JSON object per line
//! daemon          a daemon, and those that take over from it
//! spec/           the options of a volume and of the process that serves it, in all sources
//! formats         what two programs must have in common, so that one can go on with a mount of the other
//! label           a pod or container, in short
//! name            names of volumes, and of sources
//! mountpoint      mount points, without waiting for who serves them
//! exit            failures and exit statuses
//! object_volumes  errors of object volumes as failures (cargo feature `object`)
//! pod_cgroup      the pod and the container behind a cgroup
//! parallel        the same job for many items, so that a hung one delays few
//! output/         lines on the terminal, commands to copy
//! os/             the mount table, signals, private directories and sockets
//! ```
//!
//! The command `slackwater` and the plugins of container platforms are such programs. The other side of the protocol is in
//! the command.

#![allow(
    missing_docs,
    reason = "many fields and variants need no more than their names; types and functions have documentation"
)]

pub mod client;
pub mod daemon;
pub mod exit;
pub mod formats;
mod label;
pub mod line;
pub mod mountpoint;
pub mod name;
#[cfg(feature = "object")]
pub mod object_volumes;
pub mod os;
pub mod output;
pub mod parallel;
pub mod pod_cgroup;
pub mod protocol;
pub mod spec;
mod status;
