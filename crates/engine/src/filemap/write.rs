//! Writing to a file: bytes into frames, frames marked dirty.
//!
//! # Invariants
//! R1. A page's bytes change only under its frame's exclusive lock, in a frame that no unit reads. A page
//!     under write-back gets a fresh frame instead, so a write never waits for the device.
//! R2. A fresh frame carries the page's earlier bytes or zeroes wherever the payload does not cover it, before
//!     it is published to the arena or to readers. No byte of another file is ever visible.
//! R3. The mtime is set before the first page is touched, so whoever flushes the page carries it.
//! R4. The size grows page by page, before the page can be taken for a unit: with the frame locked, or with
//!     the leaf locked under which a fresh frame appears. A unit that ends at the size misses no byte.
//! R5. When write returns, every byte is in a frame whose record says dirty, in a file whose record has the
//!     size: a killed process loses nothing (P9).
//!
//! # Lock order
//! `rwsem`, for reading while the write stays inside the file and for writing when it extends it; then per
//! page the leaf, under which the frame is taken by trying.
//!
//! # Kernel counterpart
//! `generic_perform_write`, `__folio_mark_dirty`; sem. 2.1.

use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::error::{BackendError, ErrorKind, FileError};
use crate::file::File;
use crate::filemap::check_range;
use crate::filemap::write_flags::WriteFlags;
use crate::filemap::write_page::{Outcome, Span, write_page};
use crate::filemap::write_terms::Terms;
use crate::inode::{Inode, meta};
use crate::super_block::Left;
use crate::throttle::Pause;
use crate::units::Tick;
use crate::writeback::Pages;

/// What became of a write.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[non_exhaustive]
pub enum Written {
    /// This many bytes were taken; fewer than given when room ran out on the way.
    Bytes(usize),
    /// Nothing was taken: no frame is free, or the volume has used up its share. Write-back has been
    /// started; try again when it got on, or let [`File::write_at`] wait.
    NoRoom,
    /// Nothing was taken: what the backend has free is used up by what is dirty already.
    NoSpace,
}

/// What a write brings.
pub(super) trait Source {
    fn len(&self) -> usize;

    /// Writes what comes after the first `done` bytes at `offset_bytes`, up to the end of its page or further.
    fn put(
        &mut self,
        inode: &Arc<Inode>,
        offset_bytes: u64,
        done: usize,
        terms: Terms<'_>,
    ) -> Result<Outcome, FileError>;
}

/// Bytes that are copied.
impl Source for &[u8] {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn put(
        &mut self,
        inode: &Arc<Inode>,
        offset_bytes: u64,
        done: usize,
        terms: Terms<'_>,
    ) -> Result<Outcome, FileError> {
        let span = Span::first_of(offset_bytes, self.len() - done);
        write_page(inode, span, &self[done..done + span.len()], terms)
    }
}

impl File {
    /// Writes `bytes` at `offset_bytes` without ever waiting for room.
    ///
    /// # Errors
    /// The range is beyond what the backend can hold, or the volume is frozen or gone; nothing was written.
    /// A backend error when a page that is covered in part could not be read.
    ///
    /// # Blocking
    /// For the backend, if a page outside the cache is covered in part; for other writers and truncates of
    /// this file. Never for write-back.
    pub fn try_write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<Written, FileError> {
        self.try_write_for(self.memcg(), WriteFlags::NONE, offset_bytes, bytes)
    }

