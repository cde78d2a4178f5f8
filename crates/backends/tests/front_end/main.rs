//! The interface for a front end: space, attributes, holes and foreign changes as programs see them, and an orderly
//! unmount.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod attributes;
mod foreign_changes;
mod held_nodes;
mod holes;
mod idle_nodes;
mod landing;
mod leaving;
mod lending;
mod removed_files;
#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;
mod space;
