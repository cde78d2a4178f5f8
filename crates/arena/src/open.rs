//! Taking over the arena of another process.
//!
//! The order of the steps: lock, read and check the header, map, check all tables, and only then change the first byte.
//! A crash at any later step leaves a file that opens with the same survivors. There is one exception, which needs
//! damage that no crash leaves: of two frames of one page and version, the second may be used after such a crash.
//!
//! A damaged record does not hide the others: it is set aside ([`crate::validate`]) and reported.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use slackwater_sync::shim::Arc;

use crate::arena::Arena;
use crate::error::{ArenaError, Mismatch};
use crate::filling::{Filler, Filling, Plan};
use crate::header::{self, HEADER_BYTES};
use crate::layout::Layout;
use crate::mapping::Mapping;
use crate::record::CLEAN;
use crate::source::{self, ArenaFile};
use crate::survivors::{self, Sorted, Survivors};
use crate::validate;

impl Arena {
    /// Opens the file of an earlier arena and returns its survivors. The data of damaged records is not among them:
    /// [`Survivors::damages`] names these, and their bytes stay in the file.
    ///
    /// # Errors
    /// [`ArenaError::InUse`] if another process has it open. [`ArenaError::NotPrivate`] if it belongs to another user, or
    /// others may write to it. [`ArenaError::FileSystem`] if it is not on tmpfs or hugetlbfs; [`ArenaError::Foreign`], [`ArenaError::Version`], [`ArenaError::Length`] or [`ArenaError::Damaged`]
    /// if its header is not that of a valid arena of this format; [`ArenaError::Os`] otherwise. The file is unchanged
    /// then.
    ///
    /// # Blocking
    /// Until all of it is mapped and its tables are read.
    pub fn open(path: &Path) -> Result<(Arc<Self>, Survivors), ArenaError> {
        Self::open_fd(source::open(path)?)
    }

    /// Opens an arena as [`open`](Self::open) does, by a descriptor from [`try_clone_fd`](Self::try_clone_fd) in this
    /// process or another.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_fd(fd: OwnedFd) -> Result<(Arc<Self>, Survivors), ArenaError> {
        source::file_system_of(fd.as_fd())?;
        let file = ArenaFile::lock(fd)?;
        let layout = check(&file)?;
        let mapping = Mapping::new(file.fd(), layout)?;
        Ok(Self::open_mapping(mapping, file, Filling::over(layout)))
    }

    /// Opens an arena as [`open`](Self::open) does, by a descriptor from [`try_clone_lock`](Self::try_clone_lock) of an
    /// earlier process. All of that process need not have ended: a thread that waits in the kernel may still hold the
    /// file.
    ///
    /// If it was still [allocating](Self::create_unfilled) the memory, there is a filler, and the arena can be used at
    /// once.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Blocking
    /// Until what is allocated is mapped, and its tables are read.
    pub fn open_inherited(lock: OwnedFd) -> Result<(Arc<Self>, Survivors, Option<Filler>), ArenaError> {
        source::file_system_of(lock.as_fd())?;
        let file = ArenaFile::inherited(lock)?;
        let layout = check(&file)?;
        let (plan, filled) = Plan::resume(layout, |part| source::is_allocated(file.fd(), part));
        let mapping = Mapping::of_hole(file.fd(), layout)?;
        filled.into_iter().try_for_each(|part| mapping.populate(part))?;
        let filling = Filling::new(plan);
        let is_filled = filling.is_over();
        let (arena, survivors) = Self::open_mapping(mapping, file, filling);
        let filler = (!is_filled).then(|| Filler::new(&arena));
        Ok((arena, survivors, filler))
    }

    fn open_mapping(mapping: Mapping, file: ArenaFile, filling: Filling) -> (Arc<Self>, Survivors) {
        let mut tables = validate::tables(&mapping);
        let Sorted { newest, superseded, ambiguous } = survivors::sort(std::mem::take(&mut tables.dirty));
        survivors::set_aside_ambiguous(&mut tables, &ambiguous);
        for (dirty, _) in ambiguous {
            // The next process would take it for valid, once the other one or a newer version has been written back.
            mapping.frames()[dirty.frame as usize].invalidate(dirty.frame);
        }
        for dirty in superseded {
            mapping.frames()[dirty.frame as usize].clear();
        }
        for record in mapping.frames().iter().filter(|record| record.state() == CLEAN) {
            record.clear();
        }
        let arena = Self::assemble(mapping, file, filling, std::mem::take(&mut tables.set_aside));
        let survivors = survivors::group(&arena, tables, &newest);
        (arena, survivors)
    }
}

/// The layout that a file's header says.
fn check(file: &ArenaFile) -> Result<Layout, ArenaError> {
    let (header, file_bytes) = read_header(file)?;
    header::check(&header, file_bytes)
}

fn read_header(file: &ArenaFile) -> Result<([u8; HEADER_BYTES], u64), ArenaError> {
    let file_bytes = rustix::fs::fstat(file.fd()).map_err(ArenaError::os("fstat"))?.st_size.cast_unsigned();
    let mut header = [0; HEADER_BYTES];
    let read = rustix::io::pread(file.fd(), &mut header, 0).map_err(ArenaError::os("pread"))?;
    if read < HEADER_BYTES {
        return Err(ArenaError::Length(Mismatch::new("file length", file_bytes, format!("at least {HEADER_BYTES}"))));
    }
    Ok((header, file_bytes))
}
