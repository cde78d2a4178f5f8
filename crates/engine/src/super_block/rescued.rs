//! Data that went to files of its own, since somebody else had changed or removed the file that it belonged to.
//!
//! Such a file lies in the root of the volume. Its name tells the number and the time of the file that the data belonged to, so
//! a rescue that fails or is interrupted is done again under the same name.

use std::ffi::OsString;

use slackwater_arena::{FrameId, Gather};
use slackwater_sync::shim::Arc;

use crate::backend::{AttrChange, Call, NewNode, Node, SyncScope, WriteUnit};
use crate::error::{BackendError, ErrorKind};
use crate::super_block::SuperBlock;
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Timestamp};

/// Why data was saved elsewhere.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum RescuedFrom {
    /// Somebody else had changed the file.
    Changed,
    /// Somebody else had removed or replaced it.
    Removed,
}

/// Data that was saved in a file of its own.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct Rescued {
    /// The file that the data belonged to.
    pub id: NodeId,
    /// Why it did not go there.
    pub from: RescuedFrom,
    /// Name in the root of the volume.
    pub name: OsString,
    /// Bytes of data, in whole pages.
    pub bytes: u64,
}

impl SuperBlock {
    /// What could not go to the files it belonged to, at the mount or since, and was saved elsewhere.
    pub fn rescued(&self) -> Vec<Rescued> {
        self.rescued.lock().clone()
    }

    /// As many pages as the backend takes at once.
    pub(crate) fn pages_of_unit(&self) -> usize {
        self.bdi().limits().unit_bytes as usize / PAGE_BYTES as usize
    }
}

/// A file that is being made for data that has no other place.
pub(crate) struct RescueFile<'a> {
    sb: &'a SuperBlock,
    root: Node,
    file: Node,
    name: OsString,
}

impl<'a> RescueFile<'a> {
    /// An empty one, which its owner alone may read.
    pub(crate) fn make(sb: &'a SuperBlock, ino: u64, mtime: Timestamp) -> Result<Self, BackendError> {
        let name = OsString::from(format!("slackwater-conflict-{ino}-{}", mtime.0));
        let root = sb.call(None, |done| Call::Root { done })?.node;
        let (dir, what) = (root.clone(), NewNode::File);
        let make = |done| Call::Make { dir, name: name.clone(), what, mode: 0o600, creator: None, done };
        let file = match sb.call(None, make) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                let (dir, name) = (root.clone(), name.clone());
                let node = sb.call(None, |done| Call::Lookup { dir, name, done })?.node;
                let (file, change) = (node.clone(), AttrChange { size_bytes: Some(0), ..AttrChange::default() });
                sb.call(None, |done| Call::Setattr { node, change, done })?;
                file
            }
            made => made?.node,
        };
        Ok(Self { sb, root, file, name })
    }

    /// Writes consecutive pages of a file that ends at `size_bytes`.
    pub(crate) fn write_pages(
        &self,
        mut first: PageIndex,
        mut left: &[FrameId],
        size_bytes: u64,
    ) -> Result<(), BackendError> {
        while !left.is_empty() {
            let offset_bytes = first.offset_bytes();
            let len_bytes = (size_bytes - offset_bytes).min(left.len() as u64 * PAGE_BYTES) as usize;
            let mut frames = Gather::new(Arc::clone(&self.sb.engine().arena), left.len());
            assert!(left.iter().all(|frame| frames.push(*frame)), "nobody else has these frames");
            let node = self.file.clone();
            let unit = |done| Call::Write(WriteUnit::detached(node, offset_bytes, frames, len_bytes, done));
            let written = self.sb.call(None, unit)?;
            if written == len_bytes {
                return Ok(());
            }
            // Whole pages that were written are done with; the others are written again.
            let whole = written / PAGE_BYTES as usize;
            if whole == 0 {
                return Err(BackendError::new(ErrorKind::Io, "not even a page was written"));
            }
            (first, left) = (first.plus(whole as u64), &left[whole..]);
        }
        Ok(())
    }

    /// Gives it its size and owner, and makes it and its name durable. Returns the name.
    pub(crate) fn finish(self, size_bytes: u64, uid: u32, gid: u32) -> Result<OsString, BackendError> {
        let change = |change| {
            let node = self.file.clone();
            self.sb.call(None, |done| Call::Setattr { node, change, done })
        };
        change(AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() })?;
        // Its owner may read it, where we may give files away.
        let _ = change(AttrChange { uid: Some(uid), gid: Some(gid), ..AttrChange::default() });
        for node in [self.file.clone(), self.root] {
            self.sb.call(None, |done| Call::Sync { node, scope: SyncScope::All, done })?;
        }
        Ok(self.name)
    }
}
