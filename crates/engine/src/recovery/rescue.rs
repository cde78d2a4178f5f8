//! Dirty data whose file is not what it was: it is saved in a file of its own, beside the backend's version.
//!
//! The file lies in the root of the volume and has the pages that were dirty at their places, holes between them, and the
//! size that programs saw. Its name tells the number and the time of the file that the pages belonged to, so a rescue that a
//! crash interrupts is done again under the same name.

use std::ffi::{OsStr, OsString};

use slackwater_arena::{FrameId, Gather, SurvivingInode};
use slackwater_sync::shim::Arc;

use super::id_of;
use crate::backend::{AttrChange, Call, Found, NewNode, Node, SyncScope, WriteUnit};
use crate::error::{BackendError, ErrorKind};
use crate::inode::NAMELESS;
use crate::super_block::{Rescued, RescuedFrom, SuperBlock};
use crate::units::{PAGE_BYTES, PageIndex};

impl SuperBlock {
    /// Saves the dirty data of `survivor`, durably. `None`: there is none that anybody could miss.
    ///
    /// # Errors
    /// The backend's. What was made so far is made again by the next rescue.
    pub(super) fn rescue(
        self: &Arc<Self>,
        survivor: &SurvivingInode,
        from: RescuedFrom,
    ) -> Result<Option<Rescued>, BackendError> {
        let record = &survivor.record;
        // A process that died within a write may have left pages that were not part of the file yet.
        let end = PageIndex::end_of(record.size_bytes);
        let pages: Vec<_> = survivor.pages.iter().copied().filter(|(index, _)| PageIndex(*index) < end).collect();
        let is_ours_to_drop = from == RescuedFrom::Removed && record.flags & NAMELESS != 0;
        if pages.is_empty() || is_ours_to_drop {
            return Ok(None);
        }
        let id = id_of(survivor);
        let name = OsString::from(format!("slackwater-conflict-{}-{}", record.ino, record.mtime_ns));
        let root = self.call(None, |done| Call::Root { done })?.node;
        let file = self.make_anew(&root, &name)?;
        let mut rest = pages.as_slice();
        while let Some((index, _)) = rest.first() {
            let run = rest.iter().zip(*index..).take_while(|((index, _), next)| index == next).count();
            let (run, behind) = rest.split_at(run.min(self.pages_of_unit()));
            self.write_pages(&file, run, record.size_bytes)?;
            rest = behind;
        }
        let own = |change| {
            let node = file.clone();
            self.call(None, |done| Call::Setattr { node, change, done })
        };
        own(AttrChange { size_bytes: Some(record.size_bytes), ..AttrChange::default() })?;
        // Its owner may read it, where we may give files away.
        let _ = own(AttrChange { uid: Some(record.uid), gid: Some(record.gid), ..AttrChange::default() });
        for node in [file.clone(), root] {
            self.call(None, |done| Call::Sync { node, scope: SyncScope::All, done })?;
        }
        let bytes = pages.len() as u64 * PAGE_BYTES;
        tracing::warn!(target: "slackwater::recovery", volume = self.name(), %id, bytes, ?from, file = ?name,
            "somebody else changed or removed a file that had data here: the data is in a file of its own");
        Ok(Some(Rescued { id, from, name, bytes }))
    }

    fn pages_of_unit(&self) -> usize {
        self.bdi().limits().unit_bytes as usize / PAGE_BYTES as usize
    }

    /// An empty file that its owner alone may read.
    fn make_anew(&self, root: &Node, name: &OsStr) -> Result<Node, BackendError> {
        let (dir, what) = (root.clone(), NewNode::File);
        let make = |done| Call::Make { dir, name: name.to_owned(), what, mode: 0o600, creator: None, done };
        match self.call(None, make) {
            Ok(made) => Ok(made.node),
            Err(error) if error.kind() == ErrorKind::Exists => {
                let (dir, name) = (root.clone(), name.to_owned());
                let Found { node, .. } = self.call(None, |done| Call::Lookup { dir, name, done })?;
                let (file, change) = (node.clone(), AttrChange { size_bytes: Some(0), ..AttrChange::default() });
                self.call(None, |done| Call::Setattr { node, change, done })?;
                Ok(file)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes consecutive pages of a file that ends at `size_bytes`.
    fn write_pages(&self, file: &Node, pages: &[(u64, FrameId)], size_bytes: u64) -> Result<(), BackendError> {
        let mut left = pages;
        while let Some((index, _)) = left.first() {
            let offset_bytes = PageIndex(*index).offset_bytes();
            let len_bytes = (size_bytes - offset_bytes).min(left.len() as u64 * PAGE_BYTES) as usize;
            let mut frames = Gather::new(Arc::clone(&self.engine().arena), left.len());
            assert!(left.iter().all(|(_, frame)| frames.push(*frame)), "nobody else has frames of a dead process");
            let node = file.clone();
            let unit = |done| Call::Write(WriteUnit::detached(node, offset_bytes, frames, len_bytes, done));
            let written = self.call(None, unit)?;
            if written == len_bytes {
                return Ok(());
            }
            // Whole pages that were written are done with; the others are written again.
            left = match written / PAGE_BYTES as usize {
                0 => return Err(BackendError::new(ErrorKind::Io, "not even a page was written")),
                whole => &left[whole..],
            };
        }
        Ok(())
    }
}
