//! A volume whose calls are asked and answered in one line, and a directory that goes away with its test.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use slackwater::backend::{
    Attr, AttrChange, Backend, Call, Creator, DirEntry, DirEntryPlus, Done, FallocateMode, FileHandle, Found, NewNode,
    Node, ReadUnit, Removal, RenameMode, SeekWhence, Statfs, SyncScope, WriteUnit, XattrMode,
};
use slackwater::{BackendError, ErrorKind, NodeId};
use slackwater_arena::{Arena, ArenaConfig, FRAME_BYTES, FrameId, Gather, Pool, Scatter};

pub(crate) type Answer<T> = Result<T, ErrorKind>;

/// Far beyond what any call takes, so that a lost answer fails a test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A backend under test, with frames for its units.
pub(crate) struct Volume {
    pub(crate) backend: Arc<dyn Backend>,
    arena: Arc<Arena>,
}

/// An answer that is on its way.
pub(crate) struct Pending<T> {
    answers: mpsc::Receiver<Result<T, BackendError>>,
}

impl<T> Pending<T> {
    pub(crate) fn wait(self) -> Result<T, BackendError> {
        self.answers.recv_timeout(PATIENCE).expect("every call is answered (B2)")
    }
}

/// A write or read that is on its way, and its frames.
pub(crate) struct PendingUnit {
    pending: Pending<usize>,
    arena: Arc<Arena>,
    frames: Vec<FrameId>,
}

