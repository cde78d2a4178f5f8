//! Many volumes of one engine, mounted and served by one pool, as in a daemon.
//!
//! Without access to /dev/fuse these tests fail, since no other tests cover this.
//!
//! Where there is no /dev/fuse, or not for this user, these tests fail: nothing else tests what they are about.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod hung;
mod idle;
#[allow(dead_code, reason = "the tests of mappings use the rest")]
#[path = "../volume/mapper/mod.rs"]
mod mapper;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../needs/mod.rs"]
mod needs;
mod no_threads;
#[path = "../volume/programs.rs"]
mod programs;
mod rig;
mod thousand;
