//! File handles: the kernel makes one of a node's number and generation (`name_to_handle_at`, NFS), and asks for
//! the node by `.` when it has one whose inode it has forgotten. A directory it connects to the root by `..`.
//!
//! A handle may be older than the mount, and may be made up: a number that was not given to the kernel is a question to the
//! backend, and what that finds must have this number. Anything else is stale. See `docs/adr/0022`.

use rustix::io::Errno;
use slackwater::backend::NodeKind;
use slackwater::{ErrorKind, FileError};

use crate::parse::Operation;
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::attributes::entry_out;
use crate::volume::errno::{self, Failure};
use crate::volume::nodes::Node;

/// Names with which the kernel asks for what a handle leads to.
pub(super) const SELF: &[u8] = b".";
pub(super) const PARENT: &[u8] = b"..";

/// Whether a request asks for the node itself by its number.
pub(super) fn is_of_itself(op: &Operation<'_>) -> bool {
    matches!(op, Operation::Lookup { name } if name.as_encoded_bytes() == SELF)
}

impl Volume {
    /// LOOKUP of `.` in what we do not know, or no longer.
    pub(super) fn find_forgotten(&self, id: u64) -> Result<Answer, Failure> {
        let inode = self.sb.find_numbered(id).map_err(|error| stale(&error))?;
        let node = self.nodes.look_up(inode).ok_or(Errno::STALE)?;
        if node.id() != id {
            self.nodes.forget(node.id(), 1);
            return Err(Errno::STALE.into());
        }
        self.fresh_entry(&node)
    }

    /// LOOKUP of `.`: the kernel has forgotten the node, and we have not yet.
    pub(super) fn lookup_self(&self, node: &Node) -> Result<Answer, Failure> {
        if node.inode.attr().nlink == 0 {
            return Err(Errno::STALE.into());
        }
        let node = self.nodes.look_up(node.inode.clone()).ok_or(Errno::STALE)?;
        self.fresh_entry(&node)
    }

    /// LOOKUP of `..`. The kernel gives no lookups of its root back.
    pub(super) fn lookup_parent(&self, dir: &Node) -> Result<Answer, Failure> {
        let parent = self.sb.parent(&dir.inode).map_err(|error| stale(&error))?;
        let parent = match self.nodes.number_of(parent.id()).and_then(|id| self.nodes.get(id)) {
            Some(root) if root.is_root() => root,
            _ => self.nodes.look_up(parent).ok_or(Errno::STALE)?,
        };
        self.fresh_entry(&parent)
    }

    fn fresh_entry(&self, node: &Node) -> Result<Answer, Failure> {
        if node.inode.kind() == NodeKind::File {
            self.revalidate(&node.inode)?;
        }
        Ok(Answer::Entry(entry_out(node)))
    }
}

/// What is not there is stale: nobody asked for a name.
fn stale(error: &FileError) -> Failure {
    let kind = if error.kind() == ErrorKind::NotFound { ErrorKind::Stale } else { error.kind() };
    errno::of(kind).into()
}
