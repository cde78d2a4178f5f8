//! What a front door asks of the engine: a program's view of space, attributes, holes and other people's changes,
//! and a way to leave that ends well.

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
