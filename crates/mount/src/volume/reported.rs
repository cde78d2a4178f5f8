//! Errors of write-back on a kept mount: each open file reports each of them once, whichever process serves the mount.
//! The truncations that a close has to follow up are recorded with them.
//!
//! The record of the mount has the errors of each file that the kernel knows, and in the entry of each open file those
//! that it has reported. Only errors change them.
//!
//! # Invariants
//! E1. The errors of a file in the record are not older than those that one of its open files has reported. They are read
//!     and recorded under a lock, so that an older state never replaces a newer one.
//! E2. A sync that reports an error is recorded as such before the error counts as reported, and until the kernel has
//!     the reply. So a sync that comes again reports the same error, and no later one does.
//! E3. The errors of a file are in the record only while the kernel knows the file.

use rustix::io::Errno;
use slackwater::NodeId;
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::Ordering;

use crate::takeover::{Keeping, Outcome, Remembered};
use crate::volume::Volume;
use crate::volume::nodes::Node;
use crate::volume::open_files::OpenFile;
use crate::volume::repeated::begin_ns;

impl Volume {
    /// Records errors from now on, if the mount is kept. No file is open yet.
    pub(crate) fn register_error_hook(self: &Arc<Self>) {
        if self.keeping.is_some() {
            let volume = Arc::downgrade(self);
            self.sb.on_write_error(move |inode| {
                if let Some(volume) = volume.upgrade() {
                    volume.note_error(inode);
                }
            });
        }
    }

    fn note_error(&self, inode: NodeId) {
        let node = self.nodes.number_of(inode).and_then(|number| self.nodes.get(number));
        if let Some((keeping, node)) = self.keeping.as_ref().zip(node) {
            self.remember(keeping, &node);
        }
    }

    /// Records what the next process must know of a file: its errors, and whether it was emptied.
    pub(super) fn remember(&self, keeping: &Keeping, node: &Node) {
        let what = || Remembered { errors: node.inode.error_bits(), is_emptied: node.emptied.get().is_some() };
        if what() == Remembered::default() && !node.is_remembered.load(Ordering::Acquire) {
            return;
        }
        let _one = self.remembering.lock();
        let what = what();
        let is_needed = what != Remembered::default();
        node.is_remembered.store(is_needed, Ordering::Release);
        if !self.nodes.get(node.id()).is_some_and(|known| std::ptr::eq(Arc::as_ptr(&known), node)) {
            return; // E3
        }
        if !is_needed {
            keeping.record.forget(node.id());
        } else if !keeping.record.remember(node.id(), what) && what.errors != 0 {
            tracing::warn!(node = node.id(), "too many files have errors: the next process will not report this one's");
        }
    }

    /// Notes that a file loses all of its bytes: the next data replaces what the backend has.
    pub(super) fn note_emptying(&self, node: &Node) {
        if node.emptied.set()
            && let Some(keeping) = &self.keeping
        {
            self.remember(keeping, node);
        }
    }

    /// RELEASE: the last descriptor of an open file was closed. The new bytes of an emptied file are written back, if no later
    /// truncation has begun and no other writer has the file open.
    pub(super) fn note_release(&self, open: &OpenFile) {
        let is_last_writer = open.node.writers.load(Ordering::SeqCst) == 1;
        if is_last_writer
            && open.node.emptied.clear(open.written_back.load(Ordering::Acquire))
            && let Some(keeping) = &self.keeping
        {
            self.remember(keeping, &open.node);
        }
    }

    /// The kernel has forgotten a file that was recorded (E3).
    pub(super) fn forget_remembered(&self, number: u64) {
        if let Some(keeping) = &self.keeping {
            let _one = self.remembering.lock();
            keeping.record.forget(number);
        }
    }

    /// Records that a sync through an open file returns an error, and that the file has reported what it had to.
    pub(super) fn record_reported(&self, open: &OpenFile, handle: u64, unique: u64, errno: Errno) {
        let Some(keeping) = &self.keeping else { return };
        keeping.record.begin_change(unique, begin_ns());
        keeping.record.complete_change(unique, Outcome::Reported(errno)); // E2
        self.record_cursor(keeping, open, handle);
    }

    fn record_cursor(&self, keeping: &Keeping, open: &OpenFile, handle: u64) {
        self.remember(keeping, &open.node); // E1
        keeping.record.move_cursor(handle, open.file.error_cursor());
    }

    /// Answers a request that an earlier process has carried out. If that was a sync that reports an error, the error may
    /// not count as reported yet (E2).
    pub(super) fn finish_report(&self, keeping: &Keeping, unique: u64, handle: u64) {
        let outcome = keeping.record.change(unique).and_then(|change| change.outcome);
        if let (Some(Outcome::Reported(_)), Some(open)) = (outcome, self.handles.file(handle)) {
            // The reply has the error.
            let _ = open.file.take_write_error();
            self.record_cursor(keeping, &open, handle);
        }
    }

    /// Continues after the errors and truncations of an earlier process. No file is open yet.
    pub(super) fn inherit_remembered(&self, keeping: &Keeping) {
        for (number, what) in keeping.record.remembered() {
            let node = self.nodes.get(number).map_or_else(|| self.find_again(number), Ok);
            match node {
                Ok(node) => {
                    if what.errors != 0 {
                        node.inode.restore_errors(what.errors);
                    }
                    if what.is_emptied {
                        node.inode.restore_emptied();
                        node.emptied.set();
                    }
                    self.remember(keeping, &node);
                }
                // It cannot be opened either.
                Err(_) => self.forget_remembered(number),
            }
        }
    }
}
