//! Faults below and around a volume: each gives a typed error, none a panic, and no byte is lost.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod backends_that_fail;
mod cuts;
mod limits;
#[path = "../dir/mounted.rs"]
mod mounted;
mod names;
mod nodes;
mod other_files_bytes;
#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;
mod times;
mod torture;
mod torture_tenants;
