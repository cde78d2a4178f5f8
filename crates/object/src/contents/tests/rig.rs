//! A tree, a writer and a reader on a store in memory, with faults.

use object_store::ObjectStore;
use object_store::memory::InMemory;
use slackwater::backend::{Done, Node, ReadUnit, WriteUnit};
use slackwater::{BackendError, ErrorKind};
use slackwater::{NodeId, Timestamp};
use slackwater_arena::{Arena, ArenaConfig, FRAME_BYTES, FrameId, Gather, Pool, Scatter};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

use crate::contents::{Reader, Writer};
use crate::format::{Encode, Inode, Key};
use crate::layers::{Fault, Layered};
use crate::runtime;
use crate::segments::Segments;
use crate::tree::{Guard, Place, Tree, TreeOptions};

pub(crate) struct Rig {
    pub(crate) fault: Arc<Fault>,
    pub(crate) store: Arc<dyn ObjectStore>,
    arena: Arc<Arena>,
    /// How often the volume was opened.
    claims: Arc<AtomicU64>,
}

/// An open volume.
pub(crate) struct Volume {
    pub(crate) tree: Arc<Tree>,
    pub(crate) segments: Segments,
    writer: Arc<Writer>,
    reader: Arc<Reader>,
    arena: Arc<Arena>,
}

/// A unit on its way.
pub(crate) struct Pending {
    answer: oneshot::Receiver<Result<usize, BackendError>>,
    arena: Arc<Arena>,
    frames: Vec<FrameId>,
}

/// Bytes that differ by their page and by `seed`.
pub(crate) fn bytes(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![seed as u8; len];
    for (number, page) in bytes.chunks_mut(FRAME_BYTES).enumerate() {
        for (at, byte) in page.iter_mut().enumerate().step_by(509) {
            *byte = (number * 7 + at + seed * 13) as u8;
        }
    }
    bytes
}

/// Runs a test in the crate's runtime.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    runtime::handle().expect("threads").block_on(test)
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(InMemory::new()))
    }

    pub(crate) fn over(store: Arc<dyn ObjectStore>) -> Self {
        let fault = Arc::new(Fault::new());
        let store = Arc::new(Layered::new(fault.clone(), store));
        let arena = Arena::create(&ArenaConfig::memfd(256 << 20)).expect("memory for an arena");
        Self { fault, store, arena, claims: Arc::default() }
    }

    pub(crate) async fn open(&self) -> Volume {
        // As claims do it: the last one to open the volume has it.
        let claim = self.claims.fetch_add(1, Ordering::SeqCst) + 1;
        let claims = self.claims.clone();
        let guard: Guard = Arc::new(move || {
            let is_ours = claims.load(Ordering::SeqCst) == claim;
            Box::pin(async move { if is_ours { Ok(()) } else { Err(ErrorKind::Stale.into()) } })
        });
        let place = Place { guard, ..Place::alone(self.store.clone()) };
        // Commits happen when the test says so.
        let options = TreeOptions::by_hand();
        let (tree, _) = Tree::open(place, options).await.expect("opens");
        let segments = Segments::new(self.store.clone());
        let runtime = runtime::handle().expect("threads");
        let writer = Writer::new(tree.clone(), segments.clone(), runtime.clone());
        let reader = Reader::new(tree.clone(), segments.clone(), runtime);
        Volume { tree, segments, writer, reader, arena: self.arena.clone() }
    }
}

impl Volume {
    pub(crate) async fn make(&self, ino: u64) {
        let inode = Inode { nlink: 1, ..Inode::new(0o100_644, Timestamp(0)) };
        let made = self.tree.run(|view| {
            while view.new_ino() < ino {}
            view.put(Key::Inode(ino), inode.encode());
            Ok(())
        });
        made.await.expect("an inode can be stored");
    }

