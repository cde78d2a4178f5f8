//! Volumes of the engine mounted for real, over directories, as programs see them.
//!
//! Where there is no /dev/fuse, or not for this user, these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod acls;
mod bytes;
mod ceiling;
#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../tenants/rig.rs"]
mod cgroups;
mod configured;
mod dontcache;
mod ending;
mod flags;
mod handles;
mod lifetimes;
mod listing;
mod mapper;
mod mappings;
mod names;
#[path = "../needs/mod.rs"]
mod needs;
mod overlay;
mod programs;
mod pruning;
mod rig;
mod sys;
mod tenants;
mod throttled;
mod umount;
mod waiting;
mod xattrs;
