//! The tunables of the engine, each with its unit, default and range.
//!
//! `slackwater mount` and the daemon set `dirty_percent` and `volume_share_percent` to `--dirty-ratio` (20 by default),
//! and `dirty_background_percent` to half of it. They derive `held_nodes` and `pinned_nodes_of_all` from the limit of
//! open files.

use std::time::Duration;

/// Settings of an engine, fixed when it is created. [`Tunables::default`] suits most.
#[derive(Clone, Debug)]
pub struct Tunables {
    /// Interval between checks for old data (kernel: `dirty_writeback_centisecs`). Zero turns periodic write-back off.
    /// Default 5 s.
    pub dirty_writeback: Duration,
    /// Age at which dirty data is written back (kernel: `dirty_expire_centisecs`). Default 30 s.
    pub dirty_expire: Duration,
    /// Longest time that written-back pages wait for the commit that makes them durable and frees their frames.
    /// Default 5 s.
    pub commit_interval: Duration,
    /// Percent of the arena that may be dirty before background write-back starts (kernel: `dirty_background_ratio`).
    /// Default 10; 0 starts at the first page. If it is not below `dirty_percent`, half of that applies.
    pub dirty_background_percent: u32,
    /// Percent of the arena at which all writers wait (kernel: `dirty_ratio`). Throttling starts halfway between
    /// `dirty_background_percent` and this. Default 50.
    pub dirty_percent: u32,
    /// Whether each tenant is held to its share of the device's speed even while frames are free (kernel:
    /// `BDI_CAP_STRICTLIMIT`, which it sets for FUSE). Default false.
    pub strict_limit: bool,
    /// Percent of the arena that one volume may fill with pages that cannot be dropped: dirty, under write-back or not
    /// yet durable. Default 50, range 1 to 100.
    pub volume_share_percent: u32,
    /// The same while the volume's last write-back failed. Default 12, range 1 to `volume_share_percent`.
    pub failed_share_percent: u32,
    /// Pause before write-back of an inode is retried after a failure; doubles with each failure. Default 100 ms.
    pub retry_min: Duration,
    /// Longest such pause. Default 30 s.
    pub retry_max: Duration,
    /// The most pages read ahead of a sequential reader (kernel: `read_ahead_kb`). Default 256 (1 MiB); 0 reads only
    /// what is asked for.
    pub readahead_pages: u32,
    /// Open backend nodes that one volume may hold for inodes that are dirty or not yet durable. Write-back and commit
    /// start at half of it, and writes to further files wait at all of it. Default 2048.
    pub pinned_nodes: u32,
    /// The same for all volumes together. Above it, a volume holds at most 16. Default 65,536.
    pub pinned_nodes_of_all: u32,
    /// Open backend nodes that one volume keeps for clean inodes that are referenced or open. Others are reopened when
    /// they are needed. Fewer are kept while the backend is [short of them](crate::backend::NodeSupply). Default 2048.
    pub idle_nodes: u32,
    /// Open backend nodes that all volumes together keep for open files that cannot be reopened: those without a name,
    /// and all files of a backend that does not [reopen](crate::backend::Limits::reopens) nodes. One tenant gets at
    /// most half of what the others leave. Default 4096.
    pub held_nodes: u32,
    /// Inodes of one volume that are in memory only because a front end knows their names. Above it, the front end is
    /// asked to forget the least recently used ones
    /// ([`SuperBlock::on_inode_pressure`](crate::SuperBlock::on_inode_pressure)). Default 65,536.
    pub inodes_max: u64,
    /// Threads that run the flushers of all volumes. They never wait for a backend. Default 2, range 1 to 64. With 0,
    /// only [`Engine::step`](crate::Engine::step) runs flushers, as tests need it.
    pub flusher_threads: u32,
    /// Longest time that syncs on the same device hold background units back, so that a stream of syncs cannot starve
    /// write-back. Default 100 ms.
    pub gate_hold: Duration,
    /// Whether syncs hold background units of other volumes back at all. Default true.
    pub gate: bool,
    /// Time without progress after which a wait without a deadline is logged. Default 120 s.
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
    /// The pause after a failed attempt that follows `failures` other failures in a row.
    pub(crate) fn retry_after(&self, failures: u32) -> Duration {
        self.retry_min.saturating_mul(1 << failures.min(20)).min(self.retry_max)
    }

    /// The longest interval at which data is searched for that is old after `dirty_expire`: that age, but not less than
    /// 100 ms.
    pub fn interval_for(dirty_expire: Duration) -> Duration {
        dirty_expire.max(Duration::from_millis(100))
    }

    /// Percent `percent` of `frames`, at least one.
    pub(crate) fn frames_of(percent: u32, frames: u64) -> u64 {
        (frames * u64::from(percent.min(100)) / 100).max(1)
    }
}
