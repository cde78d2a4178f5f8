//! Engine volumes over directories, mounted and used by real programs.
//!
//! Without access to /dev/fuse these tests fail, since no other tests cover this.
//!
//! Where there is no /dev/fuse, or not for this user, these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod acls;
mod bytes;
mod ceiling;
#[allow(dead_code, reason = "the tests of tenants use the rest")]
#[path = "../tenants/rig.rs"]
mod cgroups;
mod configured;
mod cut_pages;
mod dontcache;
mod flags;
mod foreign;
mod handles;
mod lifetimes;
mod listing;
mod mapper;
mod mappings;
mod names;
#[path = "../needs/mod.rs"]
mod needs;
mod nested_limits;
mod overlay;
mod programs;
mod pruning;
mod refused_pages;
mod rig;
mod signals;
mod sys;
mod tenants;
mod throttled;
#[path = "../../../fuse/tests/transport/mod.rs"]
mod transport;
mod umount;
mod unmount_hook;
mod waiting;
mod xattrs;
