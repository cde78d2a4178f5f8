//! DONTCACHE writes and reads: what they bring leaves the cache, the flusher is told at once, and every count stays exact.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod counts;
mod inline;
mod kicks;
mod leaving;
mod model;
mod reads;
mod rig;
