//! The subjects: memory, the engine, and files of the kernel, all read and written a page at a time.
//!
//! A subject has *lanes*, one for each thread. Each lane has a file of its own, or all share one. The loop over pages is
//! compiled once for each kind of lane, so only the operation differs.
//!
//! Copying in memory is what the others cannot beat. Its memory and its instruction are those of the engine's frames: huge pages, through which the kernel also accesses its
//! page cache, and `copy_bytes`. So the difference is what an engine adds to the copy, and with two threads both meet the
//! same limit of the machine. (The C library's `memcpy` on a program's ordinary memory takes a quarter longer, which would
//! flatter whatever is compared with it.)

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::fs::{fdatasync, ftruncate};
use rustix::io::{pread, pwrite};
use slackwater::{Engine, File, Pause, SuperBlock, Tunables};
use slackwater_arena::copy_bytes;

use super::access::{PAGE, PageBuffer, Pattern};
use crate::harness::axis;
use crate::rig;
use crate::scratch::{self, Scratch};
use crate::sys::huge_buffer;

axis! {
    /// The operation of a batch on each page.
    pub(crate) enum Operation {
        Write = "write",
        Read = "read",
    }
}

/// Which file the threads use.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Sharing {
    /// Each thread its own.
    Own,
    /// All threads the first.
    Shared,
}

type Batch<'a> = dyn FnMut(Operation, &mut Pattern, u64) -> Result<()> + Send + 'a;

/// The part of one thread.
pub(crate) struct Lane<'a> {
    /// Does an operation to the next so many pages of a pattern.
    batch: Box<Batch<'a>>,
    pub(crate) pages: u64,
    /// Whether the lane's pages are its slice of a shared buffer, which no other lane uses.
    pub(crate) is_slice: bool,
}

impl<'a> Lane<'a> {
    /// A lane over `pages` pages; `transfer` writes a page from the buffer, or reads it into the buffer.
    pub(crate) fn new(
        pages: u64,
        mut transfer: impl FnMut(Operation, u64, &mut [u8; PAGE]) -> Result<()> + Send + 'a,
    ) -> Self {
        let batch = move |operation, pattern: &mut Pattern, count| {
            let mut page = Box::new(PageBuffer([7; PAGE]));
            for _ in 0..count {
                transfer(operation, pattern.next(), &mut page.0)?;
            }
            black_box(&page.0);
            Ok(())
        };
        Self { batch: Box::new(batch), pages, is_slice: false }
    }

    /// Does `operation` to the next `count` pages of `pattern`.
    pub(crate) fn batch(&mut self, operation: Operation, pattern: &mut Pattern, count: u64) -> Result<()> {
        (self.batch)(operation, pattern, count)
    }
}

/// Something to measure.
pub(crate) trait Subject {
    fn name(&self) -> &'static str;

    /// A lane for each of `threads`.
    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Lane<'_>>;

    /// Finishes background work, so that the next subject has the machine to itself.
    fn settle(&mut self) -> Result<()>;

    /// Makes the first file empty.
    fn empty(&mut self) -> Result<()>;
}

/// The writer of the engine's files.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Writer {
    /// The root tenant: the engine has no others.
    Root,
    /// A tenant that stays below its limit and asks the throttle after each write.
    Tenant,
}

/// Files of the engine, in a directory.
pub(crate) struct Cached {
    writer: Writer,
    files: Vec<File>,
    volume: Arc<SuperBlock>,
    bytes: u64,
    _engine: Engine,
    _scratch: Scratch,
}

impl Cached {
    /// `files` files, of up to `bytes` each.
    pub(crate) fn new(
        folder: &Path,
        arena_bytes: u64,
        tunables: Tunables,
        files: usize,
        bytes: u64,
        writer: Writer,
    ) -> Result<Self> {
        let scratch = Scratch::in_folder(folder)?;
        let engine = rig::engine(arena_bytes, tunables)?;
        let (volume, _) = rig::mount_dir(&engine, "cache", scratch.path())?;
        let tenant = (writer == Writer::Tenant).then(|| engine.memcg_create("tenant", None, Some(arena_bytes)));
        let new_file = |number: usize| -> Result<File> {
            let file = rig::new_file(&volume, &format!("{number}"))?;
            Ok(match &tenant {
                Some(tenant) => File::open_for(file.inode(), tenant)?,
                None => file,
            })
        };
        let files = (0..files).map(new_file).collect::<Result<_>>()?;
        Ok(Self { writer, files, volume, bytes, _engine: engine, _scratch: scratch })
    }

