//! Noticing that another program has changed a file in the backend.
//!
//! # Invariants
//! V1. A dirty page is never dropped because of such a change. For a dirty file, the data here wins, and the case is
//!     counted and logged. Times here that are still to be sent do not win: they take the backend's value.
//! V2. Pages of a clean file are dropped with `rwsem` held for writing, and only if no call of this volume has begun
//!     since before the question. A wrong guess costs a read, never a byte.
//! V3. A write sets the file's time before it dirties a page. In between, a clean file has another time than the
//!     backend reports, as after a foreign change. So a file that seems to be changed is checked again with `rwsem`
//!     held for writing. If it is dirty by then, and the result of this volume's last change was never reported, the
//!     origin of the backend's time is unknown. It counts as this volume's own.
//!
//! # Kernel counterpart
//! `nfs_revalidate_inode`: close-to-open consistency, but also without an open.

use std::time::Duration;

use slackwater_sync::shim::atomic::Ordering;

use crate::backend::{Attr, Call, NodeKind};
use crate::error::FileError;
use crate::filemap::truncate::drop_pages;
use crate::inode::InodeRef;
use crate::super_block::SuperBlock;
use crate::units::{PageIndex, Tick};

impl SuperBlock {
    /// The attributes as programs see them. If the backend's last answer is older than `max_age`, it is asked again.
    /// A file that another program has changed loses its cached pages, unless it is dirty here.
    ///
    /// # Errors
    /// The volume is unmounted, or the backend fails.
    ///
    /// # Blocking
    /// Waits for the backend, if it is asked.
    pub fn revalidate(&self, inode: &InodeRef, max_age: Duration) -> Result<Attr, FileError> {
        self.alive()?;
        if !inode.is_fresh_within(max_age) {
            self.ask_again(inode)?;
        }
        Ok(inode.attr())
    }

    /// The same if the backend's last answer is not older. For a thread that must not wait.
    pub fn known_attr(&self, inode: &InodeRef, max_age: Duration) -> Option<Attr> {
        (self.alive().is_ok() && inode.is_fresh_within(max_age)).then(|| inode.attr())
    }

    /// The time of the engine's clock.
    pub fn now(&self) -> Tick {
        self.engine().clock.now()
    }

    fn ask_again(&self, inode: &InodeRef) -> Result<(), FileError> {
        if inode.is_out_of_reach() {
            return Ok(());
        }
        let (quiet, removals) = (inode.changes.quiet(), self.removals.quiet());
        let node = inode.node()?;
        let attr = self.call(None, |done| Call::Getattr { node, done })?;
        let quiet = quiet.filter(|quiet| {
            inode.changes.is_still(*quiet) && removals.is_some_and(|removals| self.removals.is_still(removals))
        });
        let Some(quiet) = quiet else {
            inode.refresh_if_newer(&attr);
            return Ok(());
        };
        if inode.kind() != NodeKind::File || !inode.shows_foreign_change(&attr) {
            inode.refresh(&attr, Some(quiet));
            return Ok(());
        }
        let _exclusive = inode.rwsem.write();
        if !inode.changes.is_still(quiet) {
            return Ok(()); // the next call asks again
        }
        let is_foreign = inode.shows_foreign_change(&attr); // V3
        inode.refresh(&attr, Some(quiet));
        if !is_foreign {
            return Ok(());
        }
        if !inode.has_clean_data() {
            self.changed_underneath.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(target: "slackwater::revalidate", volume = self.name(), id = %inode.id(),
                "changed in the backend while dirty here: the dirty data is written over the change");
            return Ok(());
        }
        tracing::debug!(target: "slackwater::revalidate", volume = self.name(), id = %inode.id(), "changed in the backend");
        inode.adopt_size(attr.size_bytes);
        inode.set_mtime(attr.mtime);
        drop_pages(inode, PageIndex(0)..PageIndex(u64::MAX));
        Ok(())
    }
}