impl Volume {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, arena: Arena::create(&ArenaConfig::memfd(16 << 20)).expect("memory for an arena") }
    }

    pub(crate) fn submit<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Pending<T> {
        let (send, answers) = mpsc::channel();
        // A test that has failed meanwhile no longer listens.
        self.backend.submit(call(Done::new(move |answer| drop(send.send(answer)))));
        Pending { answers }
    }

    pub(crate) fn ask<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Answer<T> {
        self.submit(call).wait().map_err(|error| error.kind())
    }

    pub(crate) fn root(&self) -> Node {
        self.ask(|done| Call::Root { done }).expect("a volume has a root").node
    }

    pub(crate) fn lookup(&self, dir: &Node, name: impl AsRef<OsStr>) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Lookup { dir, name, done })
    }

    pub(crate) fn reopen(&self, handle: &FileHandle, id: NodeId) -> Answer<Found> {
        let handle = handle.clone();
        self.ask(|done| Call::Reopen { handle, id: Some(id), done })
    }

    pub(crate) fn attr(&self, node: &Node) -> Attr {
        let node = node.clone();
        self.ask(|done| Call::Getattr { node, done }).expect("an open node has attributes")
    }

    pub(crate) fn setattr(&self, node: &Node, change: AttrChange) -> Answer<Attr> {
        let node = node.clone();
        self.ask(|done| Call::Setattr { node, change, done })
    }

    pub(crate) fn resize(&self, node: &Node, size_bytes: u64) -> Answer<Attr> {
        self.setattr(node, AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() })
    }

    pub(crate) fn make(&self, dir: &Node, name: impl AsRef<OsStr>, what: NewNode, mode: u32) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Make { dir, name, what, mode, creator: None, done })
    }

    pub(crate) fn make_as(
        &self,
        dir: &Node,
        name: impl AsRef<OsStr>,
        what: NewNode,
        mode: u32,
        creator: Creator,
    ) -> Answer<Found> {
        let (dir, name, creator) = (dir.clone(), name.as_ref().into(), Some(creator));
        self.ask(|done| Call::Make { dir, name, what, mode, creator, done })
    }

    pub(crate) fn tmpfile(&self, dir: &Node, mode: u32, creator: Option<Creator>) -> Answer<Found> {
        let dir = dir.clone();
        self.ask(|done| Call::Tmpfile { dir, mode, creator, done })
    }

    pub(crate) fn file(&self, dir: &Node, name: impl AsRef<OsStr>) -> Node {
        self.make(dir, name, NewNode::File, 0o644).expect("a file can be made").node
    }

    pub(crate) fn directory(&self, dir: &Node, name: impl AsRef<OsStr>) -> Node {
        self.make(dir, name, NewNode::Directory, 0o755).expect("a directory can be made").node
    }

    pub(crate) fn link(&self, node: &Node, dir: &Node, name: impl AsRef<OsStr>) -> Answer<Attr> {
        let (node, dir, name) = (node.clone(), dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Link { node, dir, name, done })
    }

    pub(crate) fn remove(&self, dir: &Node, name: impl AsRef<OsStr>, removal: Removal) -> Answer<()> {
        self.removed(dir, name, removal).map(drop)
    }

    /// As `remove`, with the node that had the name.
    pub(crate) fn removed(&self, dir: &Node, name: impl AsRef<OsStr>, removal: Removal) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Remove { dir, name, removal, done })
    }

    pub(crate) fn rename(&self, from: (&Node, &str), to: (&Node, &str), mode: RenameMode) -> Answer<()> {
        self.rename_os((from.0, from.1.as_ref()), (to.0, to.1.as_ref()), mode)
    }

    pub(crate) fn rename_os(&self, from: (&Node, &OsStr), to: (&Node, &OsStr), mode: RenameMode) -> Answer<()> {
        let ((from_dir, from), (to_dir, to)) = ((from.0.clone(), from.1.into()), (to.0.clone(), to.1.into()));
        self.ask(|done| Call::Rename { from_dir, from, to_dir, to, mode, done })
    }

    pub(crate) fn readlink(&self, node: &Node) -> Answer<OsString> {
        let node = node.clone();
        self.ask(|done| Call::Readlink { node, done })
    }

    pub(crate) fn readdir(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntry>> {
        let node = node.clone();
        self.ask(|done| Call::Readdir { node, cookie, done })
    }

    pub(crate) fn readdir_plus(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntryPlus>> {
        let node = node.clone();
        self.ask(|done| Call::ReaddirPlus { node, cookie, done })
    }

    pub(crate) fn getxattr(&self, node: &Node, name: impl AsRef<OsStr>) -> Answer<Vec<u8>> {
        let (node, name) = (node.clone(), name.as_ref().into());
        self.ask(|done| Call::Getxattr { node, name, done })
    }

    pub(crate) fn setxattr(&self, node: &Node, name: impl AsRef<OsStr>, value: &[u8], mode: XattrMode) -> Answer<Attr> {
        let (node, name, value) = (node.clone(), name.as_ref().into(), value.to_vec());
        self.ask(|done| Call::Setxattr { node, name, value, mode, done })
    }

    pub(crate) fn listxattr(&self, node: &Node) -> Answer<Vec<OsString>> {
        let node = node.clone();
        self.ask(|done| Call::Listxattr { node, done })
    }

    pub(crate) fn removexattr(&self, node: &Node, name: impl AsRef<OsStr>) -> Answer<Attr> {
        let (node, name) = (node.clone(), name.as_ref().into());
        self.ask(|done| Call::Removexattr { node, name, done })
    }

    pub(crate) fn fallocate(&self, node: &Node, mode: FallocateMode, offset: u64, len: u64) -> Answer<Attr> {
        let (node, offset_bytes, len_bytes) = (node.clone(), offset, len);
        self.ask(|done| Call::Fallocate { node, mode, offset_bytes, len_bytes, done })
    }

    pub(crate) fn seek(&self, node: &Node, offset_bytes: u64, whence: SeekWhence) -> Answer<Option<u64>> {
        let node = node.clone();
        self.ask(|done| Call::Seek { node, offset_bytes, whence, done })
    }

    /// All entries, by as many calls as it takes.
    pub(crate) fn entries(&self, node: &Node) -> Vec<DirEntry> {
        let mut entries: Vec<DirEntry> = Vec::new();
        loop {
            let cookie = entries.last().map_or(0, |entry| entry.cookie);
            let more = self.readdir(node, cookie).expect("a directory can be read");
            if more.is_empty() {
                return entries;
            }
            entries.extend(more);
        }
    }

    pub(crate) fn sync(&self, node: &Node, scope: SyncScope) -> Answer<()> {
        let node = node.clone();
        self.ask(|done| Call::Sync { node, scope, done })
    }

    pub(crate) fn sync_volume(&self) -> Answer<()> {
        self.ask(|done| Call::SyncVolume { done })
    }

    pub(crate) fn statfs(&self) -> Statfs {
        self.ask(|done| Call::Statfs { done }).expect("a volume has a size")
    }

    /// Submits a write of `bytes`. Its frames lie in reverse order, so that each is a slice of its own.
    pub(crate) fn submit_write(&self, node: &Node, offset_bytes: u64, bytes: &[u8]) -> PendingUnit {
        let frames = self.frames(bytes.len());
        let mut gather = Gather::new(self.arena.clone(), frames.len());
        for (frame, bytes) in frames.iter().zip(bytes.chunks(FRAME_BYTES)) {
            let mut page = self.arena.write(*frame);
            page[..bytes.len()].copy_from_slice(bytes);
            page[bytes.len()..].fill(0xee); // what must never reach the file
            drop(page);
            assert!(gather.push(*frame));
        }
        let (node, len_bytes) = (node.clone(), bytes.len());
        let pending = self.submit(|done| Call::Write(WriteUnit::detached(node, offset_bytes, gather, len_bytes, done)));
        PendingUnit { pending, arena: self.arena.clone(), frames }
    }

    pub(crate) fn write(&self, node: &Node, offset_bytes: u64, bytes: &[u8]) -> Answer<usize> {
        self.submit_write(node, offset_bytes, bytes).wait().0
    }

    /// Writes all of `bytes`, in units.
    pub(crate) fn fill(&self, node: &Node, bytes: &[u8]) {
        for (number, unit) in (0..).zip(bytes.chunks(1 << 20)) {
            assert_eq!(self.write(node, number << 20, unit), Ok(unit.len()));
        }
    }

    /// Reads whole pages from `offset_bytes` on; the answer ends where the file does.
    pub(crate) fn read(&self, node: &Node, offset_bytes: u64, len_bytes: usize) -> Answer<Vec<u8>> {
        let frames = self.frames(len_bytes);
        let mut scatter = Scatter::new(self.arena.clone(), frames.len());
        for frame in &frames {
            self.arena.write(*frame).fill(0xdd); // what must never count as read
            assert!(scatter.push(*frame));
        }
        let node = node.clone();
        let pending = self.submit(|done| Call::Read(ReadUnit::detached(node, offset_bytes, scatter, len_bytes, done)));
        let (count, bytes) = PendingUnit { pending, arena: self.arena.clone(), frames }.wait();
        Ok(bytes[..count?].to_vec())
    }

    fn frames(&self, len_bytes: usize) -> Vec<FrameId> {
        let (mut frames, count) = (Vec::new(), len_bytes.div_ceil(FRAME_BYTES));
        assert_eq!(self.arena.alloc_many(Pool::Reserve, count, &mut frames), count);
        frames.reverse();
        frames
    }
}

impl PendingUnit {
    /// The answer, and the bytes of the frames.
    pub(crate) fn wait(self) -> (Answer<usize>, Vec<u8>) {
        let answer = self.pending.wait().map_err(|error| error.kind());
        let page = |frame: &FrameId| self.arena.read(*frame).to_vec();
        let bytes = self.frames.iter().flat_map(page).collect();
        self.frames.into_iter().for_each(|frame| self.arena.free(frame));
        (answer, bytes)
    }
}

/// Bytes that differ from page to page and from seed to seed, and at the ends of each page from its middle.
pub(crate) fn pattern(seed: u8, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![seed; len_bytes];
    for (number, page) in bytes.chunks_mut(FRAME_BYTES).enumerate() {
        page[0] = number as u8;
        page[page.len() - 1] = !(number as u8);
    }
    bytes
}

/// Whoever the calling thread acts for, without a umask.
pub(crate) fn myself() -> Creator {
    Creator { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), umask: 0 }
}

