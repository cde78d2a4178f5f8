//! File handles. The kernel makes one from a node's number and generation (`name_to_handle_at`, NFS). If it has
//! forgotten the inode of a handle, it looks up `.` in the node; it connects a directory to the root by looking up
//! `..`.
//!
//! A handle may be older than the mount, and may be forged. If the kernel was not given the number, the backend is
//! asked, and the inode that it finds must have this number. Anything else is stale. See `docs/adr/0022`.

use rustix::io::Errno;
use slackwater::backend::NodeKind;
use slackwater::{ErrorKind, FileError};
use slackwater_fuse::Operation;

use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::{self, Failure};
use crate::volume::nodes::Node;

/// Names by which the kernel looks up the target of a handle.
pub(super) const SELF: &[u8] = b".";
pub(super) const PARENT: &[u8] = b"..";

/// Whether a request looks up the node itself by its number.
pub(super) fn is_of_itself(op: &Operation<'_>) -> bool {
    matches!(op, Operation::Lookup { name } if name.as_encoded_bytes() == SELF)
}

impl Volume {
    /// LOOKUP of `.` in a node that is not in the table, or no longer.
    pub(super) fn find_forgotten(&self, id: u64) -> Result<Answer, Failure> {
        let inode = self.sb.find_numbered(id).map_err(|error| stale(&error))?;
        let node = self.know(inode).ok_or(Errno::STALE)?;
        if node.id() != id {
            self.forget(node.id(), 1);
            return Err(Errno::STALE.into());
        }
        self.fresh_entry(&node)
    }

    /// LOOKUP of `.` in a node that the kernel has forgotten and the table still has.
    pub(super) fn lookup_self(&self, node: &Node) -> Result<Answer, Failure> {
        if node.inode.attr().nlink == 0 {
            return Err(Errno::STALE.into());
        }
        let node = self.know(node.inode.clone()).ok_or(Errno::STALE)?;
        self.fresh_entry(&node)
    }

    /// LOOKUP of `..`. The kernel never forgets lookups of its root.
    pub(super) fn lookup_parent(&self, dir: &Node) -> Result<Answer, Failure> {
        let parent = self.sb.parent(&dir.inode).map_err(|error| stale(&error))?;
        let parent = match self.nodes.number_of(parent.id()).and_then(|id| self.nodes.get(id)) {
            Some(root) if root.is_root() => root,
            _ => self.know(parent).ok_or(Errno::STALE)?,
        };
        self.fresh_entry(&parent)
    }

    fn fresh_entry(&self, node: &Node) -> Result<Answer, Failure> {
        if node.inode.kind() == NodeKind::File {
            self.revalidate(&node.inode)?;
        }
        Ok(Answer::Entry(self.entry_out(node)))
    }
}

/// A missing inode is reported as stale: the request did not ask for a name.
fn stale(error: &FileError) -> Failure {
    let kind = if error.kind() == ErrorKind::NotFound { ErrorKind::Stale } else { error.kind() };
    errno::of(kind).into()
}
