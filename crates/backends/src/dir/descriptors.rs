//! The descriptors of nodes, counted for all volumes of the process, which share one limit.
//!
//! # Invariants
//! F1. Every descriptor that a [`DirNode`](super::node::DirNode) or a pin holds is a [`NodeFd`], counted from when it is
//!     opened until it is closed.
//! F2. Half of the limit is for nodes that can be closed (the engine's idle ones, pins, nodes that only wait for a sync
//!     of the volume). Another eighth may be used before no further files may become dirty. Nodes of dirty files, and
//!     of files that must stay open, get more descriptors when their data is moved; the engine limits their number. The
//!     rest is for sockets, for files in `/proc`, for the processes whose cgroup is being read, and for calls in
//!     flight.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Resource, getrlimit};
use slackwater::backend::NodeSupply;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

static OPEN: AtomicUsize = AtomicUsize::new(0);
/// The limit of the process, read when the last volume was opened.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// A descriptor of a node (F1).
#[derive(Debug)]
pub(super) struct NodeFd(OwnedFd);

impl NodeFd {
    pub(super) fn new(fd: OwnedFd) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(fd)
    }
}

impl AsFd for NodeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for NodeFd {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads the limit of the process. It is set before a volume is opened.
pub(super) fn learn_limit() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    LIMIT.store(usize::try_from(limit).unwrap_or(usize::MAX), Ordering::Relaxed);
}

/// Whether more descriptors may be opened (F2).
pub(super) fn supply() -> NodeSupply {
    supply_of(OPEN.load(Ordering::Relaxed), LIMIT.load(Ordering::Relaxed))
}

/// How many more descriptors may be opened for nodes that can be closed.
pub(super) fn left() -> usize {
    (LIMIT.load(Ordering::Relaxed) / 2).saturating_sub(OPEN.load(Ordering::Relaxed))
}

fn supply_of(open: usize, limit: usize) -> NodeSupply {
    let (short, scarce) = (limit / 2, limit / 2 + limit / 8);
    match open {
        _ if open < short => NodeSupply::Enough,
        _ if open < scarce => NodeSupply::Short,
        _ => NodeSupply::Scarce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_short_from_half_of_the_limit_on() {
        use NodeSupply::{Enough, Scarce, Short};
        let supplies = [0, 511, 512, 639, 640, 1024, usize::MAX].map(|open| supply_of(open, 1024));
        assert_eq!(supplies, [Enough, Enough, Short, Short, Scarce, Scarce, Scarce]);
        assert_eq!(supply_of(100_000, usize::MAX), Enough, "no limit");
    }

    #[test]
    fn each_descriptor_counts_until_it_is_closed() {
        let fd = std::fs::File::open("/proc/self").expect("it is mounted");
        let fds: Vec<_> = (0..1000).map(|_| NodeFd::new(fd.try_clone().expect("a descriptor").into())).collect();
        assert!(OPEN.load(Ordering::Relaxed) >= fds.len());
        drop(fds);
    }
}
