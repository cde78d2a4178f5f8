//! Mounts with `--keep`: another process takes them over, and programs notice a pause at most.
//!
//! These tests keep the CPUs busy with processes that start and die. They are a test program of their own, so that others
//! do not run beside them.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod by_descriptor;
#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../../../mount/tests/tenants/rig.rs"]
mod cgroups;
mod commands;
mod daemon_many_kills;
mod daemons;
mod ends;
mod errors;
mod held_up;
mod inherited;
mod kept;
mod load;
mod lost_servers;
mod many_kills;
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
#[cfg(feature = "object")]
mod object_volumes;
mod own_mounts;
#[allow(dead_code, reason = "a part of what another test program uses")]
#[path = "../daemon/process.rs"]
mod process;
mod refusals;
mod remembered;
mod renames;
mod requests;
#[path = "../rig/mod.rs"]
mod rig;
mod service;
mod stopped_keeper;
#[cfg(feature = "object")]
#[allow(dead_code, reason = "a part of what another test program uses")]
#[path = "../object/store.rs"]
mod store;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../mounts/sys.rs"]
mod sys;
mod tenants;
mod upgrade;
mod user;

use rig::{bytes, runs};
