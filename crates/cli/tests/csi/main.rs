//! The plugin `slackwater csi` and a daemon, by the protocol: checked by csi-sanity, and by calls of a client.
//!
//! These tests need root and /dev/fuse. Those with csi-sanity need Go, and are skipped without it.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[allow(dead_code, reason = "a part of what the tests of tenants have")]
#[path = "../../../mount/tests/tenants/rig.rs"]
mod cgroups;
mod client;
#[allow(dead_code, reason = "the tests of the API use the rest")]
#[path = "../../../containers/src/pods/api/cluster.rs"]
mod cluster;
mod failures;
mod killing_proxy;
mod life;
#[allow(dead_code, reason = "a part of what other test programs use")]
#[path = "../../../mount/tests/needs/mod.rs"]
mod needs;
mod node;
mod options;
mod plugin;
#[allow(dead_code, reason = "the tests of tenants use the rest")]
#[path = "../daemon/pod_cgroups.rs"]
mod pod_cgroups;
mod pods;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../daemon/process.rs"]
mod process;
#[path = "../rig/mod.rs"]
mod rig;
mod sanity;
#[allow(dead_code, reason = "these tests use a part of it")]
#[cfg(feature = "object")]
#[path = "../object/store.rs"]
mod store;
#[cfg(feature = "object")]
mod stores;