    /// As [`File::try_write_at`], for `memcg` instead of the tenant that opened the file, as `flags` say.
    ///
    /// # Errors
    /// As [`File::try_write_at`].
    ///
    /// # Blocking
    /// As [`File::try_write_at`].
    pub fn try_write_for(
        &self,
        memcg: &Arc<Memcg>,
        flags: WriteFlags,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<Written, FileError> {
        self.write_on(offset_bytes, bytes, Terms::patient(self, memcg, flags))
    }

    pub(super) fn write_on(&self, offset_bytes: u64, bytes: &[u8], terms: Terms<'_>) -> Result<Written, FileError> {
        let written = self.lock_and_write(offset_bytes, bytes, terms)?;
        terms.start_dontcache(self.inode.arc(), offset_bytes, written);
        Ok(written)
    }

    fn lock_and_write(&self, offset_bytes: u64, bytes: &[u8], terms: Terms<'_>) -> Result<Written, FileError> {
        let inode = self.inode.arc();
        let end = check_range(inode, offset_bytes, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(Written::Bytes(0));
        }
        {
            let _shared = inode.rwsem.read();
            if end <= inode.size_bytes() {
                return write_locked(inode, offset_bytes, bytes, terms);
            }
        }
        let _exclusive = inode.rwsem.write();
        write_locked(inode, offset_bytes, bytes, terms)
    }

    /// What the writer is to do before it writes on, so that memory fills no faster than the backend takes it: to be
    /// asked after each write that was taken. [`File::write_at`] does, and waits. Costs nothing when nothing was dirtied.
    ///
    /// # Blocking
    /// Never.
    pub fn balance_dirty_pages(&self) -> Pause {
        self.balance_dirty_pages_for(self.memcg())
    }

    /// As [`File::balance_dirty_pages`], for a write that was made for `memcg`.
    ///
    /// # Blocking
    /// Never.
    pub fn balance_dirty_pages_for(&self, memcg: &Arc<Memcg>) -> Pause {
        self.account.balance(self.inode().super_block(), memcg)
    }

    /// Waits as [`File::balance_dirty_pages`] says, until `deadline`.
    fn wait_for_balance(&self, deadline: Option<Tick>) {
        let engine = self.inode().super_block().engine();
        loop {
            let pause = self.balance_dirty_pages();
            let (Pause::For(time) | Pause::RetryAfter(time)) = pause else { return };
            let over = deadline.is_some_and(|deadline| deadline <= engine.clock.now());
            if over || engine.tunables.flusher_threads == 0 {
                return; // driven by hand, nothing changes by waiting
            }
            engine.room.sleep(time);
            if matches!(pause, Pause::For(_)) {
                return;
            }
        }
    }

    /// Writes all of `bytes` at the end of the file, without ever waiting for room. Returns where they went.
    ///
    /// # Errors
    /// As [`File::try_write_at`].
    ///
    /// # Blocking
    /// As [`File::try_write_at`].
    pub fn try_append(&self, bytes: &[u8]) -> Result<(u64, Written), FileError> {
        let inode = self.inode.arc();
        let _exclusive = inode.rwsem.write();
        let offset_bytes = inode.size_bytes();
        check_range(inode, offset_bytes, bytes.len() as u64)?;
        let terms = Terms::patient(self, self.memcg(), WriteFlags::NONE);
        Ok((offset_bytes, write_locked(inode, offset_bytes, bytes, terms)?))
    }

    /// Writes all of `bytes` at `offset_bytes`, waiting for room as long as it takes.
    ///
    /// # Errors
    /// As [`File::try_write_at`], or `NoSpace`; what came before the error was written.
    ///
    /// # Blocking
    /// Until write-back has made room, which is for ever on a dead backend.
    pub fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.write_at_with(WriteFlags::NONE, offset_bytes, bytes)
    }

    /// As [`File::write_at`], as `flags` say.
    ///
    /// # Errors
    /// As [`File::write_at`].
    ///
    /// # Blocking
    /// As [`File::write_at`].
    pub fn write_at_with(&self, flags: WriteFlags, offset_bytes: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.write_until(flags, offset_bytes + done as u64, &bytes[done..], None)?;
        }
        Ok(())
    }

    /// Writes `bytes` at `offset_bytes`, waiting for room until `deadline`. Returns how many were written.
    ///
    /// # Errors
    /// As [`File::try_write_at`]; [`FileError::NoRoom`] when nothing was written by the deadline, and `NoSpace`
    /// when nothing was because the backend is full.
    ///
    /// # Blocking
    /// Until write-back has made room, or `deadline`.
    pub fn write_at_until(&self, offset_bytes: u64, bytes: &[u8], deadline: Option<Tick>) -> Result<usize, FileError> {
        self.write_until(WriteFlags::NONE, offset_bytes, bytes, deadline)
    }

    fn write_until(
        &self,
        flags: WriteFlags,
        offset_bytes: u64,
        bytes: &[u8],
        deadline: Option<Tick>,
    ) -> Result<usize, FileError> {
        let engine = self.inode.super_block().engine();
        let mut done = 0;
        // What had been given before the attempt that is waited for. Read only once there was no room: it takes
        // a lock that all volumes share.
        let mut seen = None;
        while done < bytes.len() {
            let written = self.try_write_for(self.memcg(), flags, offset_bytes + done as u64, &bytes[done..])?;
            match (written, seen.take()) {
                (Written::Bytes(taken), _) => {
                    done += taken;
                    self.wait_for_balance(deadline);
                }
                (Written::NoSpace, _) if done == 0 => return Err(BackendError::from(ErrorKind::NoSpace).into()),
                (Written::NoSpace, _) => return Ok(done),
                (Written::NoRoom, None) => seen = Some(engine.room.given()),
                (Written::NoRoom, Some(given)) => {
                    engine.run_by_hand();
                    if !engine.room.wait(given, &*engine.clock, deadline) {
                        return if done == 0 { Err(FileError::NoRoom) } else { Ok(done) };
                    }
                }
            }
        }
        Ok(done)
    }
}

