//! Every knob of the engine, with its unit, default and range.

use std::time::Duration;

/// What can be set when an engine is built. [`Tunables::default`] is right for most.
#[derive(Clone, Debug)]
pub struct Tunables {
    /// Time between two looks for old data (kernel: `dirty_writeback_centisecs`). Zero turns periodic
    /// write-back off. Default 5 s.
    pub dirty_writeback: Duration,
    /// Age at which dirty data is written back (kernel: `dirty_expire_centisecs`). Default 30 s.
    pub dirty_expire: Duration,
    /// Longest time that written pages wait for the backend to make them durable, which is when their
    /// frames come free. Default 5 s.
    pub commit_interval: Duration,
    /// Percent of the arena that may be dirty before write-back starts without being asked (kernel:
    /// `dirty_background_ratio`). Default 10; 0 starts at the first page. If it is not below `dirty_percent`, half of that
    /// counts.
    pub dirty_background_percent: u32,
    /// Percent of the arena at which all writers wait (kernel: `dirty_ratio`). They are slowed down from the middle
    /// between this and `dirty_background_percent` on. Default 50.
    pub dirty_percent: u32,
    /// Whether each writer's tenant is held to its share of the device's speed even while there is room for more (kernel:
    /// `BDI_CAP_STRICTLIMIT`, which it sets for FUSE). Default false.
    pub strict_limit: bool,
    /// Percent of the arena that one volume may fill with pages that cannot be dropped: dirty, under
    /// write-back or not yet durable. Default 50, range 1 to 100.
    pub volume_share_percent: u32,
    /// The same while the volume's last write-back failed. Default 12, range 1 to `volume_share_percent`.
    pub failed_share_percent: u32,
    /// Wait before an inode whose write-back failed is tried again; doubles with each failure.
    /// Default 100 ms.
    pub retry_min: Duration,
    /// Longest such wait. Default 30 s.
    pub retry_max: Duration,
    /// Most pages read ahead of a sequential reader (kernel: `read_ahead_kb`). Default 256 (1 MiB);
    /// 0 reads only what is asked for.
    pub readahead_pages: u32,
    /// Open backend nodes one volume may hold for inodes that are dirty or not durable yet. Write-back and
    /// commit start at half of it, and writes to further files wait at all of it. Default 2048.
    pub pinned_nodes: u32,
    /// The same for all volumes together. Beyond that a volume holds at most 16. Default 65,536.
    pub pinned_nodes_of_all: u32,
    /// Open backend nodes one volume keeps for clean inodes that somebody knows or has open: the others are opened again when
    /// they are needed. Fewer while the backend is [short of them](crate::backend::NodeSupply). Default 2048.
    pub idle_nodes: u32,
    /// Open backend nodes that all volumes together keep for open files that nothing else leads to: those without a name, and all of a
    /// backend that does not [reopen](crate::backend::Limits::reopens) nodes. One tenant gets a half of what the others leave.
    /// Default 4096.
    pub held_nodes: u32,
    /// Inodes of one volume that are in memory only because a front door knows their names. While there are more the front
    /// door is asked to let go of those longest unused ([`SuperBlock::on_inode_pressure`](crate::SuperBlock::on_inode_pressure)).
    /// Default 65,536.
    pub inodes_max: u64,
    /// Threads that run flushers, for all volumes together. They never wait for a backend. Default 2,
    /// range 1 to 64. With 0 nobody flushes but [`Engine::step`](crate::Engine::step), as tests want it.
    pub flusher_threads: u32,
    /// Longest time that background units are held back by syncs on the same device, so that a stream of
    /// syncs cannot starve write-back. Default 100 ms.
    pub gate_hold: Duration,
    /// Whether syncs hold other volumes' background units back at all. Default true.
    pub gate: bool,
    /// Longest time a deadline-less wait goes without progress before it is logged. Default 120 s.
    pub hung_wait: Duration,
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            dirty_writeback: Duration::from_secs(5),
            dirty_expire: Duration::from_secs(30),
            commit_interval: Duration::from_secs(5),
            dirty_background_percent: 10,
            dirty_percent: 50,
            strict_limit: false,
            volume_share_percent: 50,
            failed_share_percent: 12,
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            readahead_pages: 256,
            pinned_nodes: 2048,
            pinned_nodes_of_all: 65_536,
            idle_nodes: 2048,
            held_nodes: 4096,
            inodes_max: 65_536,
            flusher_threads: 2,
            gate_hold: Duration::from_millis(100),
            gate: true,
            hung_wait: Duration::from_secs(120),
        }
    }
}

impl Tunables {
    /// The pause after a failed attempt that `failures` others in a row have preceded.
    pub(crate) fn retry_after(&self, failures: u32) -> Duration {
        self.retry_min.saturating_mul(1 << failures.min(20)).min(self.retry_max)
    }

    /// Percent `percent` of `frames`, at least one.
    pub(crate) fn frames_of(percent: u32, frames: u64) -> u64 {
        (frames * u64::from(percent.min(100)) / 100).max(1)
    }
}
