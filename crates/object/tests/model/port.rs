//! Calls on a backend, each made and answered in one line, as long as its store answers.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slackwater::backend::{
    Backend, Call, DirEntryPlus, Done, FileHandle, Found, Node, NodeKind, ReadUnit, SyncScope, WriteUnit, XattrMode,
};
use slackwater::{BackendError, ErrorKind};
use slackwater_arena::{Arena, ArenaConfig, FRAME_BYTES, FrameId, Gather, Pool, Scatter};

use crate::tree::{Content, Seen};

/// Far longer than any call takes, so that a lost answer fails a test instead of hanging it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a waiting call looks whether the store is still there.
const LOOK: Duration = Duration::from_millis(2);
/// For the largest history: a few units at once.
const ARENA_BYTES: u64 = 8 << 20;

/// Why a call has no answer that counts.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Failed {
    /// The call failed.
    With(ErrorKind),
    /// The store went away while the call was under way: it may or may not have been made.
    Unknown,
}

pub(crate) type Answer<T> = Result<T, Failed>;

/// A backend with frames for its units.
pub(crate) struct Port {
    backend: Arc<dyn Backend>,
    arena: Arc<Arena>,
    /// Whether the store is gone, so that calls that need it have no answer.
    is_cut: Box<dyn Fn() -> bool>,
}

struct Place<T> {
    answer: Mutex<Option<Result<T, BackendError>>>,
    arrived: Condvar,
}

/// All nodes of a volume, by path.
pub(crate) type Walk = BTreeMap<String, (Seen, Found)>;

/// An answer that is on its way.
pub(crate) struct Pending<T> {
    call: &'static str,
    place: Arc<Place<T>>,
}

impl<T> Pending<T> {
    fn wait(self, is_cut: &dyn Fn() -> bool) -> Answer<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut answer = self.place.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = answer.take() {
                return answer.map_err(|error| Failed::With(error.kind()));
            }
            if is_cut() {
                return Err(Failed::Unknown);
            }
            assert!(Instant::now() < deadline, "`{}` is not answered within {PATIENCE:?}", self.call);
            answer = self.place.arrived.wait_timeout(answer, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A write or read that is on its way, and its frames.
pub(crate) struct PendingUnit {
    pending: Pending<usize>,
    frames: Vec<FrameId>,
}

impl Port {
    pub(crate) fn new(backend: Arc<dyn Backend>, is_cut: impl Fn() -> bool + 'static) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
        Self { backend, arena, is_cut: Box::new(is_cut) }
    }

    pub(crate) fn is_cut(&self) -> bool {
        (self.is_cut)()
    }

    fn submit<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Pending<T> {
        let place = Arc::new(Place { answer: Mutex::new(None), arrived: Condvar::new() });
        let arrives = place.clone();
        let call = call(Done::new(move |answer| {
            *arrives.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            arrives.arrived.notify_all();
        }));
        let name = call.name();
        self.backend.submit(call);
        Pending { call: name, place }
    }

    pub(crate) fn ask<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Answer<T> {
        self.submit(call).wait(&self.is_cut)
    }

    pub(crate) fn root(&self) -> Answer<Found> {
        self.ask(|done| Call::Root { done })
    }

    pub(crate) fn lookup(&self, dir: &Node, name: impl AsRef<OsStr>) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Lookup { dir, name, done })
    }

    pub(crate) fn reopen(&self, handle: FileHandle) -> Answer<Found> {
        self.ask(|done| Call::Reopen { handle, id: None, done })
    }

    pub(crate) fn set_xattr(&self, node: &Node, name: &str, value: &[u8]) -> Answer<()> {
        let (node, name, value) = (node.clone(), name.into(), value.to_vec());
        self.ask(|done| Call::Setxattr { node, name, value, mode: XattrMode::Set, done }).map(drop)
    }

    pub(crate) fn submit_sync(&self, node: Option<&Node>) -> Pending<()> {
        let node = node.cloned();
        self.submit(|done| match node {
            Some(node) => Call::Sync { node, scope: SyncScope::All, done },
            None => Call::SyncVolume { done },
        })
    }

    pub(crate) fn wait<T>(&self, pending: Pending<T>) -> Answer<T> {
        pending.wait(&self.is_cut)
    }

    /// Submits a write of `bytes`. Its frames are in reverse order, so that each is a slice of its own.
    pub(crate) fn submit_write(&self, node: &Node, offset_bytes: u64, bytes: &[u8]) -> PendingUnit {
        let frames = self.frames(bytes.len());
        let mut gather = Gather::new(self.arena.clone(), frames.len());
        for (frame, bytes) in frames.iter().zip(bytes.chunks(FRAME_BYTES)) {
            let mut page = self.arena.write(*frame);
            page[..bytes.len()].copy_from_slice(bytes);
            page[bytes.len()..].fill(0xee); // bytes that must never reach the file
            drop(page);
            assert!(gather.push(*frame));
        }
        let (node, len_bytes) = (node.clone(), bytes.len());
        let pending = self.submit(|done| Call::Write(WriteUnit::detached(node, offset_bytes, gather, len_bytes, done)));
        PendingUnit { pending, frames }
    }

