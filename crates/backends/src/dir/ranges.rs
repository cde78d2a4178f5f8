//! Ranges of files: allocating space, punching holes, and finding both.

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use slackwater::ErrorKind;
use slackwater::backend::{Attr, FallocateMode, Node, SeekWhence};

use super::errno::failed;
use super::volume::{Answer, Volume};

impl Volume {
    pub(super) fn fallocate(
        &self,
        node: &Node,
        mode: FallocateMode,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Answer<Attr> {
        let flags = match mode {
            FallocateMode::Allocate => FallocateFlags::empty(),
            FallocateMode::AllocateKeepSize => FallocateFlags::KEEP_SIZE,
            FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateMode::Zero => FallocateFlags::ZERO_RANGE,
            FallocateMode::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let writer = self.node(node)?.writer(&self.fds).map_err(failed("open for writing"))?; // R2
        if len_bytes == 0 {
            return Err(ErrorKind::Invalid.into());
        }
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > self.limits().max_file_bytes) {
            return Err(ErrorKind::TooLarge.into());
        }
        // A signal may interrupt it anywhere, and repeating it does no harm.
        while let Err(errno) = fallocate(writer, flags, offset_bytes, len_bytes) {
            if errno != Errno::INTR {
                return Err(failed("fallocate")(errno));
            }
        }
        self.getattr(node)
    }

    /// This moves the descriptor's position, which is not used: data is written at explicit offsets.
    pub(super) fn seek(&self, node: &Node, offset_bytes: u64, whence: SeekWhence) -> Answer<Option<u64>> {
        let reader = self.node(node)?.reader(&self.fds).map_err(failed("open for reading"))?;
        if offset_bytes > i64::MAX as u64 {
            return Ok(None);
        }
        let position = match whence {
            SeekWhence::Data => SeekFrom::Data(offset_bytes),
            SeekWhence::Hole => SeekFrom::Hole(offset_bytes),
        };
        match seek(reader, position) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(failed("lseek")(errno)),
        }
    }
}