    fn frames(&self, len_bytes: usize, is_scattered: bool) -> Vec<FrameId> {
        let (mut frames, count) = (Vec::new(), len_bytes.div_ceil(FRAME_BYTES));
        assert_eq!(self.arena.alloc_many(Pool::Reserve, count, &mut frames), count);
        if is_scattered {
            frames.reverse();
        }
        frames
    }

    /// Submits a unit. If it is scattered, each of its pages is a slice of its own.
    pub(crate) fn submit_write(&self, ino: u64, offset_bytes: u64, bytes: &[u8], how: How) -> Pending {
        let frames = self.frames(bytes.len(), how.is_scattered);
        let mut gather = Gather::new(self.arena.clone(), frames.len());
        for (frame, bytes) in frames.iter().zip(bytes.chunks(FRAME_BYTES)) {
            let mut page = self.arena.write(*frame);
            page[..bytes.len()].copy_from_slice(bytes);
            page[bytes.len()..].fill(0xee); // bytes that must never reach the file
            drop(page);
            assert!(gather.push(*frame));
        }
        let (done, answer) = done();
        let unit = WriteUnit::detached(node(ino), offset_bytes, gather, bytes.len(), done);
        self.writer.write(ino, unit.for_sync(how.is_for_sync));
        Pending { answer, arena: self.arena.clone(), frames }
    }

    pub(crate) async fn write(&self, ino: u64, offset_bytes: u64, bytes: &[u8]) {
        let (answer, _) = self.submit_write(ino, offset_bytes, bytes, How::default()).wait().await;
        assert_eq!(answer.expect("the store works"), bytes.len());
    }

    pub(crate) fn submit_read(&self, ino: u64, offset_bytes: u64, len_bytes: usize) -> Pending {
        let frames = self.frames(len_bytes, true);
        let mut scatter = Scatter::new(self.arena.clone(), frames.len());
        for frame in &frames {
            self.arena.write(*frame).fill(0xdd); // bytes that must never count as read
            assert!(scatter.push(*frame));
        }
        let (done, answer) = done();
        self.reader.read(ino, ReadUnit::detached(node(ino), offset_bytes, scatter, len_bytes, done));
        Pending { answer, arena: self.arena.clone(), frames }
    }

    pub(crate) async fn read(&self, ino: u64, offset_bytes: u64, len_bytes: usize) -> Result<Vec<u8>, BackendError> {
        let (count, mut bytes) = self.submit_read(ino, offset_bytes, len_bytes).wait().await;
        bytes.truncate(count?);
        Ok(bytes)
    }

    pub(crate) async fn commit(&self) {
        self.tree.commit().await.expect("the store works");
    }
}

/// How a unit is written.
#[derive(Copy, Clone, Default)]
pub(crate) struct How {
    pub(crate) is_for_sync: bool,
    pub(crate) is_scattered: bool,
}

impl Pending {
    /// The answer, and the bytes of the frames.
    pub(crate) async fn wait(self) -> (Result<usize, BackendError>, Vec<u8>) {
        let answer = self.answer.await.expect("every unit is answered");
        let mut bytes = Vec::new();
        self.frames.iter().for_each(|frame| bytes.extend_from_slice(&self.arena.read(*frame).to_vec()));
        self.frames.into_iter().for_each(|frame| self.arena.free(frame));
        (answer, bytes)
    }

    pub(crate) fn is_answered(&self) -> bool {
        !self.answer.is_empty()
    }
}

fn done() -> (Done<usize>, oneshot::Receiver<Result<usize, BackendError>>) {
    let (sender, answer) = oneshot::channel();
    let done = Done::new(move |result| {
        // A test that has failed does not wait any more.
        let _ = sender.send(result);
    });
    (done, answer)
}

fn node(ino: u64) -> Node {
    Node::new(NodeId { dev: 1, ino, generation: 0 }, ())
}

/// How many rounds of a test to run: all of them in the full checks, which set `SLACKWATER_LONG`.
pub(crate) fn rounds(usual: u32, all: u32) -> u32 {
    if std::env::var_os("SLACKWATER_LONG").is_some() { all } else { usual }
}
