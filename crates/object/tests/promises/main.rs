//! The promises P1 to P9 of `docs/SEMANTICS.md` on object volumes, and the errors of stores.
//!
//! An engine is in front of an object volume on a store in memory, whose requests fail, hang or are lost as the test
//! wants. A crash of the machine is a new process without arena and local log; a kill is one with both.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../bucket/mod.rs"]
mod bucket;
mod bytes;
mod durable;
mod failing;
#[path = "../../../backends/tests/dir/mounted.rs"]
mod mounted;
mod requests;
#[path = "../../../backends/tests/rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;
mod shared;
mod survival;
mod volume;
