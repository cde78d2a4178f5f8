//! What is to be as it was when nobody lives.

use std::fs;

use crate::World;
use crate::rig::{engine_panics, eventually, inodes_of};

/// What the process has when the engine has nothing to do.
pub(crate) struct Gauges {
    threads: usize,
    descriptors: usize,
    shrinkers: usize,
}

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Threads whose names begin so. Ours begin with `sw-` or `slack`.
fn threads(begin: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // One that has just ended has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(begin)).count()
}

/// Memory of the process's own; what is shared is the arena.
pub(crate) fn memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

impl Gauges {
    pub(crate) fn new(world: &World) -> Self {
        eventually("the timers of the layers have ended", || threads("slack-timer") == 0);
        let shrinkers = world.engine.shrinkers().len();
        Self { threads: threads("s"), descriptors: entries("/proc/self/fd"), shrinkers }
    }

    /// Whatever is done a moment after a volume or a tenant went is waited for.
    pub(crate) fn expect_zero(&self, world: &World) {
        let engine = &world.engine;
        assert_eq!(engine.volumes().len(), 0, "volumes");
        assert_eq!(world.namespace.mounts(), [], "mounts");
        let gone = std::mem::take(&mut *world.gone.lock().unwrap());
        eventually("nobody refers to a backend", || gone.iter().all(|backend| backend.strong_count() == 0));
        eventually("no tenant but the root", || engine.memcgs().len() == 1);
        eventually("no switch is in flight", || engine.switches_in_flight() == 0);
        eventually("counts that are zero", || engine.check_counts().is_ok());
        let arena = engine.arena();
        eventually("all frames are free", || arena.free_frames() == u64::from(arena.frames()));
        eventually("all inode slots are free", || arena.free_inodes() == inodes_of(arena));
        eventually("all volume slots are free", || arena.volumes().count() == 0);
        eventually("the shrinkers of before", || engine.shrinkers().len() == self.shrinkers);
        eventually("the threads of before", || threads("s") == self.threads);
        eventually("the descriptors of before", || entries("/proc/self/fd") == self.descriptors);
        assert_eq!((engine.dead_volume_uses(), engine_panics()), (0, 0));
    }
}
