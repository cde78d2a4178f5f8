//! A real daemon with real mounts: what is written through its volumes is in the sources afterwards, whoever asks for what.
//!
//! As root with /dev/fuse. Where that is missing these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod deaths;
mod hung;
mod looking;
mod refusals;
#[path = "../rig/mod.rs"]
mod rig;
mod running;
mod systemd;
mod volumes;