/// The write itself; the caller holds `rwsem` as the range requires. Whether there is really no space is asked
/// before it is said.
pub(super) fn write_locked(
    inode: &Arc<Inode>,
    offset_bytes: u64,
    mut source: impl Source,
    terms: Terms<'_>,
) -> Result<Written, FileError> {
    loop {
        let written = write_pages(inode, offset_bytes, &mut source, terms)?;
        if written != Written::NoSpace {
            return Ok(written);
        }
        if terms.must_not_wait() {
            return Err(FileError::WouldBlock);
        }
        match inode.super_block().confirm_space()? {
            Left::Enough => {}
            Left::Unsure => return Ok(Written::NoRoom),
            Left::Nothing => return Ok(Written::NoSpace),
        }
    }
}

fn write_pages(
    inode: &Arc<Inode>,
    offset_bytes: u64,
    source: &mut impl Source,
    terms: Terms<'_>,
) -> Result<Written, FileError> {
    let sb = inode.super_block();
    sb.writable()?;
    if !terms.memcg.may_dirty() {
        let engine = sb.engine();
        terms.memcg.flush_foreign(engine.clock.now(), &engine.tunables);
        terms.memcg.ask_for_room(&engine.super_blocks());
        return Ok(Written::NoRoom);
    }
    if inode.slot().is_none() && !begin_dirtying(inode, terms)? {
        return Ok(Written::NoRoom);
    }
    inode.set_mtime(sb.engine().clock.wall()); // R3
    let size_before = inode.size_bytes();
    let mut done = 0;
    let mut dirtied = Pages::default();
    let mut failed = None;
    let mut space = true;
    while done < source.len() {
        match source.put(inode, offset_bytes + done as u64, done, terms) {
            Ok(Outcome::Taken { bytes, newly }) => {
                done += bytes;
                dirtied = dirtied.plus(newly);
            }
            Ok(Outcome::NoRoom) => break,
            Ok(Outcome::NoSpace) => {
                space = false;
                break;
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let grew = inode.size_bytes() > size_before;
    if !dirtied.is_zero() || grew {
        account(inode, dirtied, grew, terms);
    }
    match failed {
        Some(error) if done == 0 => Err(error),
        None if done == 0 && !space => Ok(Written::NoSpace),
        None if done == 0 => {
            sb.make_room();
            Ok(Written::NoRoom)
        }
        Some(_) | None => Ok(Written::Bytes(done)),
    }
}

/// N2: takes the record and the node that a dirty inode holds. False when there is no room for either.
fn begin_dirtying(inode: &Arc<Inode>, terms: Terms<'_>) -> Result<bool, FileError> {
    let node = match inode.open_node() {
        Some(node) => node,
        None if terms.must_not_wait() => return Err(FileError::WouldBlock),
        None => inode.node()?,
    };
    inode.attach_wb(terms.memcg);
    let bdi = inode.super_block().bdi();
    if !bdi.try_pin_node() {
        inode.super_block().make_room();
        return Ok(false);
    }
    match inode.ensure_slot(&node) {
        Some(true) => {}
        // Somebody else was first, with a pin of his own.
        Some(false) => bdi.node_unpinned(),
        None => {
            bdi.node_unpinned();
            inode.super_block().make_room();
            return Ok(false);
        }
    }
    Ok(true)
}

fn account(inode: &Arc<Inode>, dirtied: Pages, grew: bool, terms: Terms<'_>) {
    inode.account(dirtied);
    inode.mark_dirty(if grew { meta::DIRTY_SYNC | meta::DIRTY_DATASYNC } else { meta::DIRTY_SYNC });
    let wb = inode.wb();
    if dirtied.reclaimable > 0 {
        let pages = dirtied.reclaimable.unsigned_abs();
        wb.throttle.note_dirtied(pages);
        terms.account.inspect(|account| account.note_dirtied(pages));
        if wb.memcg.id() != terms.memcg.id() {
            terms.memcg.note_foreign(&wb, wb.pool.clock.now());
        }
    }
    if wb.is_over_background() || wb.bdi.nodes_are_short() {
        wb.start_background();
    }
}
