//! Finding the parent of a directory, and checking that the path leads up to the root of the volume.
//!
//! The only place that goes up. Every directory it finds is checked before it is returned (R1).

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, openat, statx};
use rustix::io;
use slackwater::ErrorKind;
use slackwater::backend::{Found, Node, NodeKind};
use slackwater_sync::shim::Arc;

use super::attributes::device_of;
use super::descriptors::NodeFd;
use super::errno::failed;
use super::volume::{Answer, PATH_ONLY, Volume};

/// Deeper than any path that can be created in one step. The walk ends there, whatever other processes move meanwhile.
const DEPTH_MAX: usize = 1 << 16;

/// The identity of a directory: device and number.
type Which = (u64, u64);

impl Volume {
    /// The directory that `dir` is in.
    pub(super) fn parent(&self, dir: &Node) -> Answer<Found> {
        let dir = self.node(dir)?;
        if dir.kind != NodeKind::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        let root = which(&self.root).map_err(failed("statx"))?;
        let stat = stat(&dir.path).map_err(failed("statx"))?;
        // The kernel still leads up from a removed directory.
        if stat.stx_nlink == 0 || identity(&stat) == root {
            return Err(ErrorKind::Stale.into());
        }
        let parent = up(&dir.path).map_err(failed("openat"))?;
        if !is_below(&parent, root).map_err(failed("openat"))? {
            return Err(ErrorKind::Stale.into());
        }
        self.found(Arc::new(parent))
    }

    /// Whether a node that was not found by name is in the volume. This can be checked for directories only: a file
    /// does not tell where its names are.
    pub(super) fn may_be_within(&self, found: &Found) -> Answer<bool> {
        if found.attr.kind != NodeKind::Directory {
            return Ok(true);
        }
        let root = which(&self.root).map_err(failed("statx"))?;
        is_below(&self.node(&found.node)?.path, root).map_err(failed("openat"))
    }
}

/// Whether `dir` is `root` or below it.
fn is_below(dir: &NodeFd, root: Which) -> io::Result<bool> {
    let mut at = which(dir)?;
    let mut parent: Option<NodeFd> = None;
    for _ in 0..DEPTH_MAX {
        if at == root {
            return Ok(true);
        }
        let next = up(parent.as_ref().unwrap_or(dir))?;
        let above = which(&next)?;
        if above == at || above.0 != root.0 {
            return Ok(false);
        }
        (at, parent) = (above, Some(next));
    }
    Ok(false)
}

fn up(dir: &NodeFd) -> io::Result<NodeFd> {
    openat(dir, c"..", PATH_ONLY | OFlags::DIRECTORY, Mode::empty()).map(NodeFd::new)
}

fn which(dir: impl AsFd) -> io::Result<Which> {
    Ok(identity(&stat(dir)?))
}

fn identity(stat: &Statx) -> Which {
    (device_of(stat), stat.stx_ino)
}

fn stat(dir: impl AsFd) -> io::Result<Statx> {
    statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::NLINK)
}
