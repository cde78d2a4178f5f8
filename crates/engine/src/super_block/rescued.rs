//! Rescued data: dirty data saved in a file of its own, because another program had changed or removed the file that it
//! belonged to.
//!
//! A rescue file is in the root of the volume. Its name contains the inode number and the mtime of the original file,
//! so a rescue that fails or is interrupted is repeated under the same name.

use std::ffi::OsString;
use std::path::PathBuf;

use slackwater_arena::{FrameId, Gather};
use slackwater_sync::shim::Arc;

use crate::backend::{AttrChange, Call, Done, NewNode, Node, SyncScope, WriteUnit};
use crate::error::{BackendError, ErrorKind};
use crate::super_block::SuperBlock;
use crate::units::{NodeId, PAGE_BYTES, PageIndex, Tick, Timestamp};

/// Why data was saved in a rescue file.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum RescuedFrom {
    /// Another program had changed the file.
    Changed,
    /// Another program had removed or replaced it.
    Removed,
}

/// Data saved in a rescue file.
#[derive(Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub struct Rescued {
    /// The file that the data belonged to.
    pub id: NodeId,
    /// Why the data was not written to it.
    pub from: RescuedFrom,
    /// Where the file was, if that is known.
    pub path: Option<PathBuf>,
    /// Name of the rescue file in the root of the volume.
    pub name: OsString,
    /// Bytes of rescued data, in whole pages.
    pub bytes: u64,
}

impl SuperBlock {
    /// Data rescued at the mount or since then.
    pub fn rescued(&self) -> Vec<Rescued> {
        self.rescued.lock().clone()
    }

    /// The largest unit of the backend, in pages.
    pub(crate) fn pages_of_unit(&self) -> usize {
        self.bdi().limits().unit_bytes as usize / PAGE_BYTES as usize
    }
}

/// A rescue file being written.
pub(crate) struct RescueFile<'a> {
    sb: &'a SuperBlock,
    root: Node,
    file: Node,
    name: OsString,
    deadline: Option<Tick>,
}

impl<'a> RescueFile<'a> {
    /// Creates an empty file that only its owner may read. Each of its calls waits for the backend until `deadline` at
    /// most.
    pub(crate) fn make(
        sb: &'a SuperBlock,
        ino: u64,
        mtime: Timestamp,
        deadline: Option<Tick>,
    ) -> Result<Self, BackendError> {
        let name = OsString::from(format!("slackwater-conflict-{ino}-{}", mtime.0));
        let root = sb.call(deadline, |done| Call::Root { done })?.node;
        let (dir, what) = (root.clone(), NewNode::File);
        let make = |done| Call::Make { dir, name: name.clone(), what, mode: 0o600, creator: None, done };
        let file = match sb.call(deadline, make) {
            Err(error) if error.kind() == ErrorKind::Exists => {
                let (dir, name) = (root.clone(), name.clone());
                let node = sb.call(deadline, |done| Call::Lookup { dir, name, done })?.node;
                let (file, change) = (node.clone(), AttrChange { size_bytes: Some(0), ..AttrChange::default() });
                sb.call(deadline, |done| Call::Setattr { node, change, done })?;
                file
            }
            made => made?.node,
        };
        Ok(Self { sb, root, file, name, deadline })
    }

    /// Writes consecutive pages of a file whose size is `size_bytes`. `owner` has the frames; it is kept until the
    /// backend has answered, which may be after the deadline.
    pub(crate) fn write_pages(
        &self,
        mut first: PageIndex,
        mut left: &[FrameId],
        size_bytes: u64,
        owner: &(impl Clone + Send + 'static),
    ) -> Result<(), BackendError> {
        while !left.is_empty() {
            let offset_bytes = first.offset_bytes();
            let len_bytes = (size_bytes - offset_bytes).min(left.len() as u64 * PAGE_BYTES) as usize;
            let mut frames = Gather::new(Arc::clone(&self.sb.engine().arena), left.len());
            assert!(left.iter().all(|frame| frames.push(*frame)), "the caller alone holds these frames");
            let node = self.file.clone();
            let owner = owner.clone();
            let unit =
                |done| Call::Write(WriteUnit::detached(node, offset_bytes, frames, len_bytes, keeping(owner, done)));
            let written = self.sb.call(self.deadline, unit)?;
            if written == len_bytes {
                return Ok(());
            }
            // Whole pages that were written are done; the others are written again.
            let whole = written / PAGE_BYTES as usize;
            if whole == 0 {
                return Err(BackendError::new(ErrorKind::Io, "not even a page was written"));
            }
            (first, left) = (first.plus(whole as u64), &left[whole..]);
        }
        Ok(())
    }

    /// Sets its size and owner, and makes it and its name durable. Returns the name.
    pub(crate) fn finish(self, size_bytes: u64, uid: u32, gid: u32) -> Result<OsString, BackendError> {
        let change = |change| {
            let node = self.file.clone();
            self.sb.call(self.deadline, |done| Call::Setattr { node, change, done })
        };
        change(AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() })?;
        // Lets the original file's owner read it, if we have the privilege to change the owner.
        let _ = change(AttrChange { uid: Some(uid), gid: Some(gid), ..AttrChange::default() });
        for node in [self.file.clone(), self.root] {
            self.sb.call(self.deadline, |done| Call::Sync { node, scope: SyncScope::All, done })?;
        }
        Ok(self.name)
    }
}

/// `done`, which drops `owner` after the answer.
pub(crate) fn keeping<T: Send + 'static>(owner: impl Send + 'static, done: Done<T>) -> Done<T> {
    Done::new(move |answer| {
        done.complete(answer);
        drop(owner);
    })
}
