//! Data: reading, writing, and making durable.
//!
//! A write uses one of three I/O paths. *Direct* bypasses the kernel's page cache, for whole pages and units that are
//! large enough. *Dontcache* uses the page cache, but leaves it as soon as the data is written, where direct I/O is
//! refused. *Plain* serves the rest: small units, and the partial page at the end of a file, which direct I/O would
//! lengthen (R3). One unit may use several paths: they are split at a page boundary, the kernel keeps direct and cached
//! I/O on a file coherent, and a sync on any descriptor covers the inode.
//!
//! If a file system refuses a path, the refusal is remembered for the volume.

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;

use rustix::fs::{Advice, AtFlags, StatxFlags, fadvise, fdatasync, fsync, statx, syncfs};
use rustix::io::{self, Errno, ReadWriteFlags, preadv, pwritev, pwritev2};
use slackwater::backend::{Node, NodeKind, ReadUnit, SyncScope, WriteUnit};
use slackwater::{BackendError, ErrorKind, PAGE_BYTES};
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use super::descriptors::{self, NodeFd};
use super::errno::failed;
use super::node::DirNode;
use super::volume::{Answer, Volume};

/// Below this size a unit uses the plain path: direct I/O was measured to be slower.
const BYPASS_BYTES_MIN: usize = 64 << 10;

/// The maximum number of slices of one system call, `IOV_MAX`.
const SLICES_MAX: usize = 1024;

/// `RWF_DONTCACHE` (Linux 6.14).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// The number of system calls that moved data, by I/O path, and of those that made it durable beyond single files.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct DirStats {
    /// Writes past the kernel's page cache.
    pub direct_writes: u64,
    /// Writes through it that leave nothing in it.
    pub dontcache_writes: u64,
    /// Ordinary writes.
    pub plain_writes: u64,
    /// Reads past the kernel's page cache.
    pub direct_reads: u64,
    /// Ordinary reads.
    pub plain_reads: u64,
    /// Flushes of the device's cache after a write.
    pub flushes: u64,
    /// Syncs of the whole file system, with the data of other programs.
    pub syncs_of_all: u64,
}

/// The I/O paths: which were refused, and how often each was used.
#[derive(Default)]
pub(super) struct IoPaths {
    direct_is_refused: AtomicBool,
    dontcache_is_refused: AtomicBool,
    direct_writes: AtomicU64,
    dontcache_writes: AtomicU64,
    plain_writes: AtomicU64,
    direct_reads: AtomicU64,
    plain_reads: AtomicU64,
    flushes: AtomicU64,
    syncs_of_all: AtomicU64,
}

