//! Protocols of the engine under shuttle.
#![cfg(slackwater_shuttle)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod dirty_vs_flush;
mod dontcache;
mod namespace;
mod schedules;
mod shrinkers;
mod tenants;
mod threaded;
