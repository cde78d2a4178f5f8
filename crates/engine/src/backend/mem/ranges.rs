//! Allocated ranges of files: space, holes, and how to find them.

use crate::backend::mem::node::Body;
use crate::backend::mem::volume::{Answer, Volume, blocks_mut};
use crate::backend::{Attr, FallocateMode, Node, SeekWhence};
use crate::error::ErrorKind;
use crate::units::PAGE_BYTES;

impl Volume {
    pub(super) fn fallocate(
        &mut self,
        node: &Node,
        mode: FallocateMode,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Answer<Attr> {
        let (ino, now) = (self.ino(node)?, self.tick());
        let (max_file_bytes, blocks_free) = (self.max_file_bytes, self.blocks_free());
        let node = self.node_mut(ino);
        let blocks = blocks_mut(&mut node.body)?;
        if len_bytes == 0 {
            return Err(ErrorKind::Invalid.into());
        }
        let end = offset_bytes.saturating_add(len_bytes);
        if end > max_file_bytes {
            return Err(ErrorKind::TooLarge.into());
        }
        let missing_bytes = blocks.missing_bytes(offset_bytes, len_bytes);
        if mode != FallocateMode::PunchHole && missing_bytes > blocks_free * PAGE_BYTES {
            return Err(ErrorKind::NoSpace.into());
        }
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {}
            FallocateMode::PunchHole | FallocateMode::Zero | FallocateMode::ZeroKeepSize => {
                blocks.punch(offset_bytes, end);
            }
        }
        if mode != FallocateMode::PunchHole {
            blocks.allocate(offset_bytes, end);
        }
        if matches!(mode, FallocateMode::Allocate | FallocateMode::Zero) && end > blocks.size_bytes() {
            blocks.resize(end);
        }
        (node.attrs.mtime, node.attrs.ctime) = (now, now);
        Ok(self.attr(ino))
    }

    pub(super) fn seek(&self, node: &Node, offset_bytes: u64, whence: SeekWhence) -> Answer<Option<u64>> {
        match &self.live[&self.ino(node)?].node.body {
            Body::File(blocks) => Ok(match whence {
                SeekWhence::Data => blocks.next_data(offset_bytes),
                SeekWhence::Hole => blocks.next_hole(offset_bytes),
            }),
            Body::Directory(_) => Err(ErrorKind::IsDirectory.into()),
            Body::Symlink(_) | Body::Special { .. } => Err(ErrorKind::Invalid.into()),
        }
    }
}
