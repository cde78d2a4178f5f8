//! Limits and settings of a process that serves volumes.

use std::time::Duration;

use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit, setrlimit, umask};
use slackwater::Tunables;

/// Of the descriptors that the process may have, one in so many is a file that must stay open since nothing else leads to it, and
/// one in so many a dirty file. Each may take two more for its data, also when half of all are in use by clean files.
const DESCRIPTORS_FOR_EACH_HELD: u64 = 8;
const DESCRIPTORS_FOR_EACH_DIRTY: u64 = 16;

/// What a process needs that others' writes go through.
pub(crate) fn prepare_process(descriptors: u64) {
    // Modes of files are made by those who make them.
    umask(rustix::fs::Mode::empty());
    // Memory that the flush needs must not wait for the flush. It takes CAP_SYS_RESOURCE; `doctor` says what is lost.
    let _ = configure_io_flusher_behavior(true);
    let mut limit = getrlimit(Resource::Nofile);
    if let Some(current) = limit.current.filter(|current| *current < descriptors) {
        limit.current = Some(limit.maximum.map_or(descriptors, |most| most.min(descriptors)).max(current));
        // What is too little shows where it matters, with the name of the file.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Writers wait at the ratio, write-back starts at half of it; old data is looked for at least as often as it gets old.
pub(crate) fn tunables(dirty_ratio: u32, dirty_expire: Duration) -> Tunables {
    let defaults = Tunables::default();
    let ratio = dirty_ratio;
    let least = Duration::from_millis(100);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    Tunables {
        held_nodes: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_HELD).unwrap_or(u32::MAX),
        pinned_nodes_of_all: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_DIRTY).unwrap_or(u32::MAX),
        dirty_percent: ratio,
        volume_share_percent: ratio,
        failed_share_percent: defaults.failed_share_percent.min(ratio),
        dirty_background_percent: (ratio / 2).max(1),
        dirty_expire,
        dirty_writeback: defaults.dirty_writeback.min(dirty_expire.max(least)),
        commit_interval: defaults.commit_interval.min(dirty_expire.max(least)),
        ..defaults
    }
}
