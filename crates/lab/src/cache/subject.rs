//! The subjects: [memory](super::memory), the engine, and files of the kernel, all read and written a page at a time.
//!
//! A subject has *lanes*, one for each thread. Each lane has a file of its own, or all share one. The loop over pages is
//! compiled once for each kind of lane, so only the operation differs.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::fs::{fdatasync, ftruncate};
use rustix::io::{pread, pwrite};
use slackwater::{Engine, File, Pause, SuperBlock, Tunables};

use super::pattern::{PAGE, PageBuffer, Pattern};
use crate::harness::axis;
use crate::rig;
use crate::scratch::{self, Scratch};

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

/// The part of one thread.
pub(crate) trait Lane: Send {
    /// Does `operation` to the next `count` pages of `pattern`.
    fn batch(&mut self, operation: Operation, pattern: &mut Pattern, count: u64) -> Result<()>;

    /// The page at `share` of the lane's file, and the number of its pages.
    fn pages(&self, share: f64) -> (u64, u64);
}

/// Something to measure.
pub(crate) trait Subject {
    fn name(&self) -> &'static str;

    /// A lane for each of `threads`.
    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Box<dyn Lane + '_>>;

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

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Box<dyn Lane + '_>> {
        let pages = self.bytes / PAGE as u64;
        let lane = |number| {
            let file = &self.files[if sharing == Sharing::Own { number } else { 0 }];
            match self.writer {
                Writer::Root => Box::new(CachedLane::<false> { file, pages }) as Box<dyn Lane>,
                Writer::Tenant => Box::new(CachedLane::<true> { file, pages }),
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

/// With `ASKS` it asks the throttle after each write.
struct CachedLane<'a, const ASKS: bool> {
    file: &'a File,
    pages: u64,
}

impl<const ASKS: bool> Lane for CachedLane<'_, ASKS> {
    fn batch(&mut self, operation: Operation, pattern: &mut Pattern, count: u64) -> Result<()> {
        let mut page = Box::new(PageBuffer([7; PAGE]));
        for _ in 0..count {
            let at = pattern.next() * PAGE as u64;
            match operation {
                Operation::Write => {
                    self.file.write_at(at, black_box(&page.0))?;
                    if ASKS {
                        ensure!(
                            self.file.balance_dirty_pages(self.file.memcg()) == Pause::None,
                            "the limit was reached"
                        );
                    }
                }
                Operation::Read => ensure!(self.file.read_at(at, &mut page.0)? == PAGE, "a short read"),
            }
        }
        black_box(&page.0);
        Ok(())
    }

    fn pages(&self, share: f64) -> (u64, u64) {
        ((share * self.pages as f64) as u64, self.pages)
    }
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

    fn lanes(&mut self, threads: usize, sharing: Sharing) -> Vec<Box<dyn Lane + '_>> {
        let pages = self.bytes / PAGE as u64;
        let lane = |number| {
            let file = &self.files[if sharing == Sharing::Own { number } else { 0 }];
            Box::new(KernelLane { file, pages }) as Box<dyn Lane>
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

struct KernelLane<'a> {
    file: &'a std::fs::File,
    pages: u64,
}

impl Lane for KernelLane<'_> {
    fn batch(&mut self, operation: Operation, pattern: &mut Pattern, count: u64) -> Result<()> {
        let mut page = Box::new(PageBuffer([7; PAGE]));
        for _ in 0..count {
            let at = pattern.next() * PAGE as u64;
            let moved = match operation {
                Operation::Write => pwrite(self.file, black_box(&page.0), at)?,
                Operation::Read => pread(self.file, &mut page.0[..], at)?,
            };
            ensure!(moved == PAGE, "a short transfer");
        }
        black_box(&page.0);
        Ok(())
    }

    fn pages(&self, share: f64) -> (u64, u64) {
        ((share * self.pages as f64) as u64, self.pages)
    }
}