/// An I/O path for writes. Only the first two can be refused.
enum IoPath<'a> {
    Direct(&'a NodeFd),
    Dontcache(&'a NodeFd),
    Plain(&'a NodeFd),
}

impl Volume {
    pub(super) fn write(&self, unit: &WriteUnit) -> Answer<usize> {
        let node = self.node(unit.node())?;
        let cached = node.writer(&self.fds).map_err(failed("open for writing"))?; // R2
        let mut written = 0;
        while written < unit.len_bytes() {
            let (at, left) = (unit.offset_bytes() + written as u64, unit.len_bytes() - written);
            let (io_path, len) = self.io_path(node, cached, at, left).map_err(failed("open O_DIRECT"))?;
            let slices = window(unit.slices(), written, len);
            match self.write_by(&io_path, &slices, at) {
                Ok(0) => return Err(BackendError::new(ErrorKind::Io, "pwritev2 wrote nothing")),
                Ok(count) => {
                    match &io_path {
                        IoPath::Plain(fd) if unit.refills() => begin_writeback(fd, at, count), // R6
                        IoPath::Direct(_) if unit.flushes() => self.flush_device(),
                        IoPath::Direct(_) | IoPath::Dontcache(_) | IoPath::Plain(_) => {}
                    }
                    written += count;
                }
                Err(Errno::INTR) => {}
                Err(errno) if self.io_paths.remember(&io_path, errno) => {}
                // The rest will be submitted again as a unit of its own, and gets the error then.
                Err(_) if written > 0 => break,
                Err(errno) => return Err(failed("pwritev2")(errno)),
            }
        }
        Ok(written)
    }

    /// Empties the cache of the device, so that no sync has to wait for what has been written so far. The journal is not
    /// touched, as it would be by a sync of the file. Nothing depends on its success: only a sync promises anything.
    fn flush_device(&self) {
        self.io_paths.flushes.fetch_add(1, Ordering::Relaxed);
        let _ = fdatasync(&self.root);
    }

    /// The path for the next `left` bytes at `at`, and how many of them use it.
    fn io_path<'a>(
        &self,
        node: &'a DirNode,
        cached: &'a NodeFd,
        at: u64,
        left: usize,
    ) -> io::Result<(IoPath<'a>, usize)> {
        let whole_pages = left - left % PAGE_BYTES as usize;
        if self.may_go_direct(at, whole_pages)
            && let Some(direct) = node.direct_writer(&self.fds)?
        {
            return Ok((IoPath::Direct(direct), whole_pages));
        }
        let is_refused = self.io_paths.dontcache_is_refused.load(Ordering::Relaxed);
        match left >= BYPASS_BYTES_MIN && !is_refused {
            true => Ok((IoPath::Dontcache(cached), left)),
            false => Ok((IoPath::Plain(cached), left)),
        }
    }

    fn may_go_direct(&self, at: u64, len: usize) -> bool {
        let is_refused = self.io_paths.direct_is_refused.load(Ordering::Relaxed);
        !is_refused && len >= BYPASS_BYTES_MIN && at.is_multiple_of(PAGE_BYTES)
    }

    fn write_by(&self, io_path: &IoPath<'_>, slices: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let (count, outcome) = match io_path {
            IoPath::Direct(fd) => (&self.io_paths.direct_writes, pwritev(fd, slices, at)),
            IoPath::Dontcache(fd) => (&self.io_paths.dontcache_writes, pwritev2(fd, slices, at, DONTCACHE)),
            IoPath::Plain(fd) => (&self.io_paths.plain_writes, pwritev(fd, slices, at)),
        };
        count.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
        outcome
    }

    /// Reads up to the end of the unit or of the file.
    pub(super) fn read(&self, unit: &mut ReadUnit) -> Answer<usize> {
        let (node, len) = (unit.node().clone(), unit.len_bytes());
        let node = self.node(&node)?;
        let mut read = 0;
        while read < len {
            let at = unit.offset_bytes() + read as u64;
            let direct = match self.may_go_direct(at, len - read) {
                true => node.direct_reader(&self.fds).map_err(failed("open O_DIRECT"))?,
                false => None,
            };
            let slices = &mut window_mut(unit.slices_mut(), read);
            let outcome = match direct {
                Some(fd) => preadv(fd, slices, at),
                None => preadv(node.reader(&self.fds).map_err(failed("open for reading"))?, slices, at),
            };
            let count = if direct.is_some() { &self.io_paths.direct_reads } else { &self.io_paths.plain_reads };
            count.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
            match outcome {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(Errno::INTR) => {}
                Err(errno) if direct.is_some_and(|fd| self.io_paths.remember(&IoPath::Direct(fd), errno)) => {}
                Err(errno) => return Err(failed("preadv")(errno)),
            }
        }
        Ok(read)
    }

    /// Makes a node durable. A link or a special file cannot be opened for that: the volume is synced.
    pub(super) fn sync(&self, node: &Node, scope: SyncScope) -> Answer<()> {
        match self.node(node)?.kind {
            NodeKind::File | NodeKind::Directory => self.sync_node(node, scope),
            NodeKind::Symlink | NodeKind::Special => self.sync_volume(),
        }
    }

    /// Makes a file or directory durable. Does nothing for other nodes, which cannot be synced this way.
    fn sync_node(&self, node: &Node, scope: SyncScope) -> Answer<()> {
        let of = self.node(node)?;
        let sync = |fd: &NodeFd| match scope {
            SyncScope::Data => fdatasync(fd).map_err(failed("fdatasync")),
            SyncScope::All => self.unsynced.sync_alone(node.id(), || fsync(fd)).map_err(failed("fsync")),
        };
        match of.kind {
            NodeKind::File => {
                sync(of.reader(&self.fds).map_err(failed("open for syncing"))?)?; // R2
                Ok(())
            }
            NodeKind::Directory => sync(&self.open_directory(of)?),
            NodeKind::Symlink | NodeKind::Special => Ok(()),
        }
    }

    /// Registers nodes for the next sync of the volume (R4). A call with this `answer` has changed them; one that failed may
    /// have done so in part.
    pub(super) fn changed<T>(&self, nodes: &[&Node], answer: Answer<T>) -> Answer<T> {
        let unlisted = nodes.iter().filter(|node| !self.unsynced.note(node, descriptors::supply()));
        let synced = unlisted.map(|node| self.sync_node(node, SyncScope::All)).fold(Ok(()), Result::and);
        answer.and_then(|answer| synced.map(|()| answer))
    }

    /// Notes changed nodes as [`changed`](Self::changed) does, for a call that removes a name: a file without one need
    /// not be synced.
    pub(super) fn removed<T>(&self, nodes: &[&Node], answer: Answer<T>) -> Answer<T> {
        let is_nameless = |node: &Node| {
            let stat = self.node(node).map(|node| statx(&node.path, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK));
            stat.is_ok_and(|stat| stat.is_ok_and(|stat| stat.stx_nlink == 0))
        };
        self.unsynced.forget(is_nameless);
        self.changed(nodes, answer)
    }

    /// Syncs a node that has changed, for a sync of the volume. Returns whether it can be synced alone. A link or a special
    /// file cannot; nor can a node whose attributes only have changed and that may not be opened, or a directory that was
    /// removed.
    fn sync_changed(&self, node: &Node) -> Answer<bool> {
        let changed = self.node(node)?;
        let opened = match changed.kind {
            NodeKind::Symlink | NodeKind::Special => return Ok(false),
            NodeKind::Directory => Ok(()),
            NodeKind::File => changed.permitted_reader(&self.fds).map(drop).map_err(failed("open for syncing")),
        };
        match opened.and_then(|()| self.sync_node(node, SyncScope::All)) {
            Err(error)
                if !changed.has_writer()
                    && matches!(error.kind(), ErrorKind::Permission | ErrorKind::NotFound | ErrorKind::Invalid) =>
            {
                Ok(false)
            }
            synced => synced.map(|()| true),
        }
    }

    /// Makes everything durable that was changed through this volume. That may need a sync of the whole file system, with
    /// the data of other programs. Then any write error on it since the last such sync fails this one, since it may have
    /// been one of ours.
    pub(super) fn sync_volume(&self) -> Answer<()> {
        self.unsynced.sync(|node| self.sync_changed(node), || self.sync_file_system())
    }

    fn sync_file_system(&self) -> Answer<()> {
        self.io_paths.syncs_of_all.fetch_add(1, Ordering::Relaxed);
        syncfs(&self.root).map_err(failed("syncfs"))
    }

    pub(super) fn stats(&self) -> DirStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DirStats {
            direct_writes: count(&self.io_paths.direct_writes),
            dontcache_writes: count(&self.io_paths.dontcache_writes),
            plain_writes: count(&self.io_paths.plain_writes),
            direct_reads: count(&self.io_paths.direct_reads),
            plain_reads: count(&self.io_paths.plain_reads),
            flushes: count(&self.io_paths.flushes),
            syncs_of_all: count(&self.io_paths.syncs_of_all),
        }
    }
}

