//! The volume plugin of Docker and Podman: its protocol by a real HTTP client, with a real daemon and real mounts.
//!
//! These tests need root and /dev/fuse. Those with Podman and Docker need them installed.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod calls;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../daemon/process.rs"]
mod daemon;
mod engines;
mod failures;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod plugin;
#[path = "../rig/mod.rs"]
mod rig;
