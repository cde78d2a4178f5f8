//! Shrinkers: how they come and go beside walks, in each form, and what those of volumes give back.

#![cfg(not(any(slackwater_loom, slackwater_shuttle)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod forms;
mod rig;
mod volumes;