/// Runs `test` as a user without privileges, in a thread of its own: the others keep theirs. It gets a
/// directory that is this user's; the build is not for this user's eyes. Skipped without root.
pub(crate) fn as_nobody(test: impl FnOnce(&Path) + Send) {
    const NOBODY: u32 = 65_534;
    if !is_root() {
        return println!("skipped: without root there is no other user to be");
    }
    let dir = TempDir::new_in("/tmp");
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("ours to give away");
    let body = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[]).expect("root may");
        set_thread_res_gid(gid, gid, gid).expect("root may");
        set_thread_res_uid(uid, uid, uid).expect("root may");
        test(dir.path());
    };
    std::thread::scope(|scope| scope.spawn(body).join()).expect("the test passes");
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An empty directory, removed when dropped.
pub(crate) struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// A directory under `parent`.
    pub(crate) fn new_in(parent: impl AsRef<Path>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.as_ref().join(format!("slackwater-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Self { path }
    }

    /// A directory on the file system of the build: a real one, as a rule.
    pub(crate) fn new() -> Self {
        Self::new_in(env!("CARGO_TARGET_TMPDIR"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until `count` descriptors of this process are open on files below: whoever answered a call
    /// lets go of its node a moment later.
    ///
    /// # Panics
    /// When there are others after a while.
    pub(crate) fn expect_open_descriptors(&self, count: usize) {
        let start = Instant::now();
        while self.open_descriptors() != count {
            assert!(start.elapsed() < PATIENCE, "{} descriptors, expected {count}", self.open_descriptors());
            std::thread::yield_now();
        }
    }

    /// Descriptors of this process that are open on files below, deleted ones included.
    pub(crate) fn open_descriptors(&self) -> usize {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
        let target = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
        let is_below = |path: &PathBuf| path.as_os_str().as_bytes().starts_with(self.path.as_os_str().as_bytes());
        descriptors.filter_map(target).filter(is_below).count()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // The test may have removed it.
        std::fs::remove_dir_all(&self.path).ok();
    }
}
