//! Gauges that must return to their values from before the lives.

use std::fs;
use std::sync::Weak;

use crate::World;
use crate::rig::{engine_panics, eventually_is, inodes_of};

/// The state of the process when the engine has nothing to do.
pub(crate) struct Gauges {
    threads: Vec<String>,
    descriptors: usize,
    shrinkers: usize,
}

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// The threads of the engine and of the layers, whose names begin with `sw-` or `slack`.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread that has just ended has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("sw-") || name.starts_with("slack")).collect();
    names.sort();
    names
}

impl Gauges {
    pub(crate) fn new(world: &World) -> Self {
        let shrinkers = world.engine.shrinkers().len();
        // Threads of layers may still be ending.
        let kept = || threads().into_iter().filter(|name| !name.starts_with("slack-timer")).collect::<Vec<_>>();
        // A thread gets its name once it runs.
        let all = crate::hasty().flusher_threads as usize + 1;
        eventually_is("flushers, and the worker of RCU", &all, || kept().len());
        Self { threads: kept(), descriptors: entries("/proc/self/fd"), shrinkers }
    }

    /// Waits for work that is done a moment after a volume or a tenant has ended.
    pub(crate) fn expect_zero(&self, world: &World) {
        let engine = &world.engine;
        assert_eq!(engine.volumes().len(), 0, "volumes");
        assert_eq!(world.namespace.mounts(), [], "mounts");
        let gone = std::mem::take(&mut *world.gone.lock().unwrap());
        let users = || gone.iter().map(Weak::strong_count).sum();
        eventually_is("users of the backends", &0, users);
        eventually_is("tenants, the root among them", &1, || engine.memcgs().len());
        eventually_is("switches in flight", &0, || engine.switches_in_flight());
        eventually_is("counts", &Ok(()), || engine.check_counts());
        let arena = engine.arena();
        eventually_is("free frames", &u64::from(arena.frames()), || arena.free_frames());
        eventually_is("free inode slots", &inodes_of(arena), || arena.free_inodes());
        eventually_is("volume slots in use", &0, || arena.volumes().count());
        eventually_is("shrinkers", &self.shrinkers, || engine.shrinkers().len());
        eventually_is("threads", &self.threads, threads);
        eventually_is("descriptors", &self.descriptors, || entries("/proc/self/fd"));
        assert_eq!((engine.dead_volume_uses(), engine_panics()), (0, 0));
    }
}
