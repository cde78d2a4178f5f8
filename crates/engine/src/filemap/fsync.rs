//! Making a file durable, and hearing of what went wrong.
//!
//! # Kernel counterpart
//! `vfs_fsync_range`, `file_check_and_advance_wb_err`; sem. 8.3.

use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::backend::SyncScope;
use crate::error::FileError;
use crate::file::File;
use crate::inode::Inode;
use crate::writeback::sync::{last_error, sync_inode, write_and_wait};

impl File {
    /// Makes the file's data and metadata durable. It always makes an attempt, at once, and returns 0 errors
    /// only when the data is durable (P1, P2).
    ///
    /// # Errors
    /// What this attempt met, or a write-back error of earlier that this description has not heard of. The
    /// data is kept and retried in either case.
    ///
    /// # Blocking
    /// For the backend.
    pub fn fsync(&self) -> Result<(), FileError> {
        self.sync(SyncScope::All)
    }

    /// The same for the data and what is needed to read it, leaving out its times.
    ///
    /// # Errors
    /// As [`File::fsync`].
    ///
    /// # Blocking
    /// For the backend.
    pub fn fdatasync(&self) -> Result<(), FileError> {
        self.sync(SyncScope::Data)
    }

    fn sync(&self, scope: SyncScope) -> Result<(), FileError> {
        self.inode.super_block().alive()?;
        let attempt = sync_inode(self.inode.arc(), scope, None);
        let news = self.write_error();
        attempt?;
        news.map_or(Ok(()), |kind| Err(FileError::Writeback(kind)))
    }

    /// Hands all that is dirty now to the backend and waits until it has it. It need not be durable afterwards:
    /// for that there is [`File::fsync`].
    ///
    /// # Errors
    /// What this attempt met. The data is kept and retried.
    ///
    /// # Blocking
    /// For the backend.
    pub fn write_back(&self) -> Result<(), FileError> {
        self.inode.super_block().alive()?;
        write_back(self.inode.arc())
    }

    /// A write-back error that this description has not heard of, if there is one. It is still news afterwards. What
    /// `close` reports: the result of a `close` may reach no program (exit, `dup2`).
    pub fn unheard_error(&self) -> Option<crate::error::ErrorKind> {
        self.inode.errseq.check(*self.heard.lock())
    }

    /// A write-back error that this description has not heard of, if there is one. It has from now on.
    pub fn write_error(&self) -> Option<crate::error::ErrorKind> {
        let (old, new, news) = {
            let mut heard = self.heard.lock();
            let old = *heard;
            let news = self.inode.errseq.check_and_advance(&mut heard);
            (old, *heard, news)
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
    write_and_wait(inode, None)?;
    if inode.write_failures.load(Ordering::Acquire) != failures {
        return Err(last_error(inode).into());
    }
    Ok(())
}
