//! Many volumes of one engine, mounted for real and served by one pool, as a daemon has them.
//!
//! Where there is no /dev/fuse, or not for this user, these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod hung;
mod idle;
#[allow(dead_code, reason = "a part of what the tests of mappings have")]
#[path = "../volume/mapper/mod.rs"]
mod mapper;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../needs/mod.rs"]
mod needs;
mod no_threads;
#[path = "../volume/programs.rs"]
mod programs;
mod rig;
mod thousand;
