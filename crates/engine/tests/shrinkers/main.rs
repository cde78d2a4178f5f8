//! Shrinkers: registration during walks, in each form, and what the shrinkers of volumes free.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod forms;
mod rig;
mod volumes;
