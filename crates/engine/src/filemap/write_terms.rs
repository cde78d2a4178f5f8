//! The terms of one write, passed down to each of its pages: which tenant pays, and what the write may do to get a
//! frame.
//!
//! # Kernel counterpart
//! `IOCB_NOWAIT`; `PF_MEMALLOC` for pages from a mapping; `set_active_memcg` for the tenant.

use slackwater_arena::Pool;
use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::file::File;
use crate::filemap::request::{WaitFor, WriteFlags, WriteRequest};
use crate::filemap::write::Written;
use crate::inode::Inode;
use crate::super_block::Space;
use crate::units::PageIndex;
use crate::writeback::WriterAccount;

/// See the [module documentation](self).
#[derive(Copy, Clone)]
pub(super) struct Terms<'a> {
    /// The tenant that pays for the frames.
    pub(super) memcg: &'a Arc<Memcg>,
    /// The writer that pauses for them; `None` if no writer could be made to wait.
    pub(super) account: Option<&'a WriterAccount>,
    /// May the write wait for the backend and for the file's lock? No write waits for a frame here.
    pub(super) may_wait: bool,
    flags: WriteFlags,
    from_mapping: bool,
}

impl<'a> Terms<'a> {
    /// The terms of `request` on `file`, charged to `memcg`.
    #[inline]
    pub(super) fn new(file: &'a File, memcg: &'a Arc<Memcg>, request: &WriteRequest<'_>) -> Self {
        let &WriteRequest { flags, wait, from_mapping, .. } = request;
        let account = (!from_mapping).then_some(&file.account);
        Self { memcg, account, may_wait: wait != WaitFor::Nothing, flags, from_mapping }
    }

    /// Whether pages that the write brings in are dropped once they are durable.
    pub(super) fn is_dontcache(self) -> bool {
        self.flags.contains(WriteFlags::DONTCACHE)
    }

    /// Starts write-back of what a DONTCACHE write has `written` from `offset_bytes` on. The caller has released the
    /// file's lock.
    pub(super) fn start_dontcache(self, inode: &Arc<Inode>, offset_bytes: u64, written: Written) {
        let Written::Bytes(bytes @ 1..) = written else { return };
        if self.is_dontcache() {
            let pages = PageIndex::of(offset_bytes)..PageIndex::end_of(offset_bytes + bytes as u64);
            inode.super_block().engine().dontcache.write_ended(inode, pages, self.may_wait);
        }
    }

    /// The frames that the write may take. Memory that a kernel wants back cannot be refused, so its pages may take the
    /// last.
    pub(super) fn pool(self) -> Pool {
        if self.from_mapping { Pool::Reserve } else { Pool::Normal }
    }

    /// Reserves a page of space on the backend; false when it is used up. For pages from a mapping it is reserved even
    /// then.
    pub(super) fn reserve(self, space: &Space) -> bool {
        if self.from_mapping {
            space.reserve(1);
            return true;
        }
        space.try_reserve()
    }
}
