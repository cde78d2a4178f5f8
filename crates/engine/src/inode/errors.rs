//! The write-back errors of an inode, for a front end that outlives its process.
//!
//! The front end keeps the errors of each inode, and the [cursor](crate::ErrCursor) of each description, and gives them to
//! the engine of the next process. Only an error costs anything.

use slackwater_sync::shim::atomic::Ordering;

use super::Inode;
use crate::error::ErrorKind;
use crate::super_block::SuperBlock;
use crate::units::NodeId;

/// See [`SuperBlock::on_write_error`].
pub(crate) type OnWriteError = dyn Fn(NodeId) + Send + Sync;

impl Inode {
    /// Records an error for every description that is open, and for the next one if none sees it (P2).
    pub(crate) fn latch_error(&self, kind: ErrorKind) {
        self.errseq.set(kind);
        if let Some(notify) = self.sb.on_write_error.get() {
            notify(self.id);
        }
    }

    /// The inode's last write-back error, whether a description has reported it, and how many were reported. 0: there
    /// was none since the inode came into memory.
    pub fn error_bits(&self) -> u32 {
        self.errseq.to_bits()
    }

    /// Continues after the errors of the same inode in an earlier process: `bits` is its [`error_bits`](Self::error_bits)
    /// there. An error of this process stays new to everyone.
    pub fn restore_errors(&self, bits: u32) {
        self.errseq.restore(bits);
    }

    /// Continues after an earlier process that has emptied the file: the data that replaces it is sent to the disk as soon
    /// as it is written.
    pub fn restore_emptied(&self) {
        self.emptied.store(true, Ordering::Release);
    }
}

impl SuperBlock {
    /// Calls `notify` after each failed attempt to write an inode back, on the thread that finds out. It must not wait. Only
    /// the first call registers.
    pub fn on_write_error(&self, notify: impl Fn(NodeId) + Send + Sync + 'static) {
        // A volume has one front end.
        let _ = self.on_write_error.set(Box::new(notify));
    }
}
