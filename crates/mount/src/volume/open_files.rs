//! Open files: open, close and fsync.

use rustix::fs::OFlags;
use rustix::io::Errno;
use slackwater::backend::SyncScope;
use slackwater::{File, FileError, Memcg};
use slackwater_fuse::abi::{FsyncIn, OpenIn, fopen, open_in};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::takeover::{HandleRecord, Keeping};
use crate::volume::Volume;
use crate::volume::answer::Answer;
use crate::volume::errno::{self, Failure};
use crate::volume::flags::check_protection;
use crate::volume::handles::Handle;
use crate::volume::nodes::Node;

/// Flag of FSYNC and FSYNCDIR: data only.
const FSYNC_DATA: u32 = 1;

/// The process that opens a file.
pub(super) struct Opener {
    /// The tenant that the open file is charged to.
    pub(super) memcg: Arc<Memcg>,
    /// Whether the tenant's reads and writes stay out of the cache, if the tenant says so.
    pub(super) dontcache: Option<bool>,
    /// Number of the request.
    pub(super) unique: u64,
}

/// An open file.
pub(super) struct OpenFile {
    pub(super) node: Arc<Node>,
    pub(super) file: File,
    is_writable: bool,
    /// Whether a shared mapping of it can be written to.
    can_map: bool,
    /// Whether something was read through it.
    has_reader: AtomicBool,
    /// Number of the emptying whose new bytes the last close of a descriptor wrote back; 0 if none.
    pub(super) written_back: AtomicU64,
    /// The keeper that gets the file if it loses its last name.
    pub(super) keeping: Option<Arc<Keeping>>,
}

impl OpenFile {
    pub(super) fn new(node: &Arc<Node>, file: File, flags: OFlags, keeping: Option<&Arc<Keeping>>) -> Self {
        node.opened.fetch_add(1, Ordering::AcqRel);
        let is_writable = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        if is_writable {
            node.writers.fetch_add(1, Ordering::SeqCst); // G1 of `flags`
        }
        let can_map = flags.contains(OFlags::RDWR);
        if can_map {
            node.kernel_pages.add_mapper();
        }
        Self {
            node: Arc::clone(node),
            file,
            is_writable,
            can_map,
            has_reader: AtomicBool::new(false),
            written_back: AtomicU64::new(0),
            keeping: keeping.cloned(),
        }
    }

    /// Sets the tenant that reads through it, on the first read; `tenant` is called only then.
    pub(super) fn begin_reading(&self, tenant: impl FnOnce() -> Option<Arc<Memcg>>) {
        if !self.has_reader.load(Ordering::Relaxed)
            && !self.has_reader.swap(true, Ordering::Relaxed)
            && let Some(tenant) = tenant()
        {
            self.file.set_reader(&tenant);
        }
    }

    /// The number of the emptying whose new bytes a close must write back: the file was truncated and rewritten, and a
    /// program that does so expects either the old or the new data after a crash. Before it is rewritten there is nothing to
    /// wait for. It lasts until RELEASE: a shell moves the descriptor of a redirection, and each process that is started
    /// closes its own, perhaps while another writes. Kernel: `auto_da_alloc`.
    pub(super) fn flushes_on_close(&self) -> Option<u64> {
        self.node.emptied.get().filter(|_| self.is_writable && self.node.inode.size_bytes() != 0)
    }

    fn check_errors(&self) -> Result<(), Failure> {
        match self.file.peek_write_error().filter(|_| self.is_writable) {
            Some(kind) => Err(errno::of(kind).into()),
            None => Ok(()),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.is_writable {
            self.node.writers.fetch_sub(1, Ordering::AcqRel);
        }
        if self.can_map {
            self.node.kernel_pages.remove_mapper();
        }
        let is_last = self.node.opened.fetch_sub(1, Ordering::AcqRel) == 1;
        if let Some(keeping) = self.keeping.as_ref().filter(|_| is_last) {
            self.node.release_kept(keeping);
        }
    }
}

impl Volume {
    /// OPEN. The kernel has checked permissions, and requests truncation in the same request.
    pub(super) fn open(&self, node: &Arc<Node>, args: &OpenIn, opener: &Opener) -> Result<Answer, Failure> {
        self.load_dontcache(node);
        let (handle, open_flags) = self.open_handle(node, args.flags, opener)?;
        let truncated = if args.flags & OFlags::TRUNC.bits() == 0 { Ok(()) } else { self.truncate(node, args) };
        match truncated {
            Ok(()) => Ok(Answer::Opened(handle, open_flags)),
            Err(error) => {
                self.handles.remove(handle);
                Err(error.into())
            }
        }
    }

