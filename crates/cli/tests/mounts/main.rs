//! Real mounts by the real command: what programs write through them ends up in the source, whatever happens.
//!
//! These tests need root, /dev/fuse and fusermount3. Without them they fail, because nothing else covers the same
//! ground.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod bind_mounts;
#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../../../fuse/tests/tenants/rig.rs"]
mod cgroups;
mod conflicts;
mod crash_mix;
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
#[path = "../../../fuse/tests/needs/mod.rs"]
mod needs;
#[cfg(feature = "object")]
mod object_kills;
mod other_users;
#[path = "../rig/mod.rs"]
mod rig;
mod sandbox;
mod signals;
mod source_ownership;
mod startup;
mod sys;
mod tenants;
mod top;
mod unprivileged;

/// How often a test repeats what happens at random: `default`, or the value of the variable.
pub(crate) fn runs(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|runs| runs.parse().ok()).unwrap_or(default)
}

/// `count` bytes that differ between positions and between seeds.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}
