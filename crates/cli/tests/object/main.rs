//! Object volumes by the real command: in a directory, and on a local S3 server.
//!
//! These tests need root and /dev/fuse. Those on S3 need `slackwater-s3-server` beside the command.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod credentials;
mod daemon;
mod fights;
mod kills;
mod lifecycle;
mod maintenance;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod programs;
mod readers;
mod refusals;
#[path = "../rig/mod.rs"]
mod rig;
mod store;
mod take_over;