    /// Makes a change of a file. If the file loses all of its bytes by that (`is_emptied`), that is noted before, so that no
    /// process misses it, and after, since a close may come in between.
    pub(super) fn emptying<T, E>(
        &self,
        node: &Node,
        is_emptied: bool,
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let is_emptied = is_emptied && node.inode.size_bytes() != 0;
        let note = || {
            if is_emptied {
                self.note_emptying(node);
            }
        };
        note();
        let changed = change()?;
        note();
        Ok(changed)
    }

    pub(super) fn truncate(&self, node: &Node, args: &OpenIn) -> Result<(), FileError> {
        let change = slackwater::backend::AttrChange { size_bytes: Some(0), ..Default::default() };
        // No lock of the kernel keeps older pages from arriving meanwhile, or afterwards in a file that has grown again.
        let truncate = || self.unfrozen(|| self.sb.setattr(&node.inode, change));
        self.emptying(node, true, || node.kernel_pages.write(0, truncate, |()| u64::MAX))?;
        if args.open_flags & open_in::KILL_SUIDGID != 0 {
            self.unfrozen(|| self.sb.kill_suidgid(&node.inode))?;
        }
        Ok(())
    }

    /// A new handle for a node, and the kernel's flags for it.
    ///
    /// Writers bypass the kernel's page cache, in parallel, so that each write arrives with its writer's identity.
    /// Readers use the page cache if the file is as the kernel knows it and the kernel drops pages that are written
    /// around ([`coherence`](crate::coherence)). Closing such a file needs no request. For a file that stays out of the
    /// cache, only mapped pages are cached by the kernel.
    pub(super) fn open_handle(&self, node: &Arc<Node>, flags: u32, opener: &Opener) -> Result<(u64, u32), Failure> {
        let flags = OFlags::from_bits_retain(flags);
        self.keep_node(node);
        // Close-to-open consistency: an open sees the current state of the file.
        let (_, is_changed) = self.revalidate(&node.inode)?;
        let is_changed = node.may_have_old_pages.swap(false, Ordering::Relaxed) | is_changed;
        let file = self.unfrozen(|| File::open_for(&node.inode, &opener.memcg))?;
        let open = OpenFile::new(node, file, flags, self.keeping.as_ref());
        if open.is_writable {
            check_protection(node, flags)?;
        }
        let open_flags = if open.is_writable {
            fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES
        } else if flags.contains(OFlags::DIRECT)
            || !self.is_coherent.load(Ordering::Acquire)
            || self.is_open_dontcache(node, opener.dontcache)
        {
            fopen::NOFLUSH | fopen::DIRECT_IO
        } else if is_changed {
            fopen::NOFLUSH
        } else {
            fopen::NOFLUSH | fopen::KEEP_CACHE
        };
        if self.keeping.is_some() && node.inode.attr().nlink == 0 {
            self.keep(node);
        }
        if let Some(keeping) = &self.keeping {
            self.remember(keeping, node);
        }
        let record = HandleRecord {
            is_directory: false,
            node: node.id(),
            flags: flags.bits(),
            open_flags,
            unique: opener.unique,
            cursor: open.file.error_cursor(),
        };
        Ok((self.handles.add(Handle::File(Arc::new(open)), &record), open_flags))
    }

    /// FLUSH: one of the descriptors was closed, perhaps by a child that exits. It reports errors since the last fsync
    /// without consuming them, as NFS does: at an exit the result is ignored.
    pub(super) fn flush(&self, open: &OpenFile) -> Result<Answer, Failure> {
        if let Some(emptying) = open.flushes_on_close() {
            // A failure is latched like any other; the data is kept.
            let _ = open.file.write_back();
            open.written_back.store(emptying, Ordering::Release);
        }
        open.check_errors()?;
        Ok(Answer::Done)
    }

    /// FSYNC.
    pub(super) fn fsync(&self, args: &FsyncIn, unique: u64) -> Result<Answer, Failure> {
        self.sync_file(&*self.open_file(args.fh)?, scope(args), (args.fh, unique))?;
        Ok(Answer::Done)
    }

