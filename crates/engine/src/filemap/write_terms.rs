//! What a write may do to get what it needs: wait for the backend, be refused, or take the last of it.
//!
//! # Kernel counterpart
//! `IOCB_NOWAIT`; `PF_MEMALLOC` for pages that memory is to be got back from; `set_active_memcg` for the tenant.

use slackwater_arena::Pool;
use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::error::FileError;
use crate::file::File;
use crate::filemap::check_range;
use crate::filemap::read_flags::ReadFlags;
use crate::filemap::write::{Source, Written, write_locked};
use crate::filemap::write_flags::WriteFlags;
use crate::inode::Inode;
use crate::super_block::Space;
use crate::units::PageIndex;
use crate::writeback::{BackingDevInfo, WriterAccount};

/// For whom, and on which terms: see the [module documentation](self).
#[derive(Copy, Clone)]
pub(super) struct Terms<'a> {
    kind: Kind,
    /// Who pays for the frames.
    pub(super) memcg: &'a Arc<Memcg>,
    /// Whose time they cost; nobody's, where no writer could be made to wait.
    pub(super) account: Option<&'a WriterAccount>,
    flags: WriteFlags,
}

#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Kind {
    /// Waits for the backend where a page has to be read, and is refused when room or space is used up.
    Patient,
    /// The same, but does not wait.
    Nowait,
    /// Does not wait, and takes the last free frames and space that the backend may not have: the bytes are in memory that
    /// a kernel wants back, and cannot be refused.
    Mapping,
}

impl<'a> Terms<'a> {
    pub(super) fn patient(file: &'a File, memcg: &'a Arc<Memcg>, flags: WriteFlags) -> Self {
        Self { kind: Kind::Patient, memcg, account: Some(&file.account), flags }
    }

    fn nowait(file: &'a File, memcg: &'a Arc<Memcg>, flags: WriteFlags) -> Self {
        Self { kind: Kind::Nowait, memcg, account: Some(&file.account), flags }
    }

    fn mapping(memcg: &'a Arc<Memcg>) -> Self {
        Self { kind: Kind::Mapping, memcg, account: None, flags: WriteFlags::NONE }
    }

    /// Whether what it brings here is to leave again.
    pub(super) fn is_dontcache(self) -> bool {
        self.flags.contains(WriteFlags::DONTCACHE)
    }

    /// What was `written` from `offset_bytes` on is to be written back at once, if it is to leave. The caller has let go of
    /// the file.
    pub(super) fn start_dontcache(self, inode: &Arc<Inode>, offset_bytes: u64, written: Written) {
        let Written::Bytes(bytes @ 1..) = written else { return };
        if self.is_dontcache() {
            let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + bytes as u64);
            inode.super_block().engine().dontcache.write_ended(inode, pages, !self.must_not_wait());
        }
    }

    pub(super) fn must_not_wait(self) -> bool {
        matches!(self.kind, Kind::Nowait | Kind::Mapping)
    }

    pub(super) fn pool(self) -> Pool {
        match self.kind {
            Kind::Patient | Kind::Nowait => Pool::Normal,
            Kind::Mapping => Pool::Reserve,
        }
    }

    /// Pins one more frame; false when the share is used up.
    pub(super) fn pin(self, bdi: &BackingDevInfo) -> bool {
        bdi.try_pin()
    }

    /// Reserves a page of space on the backend; false when it is used up.
    pub(super) fn reserve(self, space: &Space) -> bool {
        if self.kind == Kind::Mapping {
            space.reserve(1);
            return true;
        }
        space.try_reserve()
    }
}

impl File {
    /// As [`File::try_write_at`], but never waits for the backend.
    ///
    /// # Errors
    /// As [`File::try_write_at`], and [`FileError::WouldBlock`] if a page has to be read first, the backend has
    /// to be asked for space, or somebody who may wait for the backend has the file; nothing was written.
    ///
    /// # Blocking
    /// Never, but for others that copy to or from the same page.
    pub fn write_nowait(&self, offset_bytes: u64, bytes: &[u8]) -> Result<Written, FileError> {
        self.write_nowait_for(self.memcg(), WriteFlags::NONE, offset_bytes, bytes)
    }

    /// As [`File::write_nowait`], for `memcg`, as `flags` say.
    ///
    /// # Errors
    /// As [`File::write_nowait`].
    ///
    /// # Blocking
    /// As [`File::write_nowait`].
    pub fn write_nowait_for(
        &self,
        memcg: &Arc<Memcg>,
        flags: WriteFlags,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<Written, FileError> {
        self.write_at_once(offset_bytes, bytes, memcg, flags)
    }

    pub(super) fn write_at_once(
        &self,
        offset_bytes: u64,
        source: impl Source,
        memcg: &Arc<Memcg>,
        flags: WriteFlags,
    ) -> Result<Written, FileError> {
        let terms = Terms::nowait(self, memcg, flags);
        let written = self.try_lock_and_write(offset_bytes, source, terms)?;
        terms.start_dontcache(self.inode().arc(), offset_bytes, written);
        Ok(written)
    }

    fn try_lock_and_write(
        &self,
        offset_bytes: u64,
        source: impl Source,
        terms: Terms<'_>,
    ) -> Result<Written, FileError> {
        let inode = self.inode().arc();
        let end = check_range(inode, offset_bytes, source.len() as u64)?;
        if source.len() == 0 {
            return Ok(Written::Bytes(0));
        }
        {
            let _shared = inode.rwsem.try_read().ok_or(FileError::WouldBlock)?;
            if end <= inode.size_bytes() {
                return write_locked(inode, offset_bytes, source, terms);
            }
        }
        let _exclusive = inode.rwsem.try_write().ok_or(FileError::WouldBlock)?;
        write_locked(inode, offset_bytes, source, terms)
    }

    /// Writes pages that a kernel held for a mapping of the file, for the tenant of its wb, since nobody knows who stored
    /// to them. The share of the volume and the limit of the tenant count as for every write. The space on the backend does
    /// not, and the arena's reserve is open to it.
    ///
    /// # Errors
    /// As [`File::write_nowait`]. After [`FileError::WouldBlock`] see [`File::prepare_write_from_mapping`].
    ///
    /// # Blocking
    /// As [`File::write_nowait`].
    pub fn write_from_mapping(&self, offset_bytes: u64, bytes: &[u8]) -> Result<Written, FileError> {
        self.try_lock_and_write(offset_bytes, bytes, Terms::mapping(&self.inode().memcg()))
    }

    /// Brings what [`File::write_from_mapping`] needs from the backend for the page at `offset_bytes`.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// For the backend, and for a frame.
    pub fn prepare_write_from_mapping(&self, offset_bytes: u64) -> Result<(), FileError> {
        self.inode().node()?;
        self.read_at_for(&self.inode().memcg(), ReadFlags::NONE, offset_bytes, &mut [0])?;
        Ok(())
    }
}
