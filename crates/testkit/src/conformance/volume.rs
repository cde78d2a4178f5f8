//! A volume whose calls are made and answered in one line.

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::panic::resume_unwind;
use std::time::Duration;

use slackwater::backend::{
    Attr, AttrChange, Backend, Call, Creator, DirEntry, DirEntryPlus, Done, FallocateMode, FileHandle, Found, NewNode,
    Node, ReadUnit, Removal, RenameMode, SeekWhence, Statfs, SyncScope, WriteUnit, XattrMode,
};
use slackwater::{BackendError, ErrorKind, NodeId};
use slackwater_arena::{Arena, ArenaConfig, FRAME_BYTES, FrameId, Gather, Pool, Scatter};
use slackwater_sync::Completion;
use slackwater_sync::lock::{Mutex, Rank};
use slackwater_sync::shim::Arc;

/// The answer to a call.
pub type Answer<T> = Result<T, ErrorKind>;

/// How often a waiting call looks whether the backend is still there.
const LOOK: Duration = Duration::from_millis(2);

/// A minute: far longer than any call takes, so that a lost answer fails a test instead of hanging it.
const LOOKS: u32 = 30_000;

/// How many of the last calls a broken rule reports.
const REPORTED_CALLS: usize = 8;

/// A leaf. Above the ranks of a backend, which may answer a call under a lock of its own.
const ANSWERS: Rank = Rank::new(90, "conformance");

/// Whether the backend answers no further calls.
type IsGone = dyn Fn() -> bool + Send + Sync;

/// A backend under test, with frames for its units.
pub struct Volume {
    pub(crate) backend: Arc<dyn Backend>,
    lacks: fn(&Call) -> bool,
    is_gone: Arc<IsGone>,
    calls: Arc<Mutex<Calls>>,
    arena: Arc<Arena>,
}

/// The payload with which a test unwinds at a call that the backend lacks.
pub(crate) struct Lacking {
    pub(crate) call: &'static str,
}

/// The last calls that were submitted, and how many came before them.
#[derive(Default)]
struct Calls {
    forgotten: usize,
    last: VecDeque<Made>,
}

struct Made {
    name: &'static str,
    /// None until it is answered; then the error, if it failed.
    answer: Option<Result<(), ErrorKind>>,
}

impl Calls {
    /// Reserves the place of the next call and returns its number.
    fn begin(&mut self) -> usize {
        if self.last.len() == REPORTED_CALLS {
            self.last.pop_front();
            self.forgotten += 1;
        }
        self.last.push_back(Made { name: "none", answer: None });
        self.forgotten + self.last.len() - 1
    }

    /// A call that is still remembered.
    fn get(&mut self, number: usize) -> Option<&mut Made> {
        self.last.get_mut(number.checked_sub(self.forgotten)?)
    }

    /// The last call, and a line with the ones before it.
    fn report(&self) -> String {
        let mut text = format!("`{}`", self.last.back().map_or("none", |call| call.name));
        if let Some(Made { answer: Some(Err(ErrorKind::Unsupported)), .. }) = self.last.back() {
            text += " (if the backend does not offer it, use `check_without`)";
        }
        text += if self.forgotten == 0 { "\ncalls: " } else { "\ncalls: ... " };
        for (at, Made { name, answer }) in self.last.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let answer = match answer {
                None => "no answer yet".into(),
                Some(Ok(())) => "ok".into(),
                Some(Err(kind)) => format!("{kind:?}"),
            };
            write!(text, "{separator}{name}: {answer}").expect("a string takes any text");
        }
        text
    }
}

/// An answer that is on its way.
pub struct Pending<T> {
    call: &'static str,
    /// Whether the test declares that the backend lacks the call.
    is_lacking: bool,
    is_gone: Arc<IsGone>,
    place: Arc<Place<T>>,
}

/// Where an answer arrives.
struct Place<T> {
    answer: Mutex<Option<Result<T, BackendError>>>,
    is_there: Completion,
}

