//! Making a file durable, and reporting write-back errors.
//!
//! # Kernel counterpart
//! `vfs_fsync_range`, `file_check_and_advance_wb_err`.

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::SyncScope;
use crate::error::{ErrorKind, FileError};
use crate::errseq::ErrCursor;
use crate::file::File;
use crate::inode::Inode;
use crate::writeback::sync::{last_error, sync_inode, write_and_wait};
use crate::writeback::writepages::Awaits;

impl File {
    /// Makes the file's data and metadata durable. It always makes an attempt, at once, and returns `Ok` only if the
    /// data is durable (P1, P2).
    ///
    /// # Errors
    /// The error of this attempt, or an earlier write-back error not yet reported through this description. In either
    /// case the data is kept and retried. `Stale` while the backend has the data under no name: see
    /// [`VolumeStatus::removed_files`](crate::VolumeStatus::removed_files).
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn fsync(&self) -> Result<(), FileError> {
        self.sync(SyncScope::All)
    }

    /// Makes the file's data durable, and the metadata needed to read it: [`File::fsync`] without the times.
    ///
    /// # Errors
    /// As [`File::fsync`].
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn fdatasync(&self) -> Result<(), FileError> {
        self.sync(SyncScope::Data)
    }

    fn sync(&self, scope: SyncScope) -> Result<(), FileError> {
        self.inode.super_block().alive()?;
        let attempt = sync_inode(self.inode.arc(), scope, None);
        let news = self.take_write_error();
        attempt?;
        if self.inode.super_block().is_homeless(self.inode.arc()) {
            return Err(FileError::Writeback(ErrorKind::Stale));
        }
        news.map_or(Ok(()), |kind| Err(FileError::Writeback(kind)))
    }

    /// Writes all dirty data back and waits until the backend has it. The data need not be durable afterwards; use
    /// [`File::fsync`] for that.
    ///
    /// # Errors
    /// The error of this attempt. The data is kept and retried.
    ///
    /// # Blocking
    /// Waits for the backend.
    pub fn write_back(&self) -> Result<(), FileError> {
        self.inode.super_block().alive()?;
        write_back(self.inode.arc())
    }

    /// A write-back error not yet reported through this description, without marking it as reported. `close` returns
    /// this, because its result may reach no program (exit, `dup2`).
    pub fn peek_write_error(&self) -> Option<ErrorKind> {
        self.inode.errseq.check(*self.wb_err.lock())
    }

    /// Which write-back errors were reported through this description.
    pub fn error_cursor(&self) -> ErrCursor {
        *self.wb_err.lock()
    }

    /// Continues after the errors that the same description has reported in an earlier process. Those of the inode are
    /// [restored](crate::Inode::restore_errors) first; if it has none, the cursor means nothing.
    pub fn restore_error_cursor(&self, cursor: ErrCursor) {
        if self.inode.error_bits() != 0 {
            *self.wb_err.lock() = cursor;
        }
    }

    /// A write-back error not yet reported through this description. It counts as reported afterwards.
    pub fn take_write_error(&self) -> Option<ErrorKind> {
        let (old, new, news) = {
            let mut wb_err = self.wb_err.lock();
            let old = *wb_err;
            let news = self.inode.errseq.check_and_advance(&mut wb_err);
            (old, *wb_err, news)
        };
        if let Some(kind) = news {
            tracing::trace!(target: "slackwater::writeback", volume = self.inode.super_block().name(),
                ino = self.inode.id().ino, %kind, ?old, ?new, "file_check_and_advance_wb_err");
        }
        news
    }
}

/// See [`File::write_back`].
pub(crate) fn write_back(inode: &Arc<Inode>) -> Result<(), FileError> {
    let failures = inode.write_failures.load(Ordering::Acquire);
    write_and_wait(inode, None, Awaits::Pages)?;
    if inode.write_failures.load(Ordering::Acquire) != failures {
        return Err(last_error(inode).into());
    }
    Ok(())
}
