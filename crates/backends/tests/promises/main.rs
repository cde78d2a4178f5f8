//! The promises of the engine, each with the tests that hold it to them.
//!
//! A test is named after its promise: `p01_...` is P1 of `docs/SEMANTICS.md`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod age;
mod ceiling;
mod durability;
mod failures;
mod one_device;
#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;
mod survival;
mod survival_of_changes;
mod survival_of_races;
mod syncs_that_meet;
mod tenants;
mod umount;
mod umount_that_hangs;