    /// Makes an open file's data durable, for a request with this handle and this number.
    pub(super) fn sync_file(
        &self,
        open: &OpenFile,
        scope: SyncScope,
        (handle, unique): (u64, u64),
    ) -> Result<(), Failure> {
        let synced = match scope {
            SyncScope::Data => open.file.fdatasync(),
            SyncScope::All => open.file.fsync(),
        };
        synced.map_err(Failure::from).inspect_err(|Failure(errno)| {
            self.record_reported(open, handle, unique, *errno);
        })
    }

    /// FSYNCDIR.
    pub(super) fn fsyncdir(&self, node: &Node, args: &FsyncIn) -> Result<Answer, Failure> {
        self.sb.sync_node(&node.inode, scope(args))?;
        Ok(Answer::Done)
    }

    /// The open file with this number.
    pub(super) fn open_file(&self, handle: u64) -> Result<Arc<OpenFile>, Failure> {
        self.handles.file(handle).ok_or(Failure(Errno::BADF))
    }
}

fn scope(args: &FsyncIn) -> SyncScope {
    if args.fsync_flags & FSYNC_DATA == 0 { SyncScope::All } else { SyncScope::Data }
}

#[cfg(test)]
mod tests {
    use slackwater::backend::{MemBackend, NewNode};
    use slackwater::{Engine, Tunables};
    use slackwater_arena::{Arena, ArenaConfig};
    use slackwater_backends::SystemClock;

    use super::*;

    /// A volume with an empty file.
    fn volume_with_file() -> (Engine, Arc<slackwater::SuperBlock>, Arc<Volume>, Arc<Node>) {
        let arena = Arena::create(&ArenaConfig::memfd(8 << 20)).expect("an arena");
        let engine = Engine::new(arena, std::sync::Arc::new(SystemClock), Tunables::default());
        let sb = engine.mount("memory", std::sync::Arc::new(MemBackend::new())).expect("a volume");
        let volume =
            Volume::new(&sb, None, &slackwater_fuse::mount::MountOptions::default(), None).expect("a volume to serve");
        let inode = sb.make(&sb.root().expect("a root"), "a", NewNode::File, 0o644).expect("a file");
        let node = volume.nodes.look_up(inode).expect("not the root");
        (engine, sb, volume, node)
    }

    #[test]
    fn readers_use_the_kernels_cache_only_once_it_is_trusted() {
        let (_engine, sb, volume, node) = volume_with_file();
        let opener = |dontcache| Opener { memcg: Arc::clone(sb.root_memcg()), dontcache, unique: 0 };
        let opened = |flags: OFlags| volume.open_handle(&node, flags.bits(), &opener(None)).expect("it opens").1;
        let direct = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        let (uncached, cached) = (fopen::NOFLUSH | fopen::DIRECT_IO, fopen::NOFLUSH | fopen::KEEP_CACHE);
        assert_eq!((opened(OFlags::RDONLY), opened(OFlags::RDWR)), (uncached, direct));
        volume.trust_kernel_cache();
        assert_eq!((opened(OFlags::RDONLY), opened(OFlags::RDWR)), (cached, direct));
        assert_eq!(opened(OFlags::RDONLY | OFlags::DIRECT), uncached);
        let of_tenant = volume.open_handle(&node, OFlags::RDONLY.bits(), &opener(Some(true))).expect("it opens").1;
        assert_eq!(of_tenant, uncached);
        volume.tear_down();
    }
    /// A page that the kernel wrote back before an open truncated the file, and that the volume took after it, brought
    /// its bytes back if the file had grown again meanwhile.
    #[test]
    fn a_page_from_before_a_truncating_open_is_dropped() {
        let (_engine, _sb, volume, node) = volume_with_file();
        node.kernel_pages.add_mapper();
        node.kernel_pages.read_for_cache(0..4096);
        volume.truncate(&node, &OpenIn { flags: OFlags::TRUNC.bits(), open_flags: 0 }).expect("it truncates");
        let put = |at, _: &[u8]| Err((at, "nothing is left to take"));
        assert_eq!(node.kernel_pages.write_back(0, &[1; 4096], put), Some((4096, None)));
        volume.tear_down();
    }
}
