//! DONTCACHE writes and reads: the pages they bring in leave the cache, the flusher is kicked at once, and all counts
//! stay exact.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod counts;
mod drop_behind;
mod inline;
mod kicks;
mod model;
mod reads;
mod refused;
mod rig;