impl IoPaths {
    /// Whether `errno` means that this volume does not support `io_path`, rather than that the call failed.
    fn remember(&self, io_path: &IoPath<'_>, errno: Errno) -> bool {
        let refusal = match (io_path, errno) {
            (IoPath::Direct(_), Errno::INVAL) => &self.direct_is_refused,
            (IoPath::Dontcache(_), Errno::OPNOTSUPP | Errno::INVAL) => &self.dontcache_is_refused,
            (IoPath::Direct(_) | IoPath::Dontcache(_) | IoPath::Plain(_), _) => return false,
        };
        refusal.store(true, Ordering::Relaxed);
        true
    }
}

/// Asks the kernel to write `len` bytes at `at` to the disk, without waiting for it. No data is lost if the file system
/// does not do it.
fn begin_writeback(fd: &NodeFd, at: u64, len: usize) {
    // Whole pages are dropped once they are clean, as with the other two paths.
    let _ = fadvise(fd, at, NonZeroU64::new(len as u64), Advice::DontNeed);
}

/// The part of `slices` from `skip` on, `len` bytes long, limited to what one system call accepts.
fn window<'a>(slices: impl Iterator<Item = &'a [u8]>, mut skip: usize, mut len: usize) -> Vec<IoSlice<'a>> {
    let part = slices.filter_map(|slice| {
        let (skipped, slice) = slice.split_at(skip.min(slice.len()));
        skip -= skipped.len();
        let slice = &slice[..len.min(slice.len())];
        len -= slice.len();
        (!slice.is_empty()).then(|| IoSlice::new(slice))
    });
    part.take(SLICES_MAX).collect()
}