    /// The number of bytes moved. The frames of a unit without an answer stay with the backend.
    pub(crate) fn wait_unit(&self, unit: PendingUnit) -> Answer<(usize, Vec<u8>)> {
        let answer = unit.pending.wait(&self.is_cut);
        if answer == Err(Failed::Unknown) {
            return Err(Failed::Unknown);
        }
        let bytes = unit.frames.iter().flat_map(|frame| self.arena.read(*frame).to_vec()).collect();
        unit.frames.into_iter().for_each(|frame| self.arena.free(frame));
        answer.map(|count| (count, bytes))
    }

    /// Reads whole pages from `offset_bytes` on; the answer ends where the file does.
    pub(crate) fn read(&self, node: &Node, offset_bytes: u64, len_bytes: usize) -> Answer<Vec<u8>> {
        let frames = self.frames(len_bytes);
        let mut scatter = Scatter::new(self.arena.clone(), frames.len());
        for frame in &frames {
            self.arena.write(*frame).fill(0xdd); // bytes that must never count as read
            assert!(scatter.push(*frame));
        }
        let node = node.clone();
        let pending = self.submit(|done| Call::Read(ReadUnit::detached(node, offset_bytes, scatter, len_bytes, done)));
        let (count, mut bytes) = self.wait_unit(PendingUnit { pending, frames })?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn frames(&self, len_bytes: usize) -> Vec<FrameId> {
        let (mut frames, count) = (Vec::new(), len_bytes.div_ceil(FRAME_BYTES));
        assert_eq!(self.arena.alloc_many(Pool::Reserve, count, &mut frames), count, "free frames");
        frames.reverse();
        frames
    }

    /// All bytes of a file of `size` bytes.
    pub(crate) fn read_all(&self, node: &Node, size: u64) -> Answer<Vec<u8>> {
        const UNIT: u64 = 256 << 10;
        let mut bytes = Vec::new();
        for at in (0..size.max(1)).step_by(UNIT as usize) {
            let len = (size - at).clamp(1, UNIT) as usize;
            bytes.extend(self.read(node, at, len.next_multiple_of(FRAME_BYTES))?);
        }
        Ok(bytes)
    }

    /// All nodes of the volume, by path.
    pub(crate) fn walk(&self) -> Answer<Walk> {
        let mut seen = Walk::new();
        let mut first_names = BTreeMap::new();
        self.walk_node(self.root()?, "/".into(), &mut first_names, &mut seen)?;
        Ok(seen)
    }

    fn walk_node(
        &self,
        found: Found,
        path: String,
        first_names: &mut BTreeMap<u64, String>,
        seen: &mut Walk,
    ) -> Answer<()> {
        let (node, attr) = (found.node.clone(), found.attr);
        let first_name = first_names.entry(attr.id.ino).or_insert_with(|| path.clone()).clone();
        let content = match attr.kind {
            NodeKind::File => Content::File(Arc::new(self.read_all(&node, attr.size_bytes)?)),
            NodeKind::Directory => Content::Directory,
            NodeKind::Symlink => {
                let link = node.clone();
                let target = self.ask(|done| Call::Readlink { node: link, done })?;
                Content::Symlink(target.into_string().unwrap())
            }
            NodeKind::Special => Content::Special(attr.mode & 0o170_000),
        };
        if attr.kind == NodeKind::Directory {
            for DirEntryPlus { entry, found } in self.entries(&node)? {
                let found = found.expect("a name that was not removed leads to a node");
                assert_eq!(entry.ino, found.attr.id.ino);
                let path = format!("{path}{}/", entry.name.to_str().unwrap());
                self.walk_node(found, path, first_names, seen)?;
            }
        }
        let mut xattrs = BTreeMap::new();
        for name in self.xattr_names(&node)? {
            let (own, key) = (node.clone(), name.to_str().unwrap().to_owned());
            xattrs.insert(key, self.ask(|done| Call::Getxattr { node: own, name, done })?);
        }
        let (mode, names) = (attr.mode & 0o7777, attr.nlink as usize);
        seen.insert(path, (Seen { first_name, content, mode, xattrs, names }, found));
        Ok(())
    }

    fn xattr_names(&self, node: &Node) -> Answer<Vec<OsString>> {
        let node = node.clone();
        self.ask(|done| Call::Listxattr { node, done })
    }

    fn entries(&self, dir: &Node) -> Answer<Vec<DirEntryPlus>> {
        let mut entries: Vec<DirEntryPlus> = Vec::new();
        loop {
            let (node, cookie) = (dir.clone(), entries.last().map_or(0, |last| last.entry.cookie));
            let more = self.ask(|done| Call::ReaddirPlus { node, cookie, done })?;
            if more.is_empty() {
                entries.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
                return Ok(entries);
            }
            entries.extend(more);
        }
    }
}
