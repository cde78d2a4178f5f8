//! Writing to a file: copying bytes into frames and marking the frames dirty.
//!
//! # Invariants
//! R1. A page's bytes change only under its frame's exclusive lock, in a frame that no unit reads. A page
//!     under write-back gets a fresh frame instead, so a write never waits for the device.
//! R2. A fresh frame has the page's earlier bytes, or zeroes, wherever the payload does not cover it, before it is
//!     published to the arena or to readers. No byte of another file is ever visible.
//! R3. The mtime is set before the first page is touched, so that a flush of the page carries it.
//! R4. The size grows page by page, before the page can be taken for a unit: with the frame locked, or with the leaf
//!     locked in which a fresh frame appears. A unit that ends at the size misses no byte.
//! R5. When a write returns, every byte is in a frame whose record says dirty, in a file whose record has the size. A
//!     killed process loses nothing (P9).
//!
//! # Lock order
//! `rwsem`, for reading while the write stays inside the file and for writing if it extends the file. Then, for each
//! page, the leaf, under which the frame is only try-locked.
//!
//! # Kernel counterpart
//! `generic_perform_write`, `__folio_mark_dirty`.

use slackwater_sync::shim::Arc;

use crate::cgroup::Memcg;
use crate::error::{BackendError, ErrorKind, FileError};
use crate::file::File;
use crate::filemap::check_range;
use crate::filemap::request::{ReadRequest, WaitFor, WriteRequest};
use crate::filemap::write_page::{Outcome, Span, write_page};
use crate::filemap::write_terms::Terms;
use crate::inode::{Inode, meta};
use crate::super_block::Left;
use crate::throttle::Pause;
use crate::units::Tick;
use crate::wait::sleep;
use crate::writeback::Pages;

/// The outcome of a write.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
#[must_use = "fewer bytes may have been taken than given"]
#[non_exhaustive]
pub enum Written {
    /// This many bytes were taken: fewer than given if frames or space ran out on the way.
    Bytes(usize),
    /// Nothing was taken: no frame is free, or the volume has used up its share, or the tenant is at its limit.
    /// Write-back has been started; try again later, or let the write wait for it ([`WaitFor::Writeback`]).
    NoFrames,
    /// Nothing was taken: dirty data has used up the backend's free space.
    NoSpace,
}

/// The payload of a write.
pub(super) trait Source {
    fn len(&self) -> usize;

    /// Writes the payload after its first `done` bytes to `offset_bytes`, up to the end of that page or further.
    fn put(
        &mut self,
        inode: &Arc<Inode>,
        offset_bytes: u64,
        done: usize,
        terms: Terms<'_>,
    ) -> Result<Outcome, FileError>;
}