impl<T> Pending<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// The call's own; `Abandoned` if the backend is [gone](Volume::until_gone) and has not answered.
    ///
    /// # Panics
    /// If the answer does not arrive within a minute.
    pub fn wait(self) -> Result<T, BackendError> {
        let (call, mut looks) = (self.call, 0);
        while self.place.is_there.wait_timeout(LOOK) {
            if (self.is_gone)() {
                return Err(ErrorKind::Abandoned.into());
            }
            looks += 1;
            assert!(looks < LOOKS, "`{call}` is not answered within a minute: every call must be answered (B2)");
        }
        let answer = self.place.answer.lock().take().expect("it is there");
        if self.is_lacking {
            let kind = answer.as_ref().err().map(BackendError::kind);
            assert_eq!(kind, Some(ErrorKind::Unsupported), "`{call}`, which is declared as lacking");
            let payload: Box<dyn Any + Send> = Box::new(Lacking { call });
            resume_unwind(payload);
        }
        answer
    }
}

/// A write or read that is on its way, and its frames.
pub struct PendingUnit {
    pending: Pending<usize>,
    arena: Arc<Arena>,
    frames: Vec<FrameId>,
}

impl Volume {
    /// A volume of `backend`.
    ///
    /// # Panics
    /// Without memory for an arena.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self::without(backend, |_| false)
    }

    /// Calls that have no answer when `is_gone` becomes true are `Abandoned`.
    #[must_use]
    pub fn until_gone(self, is_gone: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_gone: Arc::new(is_gone), ..self }
    }

    /// Whether calls have no answer any more.
    pub fn is_gone(&self) -> bool {
        (self.is_gone)()
    }

    /// A volume of a backend without the calls for which `lacks` is true.
    pub(crate) fn without(backend: Arc<dyn Backend>, lacks: fn(&Call) -> bool) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(16 << 20)).expect("memory for an arena");
        Self {
            backend,
            lacks,
            is_gone: Arc::new(|| false),
            calls: Arc::new(Mutex::new(ANSWERS, Calls::default())),
            arena,
        }
    }

    /// The name of the last call, and below it the last calls with their answers.
    pub(crate) fn calls(&self) -> String {
        self.calls.lock().report()
    }

    /// Submits a call, without waiting for its answer.
    pub fn submit<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Pending<T> {
        let place = Arc::new(Place { answer: Mutex::new(ANSWERS, None), is_there: Completion::new() });
        let number = self.calls.lock().begin();
        let (calls, arrives) = (self.calls.clone(), place.clone());
        let call = call(Done::new(move |answer: Result<T, BackendError>| {
            let outcome = answer.as_ref().map(drop).map_err(BackendError::kind);
            calls.lock().get(number).into_iter().for_each(|call| call.answer = Some(outcome));
            *arrives.answer.lock() = Some(answer);
            arrives.is_there.complete_all();
        }));
        let (name, is_lacking) = (call.name(), (self.lacks)(&call));
        self.calls.lock().get(number).into_iter().for_each(|call| call.name = name);
        self.backend.submit(call);
        Pending { call: name, is_lacking, is_gone: self.is_gone.clone(), place }
    }

    /// Submits a call and waits for its answer.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn ask<T: Send + 'static>(&self, call: impl FnOnce(Done<T>) -> Call) -> Answer<T> {
        self.submit(call).wait().map_err(|error| error.kind())
    }

    /// Submits a write of `bytes`. Its frames are in reverse order, so that each is a slice of its own.
    ///
    /// # Panics
    /// If too few frames are free.
    pub fn submit_write(&self, node: &Node, offset_bytes: u64, bytes: &[u8]) -> PendingUnit {
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
        PendingUnit { pending, arena: self.arena.clone(), frames }
    }

    /// Reads whole pages from `offset_bytes` on; the answer ends where the file does.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    ///
    /// # Panics
    /// If too few frames are free.
    pub fn read(&self, node: &Node, offset_bytes: u64, len_bytes: usize) -> Answer<Vec<u8>> {
        let frames = self.frames(len_bytes);
        let mut scatter = Scatter::new(self.arena.clone(), frames.len());
        for frame in &frames {
            self.arena.write(*frame).fill(0xdd); // bytes that must never count as read
            assert!(scatter.push(*frame));
        }
        let node = node.clone();
        let pending = self.submit(|done| Call::Read(ReadUnit::detached(node, offset_bytes, scatter, len_bytes, done)));
        let (count, bytes) = PendingUnit { pending, arena: self.arena.clone(), frames }.wait();
        let count = count?;
        Ok(bytes[..count].to_vec())
    }

    fn frames(&self, len_bytes: usize) -> Vec<FrameId> {
        let (mut frames, count) = (Vec::new(), len_bytes.div_ceil(FRAME_BYTES));
        assert_eq!(self.arena.alloc_many(Pool::Reserve, count, &mut frames), count);
        frames.reverse();
        frames
    }
}