fn window_mut<'a>(slices: impl Iterator<Item = &'a mut [u8]>, mut skip: usize) -> Vec<IoSliceMut<'a>> {
    let part = slices.filter_map(|slice| {
        let (skipped, slice) = slice.split_at_mut(skip.min(slice.len()));
        skip -= skipped.len();
        (!slice.is_empty()).then(|| IoSliceMut::new(slice))
    });
    part.take(SLICES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use slackwater::backend::{AttrChange, Call, Done, NewNode};
    use slackwater_arena::{Arena, ArenaConfig, Gather, Pool};

    use super::*;
    use crate::dir::file_system::Syncs;
    use crate::dir::handles::Reopening;
    use crate::dir::unsynced::Unsynced;

    /// A volume in a new directory, which the test removes.
    fn volume(name: &str) -> (PathBuf, Volume) {
        let path = std::env::temp_dir().join(format!("slackwater-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        let volume = Volume::open(&path, Reopening::ByKernel).expect("it was just made");
        (path, volume)
    }

    /// A file in the root of `volume`, and the function that makes a unit of a number of pages and bytes for it.
    fn file_and_units(volume: &Volume) -> (Node, impl Fn(usize, usize) -> WriteUnit) {
        let root = volume.open_root().expect("a volume has a root").node;
        let file = volume.make(&root, "file".as_ref(), &NewNode::File, 0o644, None).expect("the name is free").node;
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).expect("memory for an arena");
        let mut frames = Vec::new();
        assert_eq!(arena.alloc_many(Pool::Normal, 32, &mut frames), 32);
        let node = file.clone();
        let unit = move |pages: usize, len_bytes| {
            let mut gather = Gather::new(Arc::clone(&arena), pages);
            assert!(frames[..pages].iter().all(|frame| gather.push(*frame)));
            WriteUnit::detached(node.clone(), 0, gather, len_bytes, Done::new(|_| ()))
        };
        (file, unit)
    }

    /// The refusals simulate a file system with neither of the first two paths.
    #[test]
    fn a_unit_uses_the_next_path_if_one_is_refused() {
        let (path, volume) = volume("io-paths");
        let (file, unit) = file_and_units(&volume);
        let write = || assert_eq!(volume.write(&unit(32, 100_001)).ok(), Some(100_001));
        let fd = NodeFd::new(volume.root.try_clone().expect("a descriptor"));
        assert!(volume.io_paths.remember(&IoPath::Direct(&fd), Errno::INVAL));
        write();
        let first = volume.stats();
        assert_eq!((first.direct_writes, first.dontcache_writes + first.plain_writes), (0, 1));
        assert!(volume.io_paths.remember(&IoPath::Dontcache(&fd), Errno::OPNOTSUPP));
        write();
        let second = volume.stats();
        assert_eq!(second, DirStats { plain_writes: first.plain_writes + 1, ..first });
        assert!(!volume.io_paths.remember(&IoPath::Plain(&fd), Errno::INVAL));
        let attr = volume.getattr(&file).expect("it is open");
        assert_eq!(attr.size_bytes, 100_001);
        std::fs::remove_dir_all(&path).expect("ours to remove");
    }

    /// Small units stay in the page cache of the kernel, which a flush of the device does not reach.
    #[test]
    fn a_unit_past_the_page_cache_is_flushed_if_it_asks_for_it() {
        let (path, volume) = volume("flushes");
        let (_file, unit) = file_and_units(&volume);
        let flushes_of = |pages: usize, flushes: bool| {
            let before = volume.stats();
            let len = pages * PAGE_BYTES as usize;
            assert_eq!(volume.write(&unit(pages, len).flushing(flushes)).ok(), Some(len));
            let after = volume.stats();
            (after.direct_writes - before.direct_writes, after.flushes - before.flushes)
        };
        assert_eq!(flushes_of(32, false).1, 0);
        assert_eq!(flushes_of(1, true), (0, 0));
        let (direct, flushes) = flushes_of(32, true);
        assert_eq!(flushes, direct, "tmpfs may have neither");
        assert_eq!(volume.limits().flushes, volume.file_system.flushes_by_directory());
        std::fs::remove_dir_all(&path).expect("ours to remove");
    }

    /// The nodes that the next sync would sync one by one.
    fn noted(volume: &Volume) -> Vec<slackwater::NodeId> {
        let seen = std::cell::RefCell::new(Vec::new());
        let note = |node: &Node| {
            seen.borrow_mut().push(node.id());
            Ok(true)
        };
        volume.unsynced.sync(note, || Ok(())).expect("nothing fails");
        seen.into_inner()
    }

    /// Makes `name` in `dir` by a call.
    fn make(volume: &Volume, dir: &Node, name: &str, what: NewNode) -> Node {
        let made = std::sync::mpsc::channel();
        let done = Done::new(move |found| drop(made.0.send(found)));
        let (dir, name) = (dir.clone(), name.into());
        volume.serve(Call::Make { dir, name, what, mode: 0o644, creator: None, done });
        made.1.recv().expect("answered").expect("the name is free").node
    }

    /// R4, on a file system declared as one where `syncfs` reaches nothing.
    #[test]
    fn a_sync_of_the_volume_syncs_each_changed_node() {
        let (path, mut volume) = volume("unsynced");
        volume.unsynced = Unsynced::new(Syncs::Node);
        let root = volume.open_root().expect("a volume has a root").node;
        let file = make(&volume, &root, "file", NewNode::File);
        let mut both = noted(&volume);
        both.sort_unstable_by_key(|id| *id != file.id());
        assert_eq!(both, [file.id(), root.id()]);
        let arena = Arena::create(&ArenaConfig::memfd(1 << 20)).expect("memory for an arena");
        let mut gather = Gather::new(Arc::clone(&arena), 1);
        assert!(gather.push(arena.alloc(Pool::Normal).expect("all are free")));
        volume.serve(Call::Write(WriteUnit::detached(file.clone(), 0, gather, 100, Done::new(|_| ()))));
        volume.sync(&file, SyncScope::Data).expect("a local file can be synced");
        assert_eq!(noted(&volume), [file.id()], "its times may not be durable");
        let change = AttrChange { mode: Some(0o600), ..AttrChange::default() };
        let change_mode = || volume.serve(Call::Setattr { node: file.clone(), change, done: Done::new(|_| ()) });
        change_mode();
        volume.sync(&file, SyncScope::All).expect("a local file can be synced");
        assert_eq!(noted(&volume), []);
        change_mode();
        volume.sync_volume().expect("local files can be synced");
        assert_eq!(noted(&volume), []);
        std::fs::remove_dir_all(&path).expect("ours to remove");
    }

    /// R4: the data of other programs is not waited for, once the changes of earlier processes are durable.
    #[test]
    fn a_few_changes_need_no_sync_of_the_file_system() {
        let (path, mut volume) = volume("few-changes");
        volume.unsynced = Unsynced::new(Syncs::NodeOrAll);
        let root = volume.open_root().expect("a volume has a root").node;
        let syncs_of_all = |volume: &Volume| {
            let before = volume.stats().syncs_of_all;
            volume.sync_volume().expect("local files can be synced");
            volume.stats().syncs_of_all - before
        };
        assert_eq!(syncs_of_all(&volume), 1, "for changes of an earlier process");
        make(&volume, &root, "file", NewNode::File);
        assert_eq!(syncs_of_all(&volume), 0);
        make(&volume, &root, "link", NewNode::Symlink("file".into()));
        assert_eq!(syncs_of_all(&volume), 1, "a link cannot be synced alone");
        assert_eq!(syncs_of_all(&volume), 0);
        (0..20).for_each(|number| drop(make(&volume, &root, &format!("file {number}"), NewNode::File)));
        assert_eq!(syncs_of_all(&volume), 1, "many changes");
        std::fs::remove_dir_all(&path).expect("ours to remove");
    }

    #[test]
    fn a_window_starts_and_ends_within_slices() {
        let slices: [&[u8]; 3] = [b"abc", b"defg", b"hi"];
        let text = |skip, len| {
            let window = window(slices.into_iter(), skip, len);
            window.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(text(0, 9), b"abcdefghi");
        assert_eq!(text(2, 3), b"cde");
        assert_eq!(text(3, 4), b"defg");
        assert_eq!(text(8, 1), b"i");
        assert_eq!(text(9, 0), b"");
    }

    #[test]
    fn a_window_is_no_longer_than_a_system_call_takes() {
        let pages = vec![[0_u8; 2]; SLICES_MAX + 1];
        assert_eq!(window(pages.iter().map(|page| &page[..]), 1, usize::MAX).len(), SLICES_MAX);
    }

    #[test]
    fn bytes_read_go_behind_what_was_read_before() {
        let (mut first, mut second) = ([0; 3], [0; 2]);
        let mut window = window_mut([&mut first[..], &mut second[..]].into_iter(), 2);
        assert_eq!(window.iter().map(|slice| slice.len()).collect::<Vec<_>>(), [1, 2]);
        window[0][0] = 7;
        assert_eq!(first, [0, 0, 7]);
    }
}
