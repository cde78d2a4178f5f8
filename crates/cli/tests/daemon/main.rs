//! A real daemon with real mounts: what is written through its volumes ends up in the sources, whatever requests
//! arrive.
//!
//! These tests need root and /dev/fuse. Without them they fail, because nothing else covers the same ground.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../../../mount/tests/tenants/rig.rs"]
mod cgroups;
mod hung_source;
mod kills;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod nine_hung_sources;
mod observers;
mod pod_cgroups;
mod pods;
mod process;
mod refusals;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../mounts/sys.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod sys;
mod systemd;
mod volumes;
mod web;