/// The calls of a backend, one method each, which submits the call and waits for its answer.
#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "a method has the name, the arguments and the errors of its call; without a `Result`, it panics on an error"
)]
impl Volume {
    pub fn root(&self) -> Node {
        self.ask(|done| Call::Root { done }).expect("a volume has a root").node
    }

    pub fn lookup(&self, dir: &Node, name: impl AsRef<OsStr>) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Lookup { dir, name, done })
    }

    pub fn reopen(&self, handle: &FileHandle, id: NodeId) -> Answer<Found> {
        let handle = handle.clone();
        self.ask(|done| Call::Reopen { handle, id: Some(id), nameless: false, done })
    }

    pub fn attr(&self, node: &Node) -> Attr {
        let node = node.clone();
        self.ask(|done| Call::Getattr { node, done }).expect("an open node has attributes")
    }

    pub fn setattr(&self, node: &Node, change: AttrChange) -> Answer<Attr> {
        let node = node.clone();
        self.ask(|done| Call::Setattr { node, change, done })
    }

    pub fn resize(&self, node: &Node, size_bytes: u64) -> Answer<Attr> {
        self.setattr(node, AttrChange { size_bytes: Some(size_bytes), ..AttrChange::default() })
    }

    pub fn make(&self, dir: &Node, name: impl AsRef<OsStr>, what: NewNode, mode: u32) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Make { dir, name, what, mode, creator: None, done })
    }

    pub fn make_as(
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

    pub fn tmpfile(&self, dir: &Node, mode: u32, creator: Option<Creator>) -> Answer<Found> {
        let dir = dir.clone();
        self.ask(|done| Call::Tmpfile { dir, mode, creator, done })
    }

    pub fn file(&self, dir: &Node, name: impl AsRef<OsStr>) -> Node {
        self.make(dir, name, NewNode::File, 0o644).expect("a file can be made").node
    }

    pub fn directory(&self, dir: &Node, name: impl AsRef<OsStr>) -> Node {
        self.make(dir, name, NewNode::Directory, 0o755).expect("a directory can be made").node
    }

    pub fn link(&self, node: &Node, dir: &Node, name: impl AsRef<OsStr>) -> Answer<Attr> {
        let (node, dir, name) = (node.clone(), dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Link { node, dir, name, done })
    }

    pub fn remove(&self, dir: &Node, name: impl AsRef<OsStr>, removal: Removal) -> Answer<()> {
        self.removed(dir, name, removal).map(drop)
    }

    /// Removes a name as [`Volume::remove`] does, but returns the node that had it.
    pub fn removed(&self, dir: &Node, name: impl AsRef<OsStr>, removal: Removal) -> Answer<Found> {
        let (dir, name) = (dir.clone(), name.as_ref().into());
        self.ask(|done| Call::Remove { dir, name, removal, done })
    }

    pub fn rename(&self, from: (&Node, &str), to: (&Node, &str), mode: RenameMode) -> Answer<()> {
        self.rename_os((from.0, from.1.as_ref()), (to.0, to.1.as_ref()), mode)
    }

    pub fn rename_os(&self, from: (&Node, &OsStr), to: (&Node, &OsStr), mode: RenameMode) -> Answer<()> {
        let ((from_dir, from), (to_dir, to)) = ((from.0.clone(), from.1.into()), (to.0.clone(), to.1.into()));
        self.ask(|done| Call::Rename { from_dir, from, to_dir, to, mode, done })
    }

    pub fn readlink(&self, node: &Node) -> Answer<OsString> {
        let node = node.clone();
        self.ask(|done| Call::Readlink { node, done })
    }

    pub fn readdir(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntry>> {
        let node = node.clone();
        self.ask(|done| Call::Readdir { node, cookie, done })
    }

    pub fn readdir_plus(&self, node: &Node, cookie: u64) -> Answer<Vec<DirEntryPlus>> {
        let node = node.clone();
        self.ask(|done| Call::ReaddirPlus { node, cookie, done })
    }

    pub fn getxattr(&self, node: &Node, name: impl AsRef<OsStr>) -> Answer<Vec<u8>> {
        let (node, name) = (node.clone(), name.as_ref().into());
        self.ask(|done| Call::Getxattr { node, name, done })
    }

    pub fn setxattr(&self, node: &Node, name: impl AsRef<OsStr>, value: &[u8], mode: XattrMode) -> Answer<Attr> {
        let (node, name, value) = (node.clone(), name.as_ref().into(), value.to_vec());
        self.ask(|done| Call::Setxattr { node, name, value, mode, done })
    }

    pub fn listxattr(&self, node: &Node) -> Answer<Vec<OsString>> {
        let node = node.clone();
        self.ask(|done| Call::Listxattr { node, done })
    }

    pub fn removexattr(&self, node: &Node, name: impl AsRef<OsStr>) -> Answer<Attr> {
        let (node, name) = (node.clone(), name.as_ref().into());
        self.ask(|done| Call::Removexattr { node, name, done })
    }

    pub fn fallocate(&self, node: &Node, mode: FallocateMode, offset: u64, len: u64) -> Answer<Attr> {
        let (node, offset_bytes, len_bytes) = (node.clone(), offset, len);
        self.ask(|done| Call::Fallocate { node, mode, offset_bytes, len_bytes, done })
    }

    pub fn seek(&self, node: &Node, offset_bytes: u64, whence: SeekWhence) -> Answer<Option<u64>> {
        let node = node.clone();
        self.ask(|done| Call::Seek { node, offset_bytes, whence, done })
    }

    /// All entries, by as many calls as it takes.
    pub fn entries(&self, node: &Node) -> Vec<DirEntry> {
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

    pub fn sync(&self, node: &Node, scope: SyncScope) -> Answer<()> {
        let node = node.clone();
        self.ask(|done| Call::Sync { node, scope, done })
    }

    pub fn sync_volume(&self) -> Answer<()> {
        self.ask(|done| Call::SyncVolume { done })
    }

    pub fn statfs(&self) -> Statfs {
        self.ask(|done| Call::Statfs { done }).expect("a volume has a size")
    }

    pub fn write(&self, node: &Node, offset_bytes: u64, bytes: &[u8]) -> Answer<usize> {
        self.submit_write(node, offset_bytes, bytes).wait().0
    }

    /// Writes all of `bytes`, in units.
    pub fn fill(&self, node: &Node, bytes: &[u8]) {
        for (number, unit) in (0..).zip(bytes.chunks(1 << 20)) {
            assert_eq!(self.write(node, number << 20, unit), Ok(unit.len()));
        }
    }
}

impl PendingUnit {
    /// Waits for the number of bytes moved; and for the bytes of the frames, unless the unit is `Abandoned`: its frames
    /// stay with the backend.
    pub fn wait(self) -> (Answer<usize>, Vec<u8>) {
        let answer = self.pending.wait().map_err(|error| error.kind());
        if answer == Err(ErrorKind::Abandoned) {
            return (answer, Vec::new());
        }
        let page = |frame: &FrameId| self.arena.read(*frame).to_vec();
        let bytes = self.frames.iter().flat_map(page).collect();
        self.frames.into_iter().for_each(|frame| self.arena.free(frame));
        (answer, bytes)
    }
}

/// The user of the calling thread, without a umask.
pub fn myself() -> Creator {
    Creator { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), umask: 0 }
}

/// Whether the calling thread runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