    pub(crate) fn volume(&self) -> &Arc<SuperBlock> {
        &self.volume
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.files.clear();
        if let Err(error) = rig::discard(&self.volume) {
            eprintln!("{error:#}");
        }
    }
}

impl Subject for Cached {
    fn name(&self) -> &'static str {
        match self.writer {
            Writer::Root => super::ENGINE,
            Writer::Tenant => super::TENANT,
        }
    }

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Lane<'_>> {
        let pages = self.bytes / PAGE as u64;
        let lane = |number| {
            let file = &self.files[if sharing == Sharing::Own { number } else { 0 }];
            match self.writer {
                Writer::Root => cached_lane::<false>(file, pages),
                Writer::Tenant => cached_lane::<true>(file, pages),
            }
        };
        (0..threads).map(lane).collect()
    }

    /// Makes everything clean, so that the flushers have nothing to do.
    fn settle(&mut self) -> Result<()> {
        Ok(self.volume.sync()?)
    }

    fn empty(&mut self) -> Result<()> {
        Ok(self.files[0].set_len(0)?)
    }
}

/// A lane over a file of the engine. With `ASKS` it asks the throttle after each write.
fn cached_lane<const ASKS: bool>(file: &File, pages: u64) -> Lane<'_> {
    Lane::new(pages, move |operation, number, page| {
        let at = number * PAGE as u64;
        match operation {
            Operation::Write => {
                file.write_at(at, black_box(&page[..]))?;
                if ASKS {
                    ensure!(file.balance_dirty_pages(file.memcg()) == Pause::None, "the limit was reached");
                }
            }
            Operation::Read => ensure!(file.read_at(at, &mut page[..])? == PAGE, "a short read"),
        }
        Ok(())
    })
}

/// Files of the kernel.
pub(crate) struct Kernel {
    name: &'static str,
    files: Vec<std::fs::File>,
    bytes: u64,
    is_on_disk: bool,
}

impl Kernel {
    /// `files` files of `bytes` each on the file system of `folder`.
    pub(crate) fn new(name: &'static str, folder: &Path, files: usize, bytes: u64, is_on_disk: bool) -> Result<Self> {
        let files = (0..files).map(|_| scratch::nameless_file(folder)).collect::<Result<_>>()?;
        Ok(Self { name, files, bytes, is_on_disk })
    }
}

impl Subject for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Lane<'_>> {
        let pages = self.bytes / PAGE as u64;
        let lane = |number| {
            let file = &self.files[if sharing == Sharing::Own { number } else { 0 }];
            Lane::new(pages, move |operation, number, page| {
                let at = number * PAGE as u64;
                let moved = match operation {
                    Operation::Write => pwrite(file, black_box(&page[..]), at)?,
                    Operation::Read => pread(file, &mut page[..], at)?,
                };
                ensure!(moved == PAGE, "a short transfer");
                Ok(())
            })
        };
        (0..threads).map(lane).collect()
    }

    /// Writes everything: the engine syncs the whole file system, which must not include this.
    fn settle(&mut self) -> Result<()> {
        if self.is_on_disk {
            self.files.iter().try_for_each(|file| fdatasync(file).context("fdatasync"))?;
        }
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        ftruncate(&self.files[0], 0).context("ftruncate")
    }
}

/// Buffers for `memcpy`. A shared buffer is divided among the lanes: to memory it makes no difference which thread copies
/// which page.
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(files: usize, bytes: u64) -> Self {
        let bytes = bytes as usize;
        Self { buffers: (0..files).map(|_| huge_buffer(bytes)).collect(), bytes }
    }
}

impl Subject for Memory {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Lane<'_>> {
        match sharing {
            Sharing::Own => self.buffers.iter_mut().take(threads).map(|buffer| memory_lane(buffer, false)).collect(),
            Sharing::Shared => {
                self.buffers[0].chunks_exact_mut(self.bytes / threads).map(|bytes| memory_lane(bytes, true)).collect()
            }
        }
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        // Freed first, so that the next use finds fresh pages, of the size that programs get by default.
        self.buffers[0] = Vec::new();
        self.buffers[0] = vec![0; self.bytes];
        Ok(())
    }
}

fn memory_lane(bytes: &mut [u8], is_slice: bool) -> Lane<'_> {
    let pages = (bytes.len() / PAGE) as u64;
    let mut lane = Lane::new(pages, move |operation, number, page| {
        let bytes = &mut bytes[number as usize * PAGE..][..PAGE];
        match operation {
            Operation::Write => copy_bytes(bytes, black_box(&page[..])),
            Operation::Read => copy_bytes(black_box(&mut page[..]), bytes),
        }
        Ok(())
    });
    lane.is_slice = is_slice;
    lane
}
