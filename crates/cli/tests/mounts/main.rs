//! Real mounts by the real command: what programs write through them ends up in the source, whatever happens.
//!
//! These tests need root, /dev/fuse and fusermount3. Without them they fail, because nothing else covers the same
//! ground.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod bind_mounts;
#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../../../mount/tests/tenants/rig.rs"]
mod cgroups;
mod conflicts;
mod crash_mix;
mod damaged_arena;
mod descriptors;
mod forced_unmounts;
mod full_source;
mod fuse_source;
mod hostile_names;
mod hung_source;
mod kills;
mod lifecycle;
mod load;
mod logs;
mod memory;
mod metrics;
mod mount8;
mod mount_flags;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod other_programs;
mod other_users;
mod places;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/volume/programs.rs"]
mod programs;
mod prometheus;
mod remounts;
#[path = "../rig/mod.rs"]
mod rig;
mod sandbox;
mod signals;
mod source_ownership;
mod startup;
mod sys;
mod system_calls;
mod tenants;
mod top;
mod transport;
mod umount8;
mod unprivileged;

use rig::{bytes, runs};