/// A payload that is copied.
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
    /// Writes all of `bytes` at `offset_bytes`. Waits as long as it takes, so that memory fills no faster than the
    /// backend takes data.
    ///
    /// # Errors
    /// As [`File::write`], or `NoSpace` if the backend is full; the bytes before the error were written.
    ///
    /// # Blocking
    /// For the backend and for write-back, which is for ever if the backend is dead.
    pub fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut done = 0;
        while done < bytes.len() {
            match self.write(WriteRequest::at(offset_bytes + done as u64), &bytes[done..])? {
                Written::Bytes(taken) => done += taken,
                Written::NoFrames => {} // only with a deadline
                Written::NoSpace => return Err(BackendError::from(ErrorKind::NoSpace).into()),
            }
        }
        Ok(())
    }

    /// Writes `bytes` as `request` says.
    ///
    /// # Errors
    /// The range is beyond what the backend can hold, or the volume is frozen or unmounted: nothing was
    /// written. [`FileError::WouldBlock`] if the request does not allow the wait that it takes. A backend error if a
    /// page that is covered in part could not be read.
    ///
    /// # Blocking
    /// As the request allows: see [`WaitFor`].
    pub fn write(&self, request: WriteRequest<'_>, bytes: &[u8]) -> Result<Written, FileError> {
        match request.wait {
            WaitFor::Nothing | WaitFor::Backend => self.write_once(request, bytes),
            WaitFor::Writeback => self.write_waiting(request, bytes, None),
            WaitFor::WritebackUntil(deadline) => self.write_waiting(request, bytes, Some(deadline)),
        }
    }

    /// Writes until all of `bytes` are taken, the backend is full or `deadline` has come.
    fn write_waiting(
        &self,
        request: WriteRequest<'_>,
        bytes: &[u8],
        deadline: Option<Tick>,
    ) -> Result<Written, FileError> {
        let engine = self.inode.super_block().engine();
        let mut done = 0;
        // The count before the attempt that is waited for. It is read only after an attempt has failed, because it
        // takes a lock that all volumes share.
        let mut seen = None;
        while done < bytes.len() {
            match (self.write_once(request.after(done), &bytes[done..])?, seen.take()) {
                (Written::Bytes(taken), _) => {
                    done += taken;
                    self.wait_for_balance(request.memcg.unwrap_or_else(|| self.memcg()), deadline);
                }
                (Written::NoSpace, _) if done == 0 => return Ok(Written::NoSpace),
                (Written::NoSpace, _) => break,
                (Written::NoFrames, None) => seen = Some(engine.progress.count()),
                (Written::NoFrames, Some(given)) => {
                    engine.run_by_hand();
                    if !engine.progress.wait(given, deadline) {
                        return Ok(if done == 0 { Written::NoFrames } else { Written::Bytes(done) });
                    }
                }
            }
        }
        Ok(Written::Bytes(done))
    }

    /// Writes what can be taken without waiting for frames.
    pub(super) fn write_once(&self, request: WriteRequest<'_>, source: impl Source) -> Result<Written, FileError> {
        let of_inode;
        let memcg = match request.memcg {
            Some(memcg) => memcg,
            None if request.from_mapping => {
                of_inode = self.inode.memcg();
                &of_inode
            }
            None => self.memcg(),
        };
        let terms = Terms::new(self, memcg, &request);
        let written = self.lock_and_write(request.offset_bytes, source, terms)?;
        terms.start_dontcache(self.inode.arc(), request.offset_bytes, written);
        Ok(written)
    }

    fn lock_and_write(&self, offset_bytes: u64, source: impl Source, terms: Terms<'_>) -> Result<Written, FileError> {
        let inode = self.inode.arc();
        let end = check_range(inode, offset_bytes, source.len() as u64)?;
        if source.len() == 0 {
            return Ok(Written::Bytes(0));
        }
        let rwsem = &inode.rwsem;
        {
            let _shared =
                if terms.may_wait { Some(rwsem.read()) } else { rwsem.try_read() }.ok_or(FileError::WouldBlock)?;
            if end <= inode.size_bytes() {
                return write_locked(inode, offset_bytes, source, terms);
            }
        }
        let _exclusive =
            if terms.may_wait { Some(rwsem.write()) } else { rwsem.try_write() }.ok_or(FileError::WouldBlock)?;
        write_locked(inode, offset_bytes, source, terms)
    }

    /// Writes `bytes` at the end of the file, without waiting for write-back. Returns the offset it wrote at.
    ///
    /// # Errors
    /// As [`File::write`].
    ///
    /// # Blocking
    /// As [`WaitFor::Backend`] says.
    pub fn try_append(&self, bytes: &[u8]) -> Result<(u64, Written), FileError> {
        let inode = self.inode.arc();
        let _exclusive = inode.rwsem.write();
        let offset_bytes = inode.size_bytes();
        check_range(inode, offset_bytes, bytes.len() as u64)?;
        let request = WriteRequest::at(offset_bytes).wait(WaitFor::Backend);
        let terms = Terms::new(self, self.memcg(), &request);
        Ok((offset_bytes, write_locked(inode, offset_bytes, bytes, terms)?))
    }

    /// Reads from the backend what a [`WriteRequest::from_mapping`] needs of the page at `offset_bytes`.
    ///
    /// # Errors
    /// The backend's.
    ///
    /// # Blocking
    /// Waits for the backend, and for a frame.
    pub fn prepare_write_from_mapping(&self, offset_bytes: u64) -> Result<(), FileError> {
        self.inode.node()?;
        self.read(ReadRequest::at(offset_bytes).memcg(&self.inode.memcg()), &mut [0])?;
        Ok(())
    }

    /// How long a writer that wrote for `memcg` is to pause before its next write, so that memory fills no faster than
    /// the backend takes data. Call it after each write that was taken, unless the write waited for write-back: that
    /// has paused already. Costs nothing when nothing was dirtied.
    ///
    /// # Blocking
    /// Never.
    pub fn balance_dirty_pages(&self, memcg: &Arc<Memcg>) -> Pause {
        self.account.balance(self.inode().super_block(), memcg)
    }

    /// Pauses as [`File::balance_dirty_pages`] says, until `deadline` at most.
    fn wait_for_balance(&self, memcg: &Arc<Memcg>, deadline: Option<Tick>) {
        let engine = self.inode().super_block().engine();
        loop {
            let pause = self.balance_dirty_pages(memcg);
            let (Pause::For(time) | Pause::RetryAfter(time)) = pause else { return };
            let over = deadline.is_some_and(|deadline| deadline <= engine.clock.now());
            if over || engine.tunables.flusher_threads == 0 {
                return; // waiting changes nothing in an engine that is stepped by hand
            }
            sleep(time);
            if matches!(pause, Pause::For(_)) {
                return;
            }
        }
    }
}

/// The write itself. The caller holds `rwsem` as the range requires. The backend is asked for its free space before the
/// write is refused for lack of it.
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
        if !terms.may_wait {
            return Err(FileError::WouldBlock);
        }
        match inode.super_block().confirm_space()? {
            Left::Enough => {}
            Left::Unsure => return Ok(Written::NoFrames),
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
        terms.memcg.request_frames(&engine.super_blocks());
        // Pages of any of them may fill a limit above this one.
        for memcg in terms.memcg.all_below_full(&engine.tenants.all()) {
            memcg.flush_foreign(engine.clock.now(), &engine.tunables);
        }
        return Ok(Written::NoFrames);
    }
    if inode.slot().is_none() && !begin_dirtying(inode, terms)? {
        return Ok(Written::NoFrames);
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
            Ok(Outcome::NoFrames) => break,
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
            sb.wakeup_flushers();
            Ok(Written::NoFrames)
        }
        Some(_) | None => Ok(Written::Bytes(done)),
    }
}

/// N2: takes the record and the pinned node that a dirty inode needs. Returns false if either cannot be had.
fn begin_dirtying(inode: &Arc<Inode>, terms: Terms<'_>) -> Result<bool, FileError> {
    let node = match inode.open_node() {
        Some(node) => node,
        None if !terms.may_wait => return Err(FileError::WouldBlock),
        None => inode.node()?,
    };
    inode.attach_wb(terms.memcg);
    let bdi = inode.super_block().bdi();
    if !bdi.try_pin_node() {
        inode.super_block().wakeup_flushers();
        return Ok(false);
    }
    match inode.ensure_slot(&node) {
        Some(true) => {}
        // Another thread was first, with a pin of its own.
        Some(false) => bdi.node_unpinned(),
        None => {
            bdi.node_unpinned();
            inode.super_block().wakeup_flushers();
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
