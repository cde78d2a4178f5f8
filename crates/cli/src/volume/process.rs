//! Limits and settings of a process that serves volumes.

use std::time::Duration;

use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit, setrlimit, umask};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use slackwater::Tunables;

/// Divisors of all descriptors of the process: for files that must stay open because nothing else leads to them, and
/// for dirty files. Each file may use two more for its data, even when half of all descriptors are used by clean files.
const DESCRIPTORS_FOR_EACH_HELD: u64 = 8;
const DESCRIPTORS_FOR_EACH_DIRTY: u64 = 16;

/// Prepares a process through which other processes' writes go.
pub(crate) fn prepare_process(descriptors: u64) {
    // The mode of a file is chosen by the program that creates it.
    umask(rustix::fs::Mode::empty());
    // Memory that the flush needs must not wait for the flush. This needs CAP_SYS_RESOURCE; `doctor` says what its lack
    // affects.
    let _ = configure_io_flusher_behavior(true);
    let mut limit = getrlimit(Resource::Nofile);
    if let Some(current) = limit.current.filter(|current| *current < descriptors) {
        limit.current = Some(limit.maximum.map_or(descriptors, |most| most.min(descriptors)).max(current));
        // If the limit is too low, an error shows where it matters, with the name of the file.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    exceed_limits(false);
}

/// Whether this thread, and those that it starts, may exceed limits of the kernel: CAP_SYS_RESOURCE, if the process has
/// it. On ext4 a thread with this capability fills a directory beyond its quota. Writes that go through this process
/// must not.
pub(crate) fn exceed_limits(may: bool) {
    // The call fails only for a capability that the process does not have.
    let _ = capabilities(None).and_then(|mut sets| {
        sets.effective.set(CapabilitySet::SYS_RESOURCE, may && sets.permitted.contains(CapabilitySet::SYS_RESOURCE));
        set_capabilities(None, sets)
    });
}

/// Writers block at the ratio, and write-back starts at half of it. Old data is searched for at least as often as it
/// becomes old.
pub(crate) fn tunables(dirty_ratio: u32, dirty_expire: Duration) -> Tunables {
    let defaults = Tunables::default();
    let ratio = dirty_ratio;
    let interval = Tunables::interval_for(dirty_expire);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    Tunables {
        held_nodes: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_HELD).unwrap_or(u32::MAX),
        pinned_nodes_of_all: u32::try_from(descriptors / DESCRIPTORS_FOR_EACH_DIRTY).unwrap_or(u32::MAX),
        dirty_percent: ratio,
        volume_share_percent: ratio,
        failed_share_percent: defaults.failed_share_percent.min(ratio),
        dirty_background_percent: (ratio / 2).max(1),
        dirty_expire,
        dirty_writeback: defaults.dirty_writeback.min(interval),
        commit_interval: defaults.commit_interval.min(interval),
        ..defaults
    }
}
