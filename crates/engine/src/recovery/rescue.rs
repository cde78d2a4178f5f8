//! Saving dirty data whose file was changed or removed: it gets a file of its own, beside the backend's version.
//!
//! The file is in the root of the volume. It has the dirty pages at their offsets, with holes between them, and the
//! size that programs saw. Its name contains the number and the time of the original file, so a rescue that a crash
//! interrupts is repeated under the same name.

use slackwater_arena::SurvivingInode;
use slackwater_sync::shim::Arc;

use super::id_of;
use crate::error::BackendError;
use crate::inode::{NAMELESS, REMOVING};
use crate::super_block::{RescueFile, Rescued, RescuedFrom, SuperBlock};
use crate::units::{PAGE_BYTES, PageIndex, Timestamp};

impl SuperBlock {
    /// Saves the dirty data of `survivor` durably. `None` if there is none to save.
    ///
    /// # Errors
    /// The backend fails. The next rescue starts again.
    pub(super) fn rescue(
        self: &Arc<Self>,
        survivor: &SurvivingInode,
        from: RescuedFrom,
    ) -> Result<Option<Rescued>, BackendError> {
        let record = &survivor.record;
        // A process that died during a write may have left pages that were not yet part of the file.
        let end = PageIndex::end_of(record.size_bytes);
        let pages: Vec<_> = survivor.pages.iter().copied().filter(|(index, _)| PageIndex(*index) < end).collect();
        let is_ours_to_drop = from == RescuedFrom::Removed && record.flags & (NAMELESS | REMOVING) != 0;
        if pages.is_empty() || is_ours_to_drop {
            return Ok(None);
        }
        let id = id_of(survivor);
        let file = RescueFile::make(self, record.ino, Timestamp(record.mtime_ns), None)?;
        let mut rest = pages.as_slice();
        while let Some((index, _)) = rest.first() {
            let run = rest.iter().zip(*index..).take_while(|((index, _), next)| index == next).count();
            let (run, behind) = rest.split_at(run.min(self.pages_of_unit()));
            let frames: Vec<_> = run.iter().map(|(_, frame)| *frame).collect();
            file.write_pages(PageIndex(*index), &frames, record.size_bytes, &())?;
            rest = behind;
        }
        let name = file.finish(record.size_bytes, record.uid, record.gid)?;
        let bytes = pages.len() as u64 * PAGE_BYTES;
        tracing::warn!(target: "slackwater::recovery", volume = self.name(), %id, bytes, ?from, file = ?name,
            "a file with unwritten data was changed or removed in the backend: its data is in a file of its own");
        Ok(Some(Rescued { id, from, path: None, name, bytes }))
    }
}
