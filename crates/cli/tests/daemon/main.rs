//! A real daemon with real mounts: what is written through its volumes is in the sources afterwards, whoever asks for what.
//!
//! As root with /dev/fuse. Where that is missing these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod hung_source;
mod kills;
mod nine_hung_sources;
mod observers;
mod process;
mod refusals;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../mounts/sys.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod sys;
mod systemd;
mod volumes;
