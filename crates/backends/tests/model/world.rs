//! The engine beside plain vectors.

use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{FallocateMode, MemBackend, NewNode, Removal, SeekWhence};
use slackwater::{
    Engine, ErrorKind, File, FileError, ManualClock, PAGE_BYTES, ReadRequest, SuperBlock, Timestamp, Tunables,
    UmountOptions, WaitFor, WriteFlags, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_testkit::{Fault, FaultControl, Rule, RuleId};

use crate::history::Dice;

/// Files of a history.
pub(crate) const FILES: usize = 3;
const ARENA_BYTES: u64 = 2 << 20;
/// The most that can land at once in such an arena.
const LANDING_BYTES: usize = 128 << 10;

thread_local! {
    /// The arena of the last history, if it came back with every frame free: making one takes longer than most
    /// histories.
    static SPARE: std::cell::RefCell<Option<Arc<Arena>>> = const { std::cell::RefCell::new(None) };
}

/// The expected state of one file.
#[derive(Default)]
struct Model {
    /// The content that a read returns.
    bytes: Vec<u8>,
    /// Every state since the last one that is known to be durable, that one first.
    states: Vec<Vec<u8>>,
    /// The first state is durable. Before that, the file may not exist after a crash.
    synced: bool,
}

impl Model {
    fn changed(&mut self) {
        self.states.push(self.bytes.clone());
    }

    fn durable(&mut self) {
        self.states = vec![self.bytes.clone()];
        self.synced = true;
    }
}

/// A mounted engine, which is taken apart and put together again by deaths and crashes.
struct Running {
    engine: Engine,
    volume: Arc<SuperBlock>,
    faults: FaultControl,
    holds: Vec<RuleId>,
    files: Vec<File>,
}

impl Running {
    /// Nothing is held from here on: a call that waits for the backend on this one thread would wait for ever.
    fn unhold(&mut self) {
        for rule in self.holds.drain(..) {
            self.faults.remove(rule);
        }
        self.faults.release_all();
    }
}

pub(crate) struct World {
    clock: Arc<ManualClock>,
    backend: Arc<MemBackend>,
    /// `None` only while a process dies.
    arena: Option<Arc<Arena>>,
    running: Option<Running>,
    models: Vec<Model>,
    /// A name or a size has changed since the last volume sync. A backend that forgets those while the engine lives is
    /// outside the contract.
    names_changed: bool,
}

fn tunables() -> Tunables {
    Tunables { flusher_threads: 0, volume_share_percent: 12, failed_share_percent: 6, ..Tunables::default() }
}

impl World {
    pub(crate) fn new() -> Self {
        let arena = SPARE
            .with(|spare| spare.borrow_mut().take())
            .unwrap_or_else(|| Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap());
        let mut world = Self {
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000))),
            backend: Arc::new(MemBackend::new()),
            arena: Some(arena),
            running: None,
            models: (0..FILES).map(|_| Model::default()).collect(),
            names_changed: true,
        };
        let engine = Engine::new(world.arena().clone(), world.clock.clone(), tunables());
        world.start(engine);
        world
    }

    fn start(&mut self, engine: Engine) {
        let (layer, faults) = Fault::new(self.backend.clone());
        let volume = engine.mount("world", Arc::new(layer)).unwrap();
        let root = volume.root().unwrap();
        let open = |nth: usize| {
            let name = format!("file{nth}");
            let inode = volume.lookup(&root, &name).or_else(|_| volume.make(&root, &name, NewNode::File, 0o644));
            File::open(&inode.unwrap()).unwrap()
        };
        let files = (0..FILES).map(open).collect();
        drop(root);
        self.running = Some(Running { engine, volume, faults, holds: Vec::new(), files });
    }

    fn arena(&self) -> &Arc<Arena> {
        self.arena.as_ref().expect("an arena between operations")
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("running between operations")
    }

    fn file(&self, nth: usize) -> &File {
        &self.running().files[nth]
    }

    pub(crate) fn len(&self, nth: usize) -> u64 {
        self.models[nth].bytes.len() as u64
    }

    /// Prints the operation, for a run of one history.
    pub(crate) fn note(&self, what: impl std::fmt::Debug) {
        if std::env::var_os("SLACKWATER_SEED").is_some() {
            println!("model: {what:?}");
        }
    }

    pub(crate) fn write(&mut self, nth: usize, offset: u64, bytes: &[u8]) {
        self.note(("write", nth, offset, bytes.len()));
        let mut done = 0;
        for attempt in 0.. {
            let at = offset + done as u64;
            match self.try_write(nth, at, &bytes[done..]) {
                Written::Bytes(taken) => {
                    let model = &mut self.models[nth].bytes;
                    let (from, to) = (at as usize, at as usize + taken);
                    if model.len() < to {
                        model.resize(to, 0);
                    }
                    model[from..to].copy_from_slice(&bytes[done..done + taken]);
                    done += taken;
                }
                Written::NoFrames => self.free_frames(attempt),
                Written::NoSpace | _ => unreachable!("an outcome of its own"),
            }
            self.models[nth].changed();
            if done == bytes.len() {
                return;
            }
        }
    }

    /// Whole pages land in frames half of the time, where some are free. A third of the writes is DONTCACHE.
    fn try_write(&mut self, nth: usize, at: u64, bytes: &[u8]) -> Written {
        let dontcache = (at + bytes.len() as u64).is_multiple_of(3);
        let flags = if dontcache { WriteFlags::DONTCACHE } else { WriteFlags::NONE };
        let lands = at.is_multiple_of(2 * PAGE_BYTES) && (PAGE_BYTES as usize..=LANDING_BYTES).contains(&bytes.len());
        let frames = lands.then(|| self.running().volume.landing_frames(LANDING_BYTES)).flatten();
        if let Some(mut frames) = frames {
            self.note("landed");
            let mut rest = bytes;
            for slice in frames.slices_mut() {
                let (now, later) = rest.split_at(slice.len().min(rest.len()));
                slice[..now.len()].copy_from_slice(now);
                rest = later;
            }
            let file = self.file(nth);
            match file.write_landed(WriteRequest::at(at).flags(flags), &mut frames, 0..bytes.len()) {
                Err(FileError::WouldBlock) => {}
                written => return written.unwrap(),
            }
        }
        let file = self.file(nth);
        file.write(WriteRequest::at(at).flags(flags).wait(WaitFor::Backend), bytes).unwrap()
    }

    pub(crate) fn append(&mut self, nth: usize, bytes: &[u8]) {
        self.note(("append", nth, bytes.len()));
        for attempt in 0.. {
            match self.file(nth).try_append(bytes).unwrap() {
                (at, Written::Bytes(taken)) => {
                    assert_eq!(at, self.len(nth), "an append goes to the end");
                    self.models[nth].bytes.extend_from_slice(&bytes[..taken]);
                    self.models[nth].changed();
                    return;
                }
                (_, Written::NoFrames) => self.free_frames(attempt),
                (_, Written::NoSpace | _) => unreachable!("an outcome of its own"),
            }
        }
    }

    fn free_frames(&mut self, attempt: u32) {
        assert!(attempt < 100, "no room, ever");
        if attempt > 3 {
            self.heal();
        }
        self.advance(Duration::from_millis(300));
    }

    pub(crate) fn cut(&mut self, nth: usize, size: u64) {
        self.note(("cut", nth, size));
        self.heal();
        self.file(nth).set_len(size).unwrap();
        self.models[nth].bytes.resize(size as usize, 0);
        self.models[nth].changed();
        self.names_changed = true;
    }

    pub(crate) fn allocate(&mut self, nth: usize, mode: FallocateMode, offset: u64, len: u64) {
        self.note(("allocate", nth, mode, offset, len));
        self.heal();
        self.file(nth).fallocate(mode, offset, len).unwrap();
        let (from, to) = (offset as usize, (offset + len) as usize);
        let bytes = &mut self.models[nth].bytes;
        if matches!(mode, FallocateMode::Allocate | FallocateMode::Zero) && bytes.len() < to {
            bytes.resize(to, 0);
        }
        if !matches!(mode, FallocateMode::Allocate | FallocateMode::AllocateKeepSize) {
            let (from, to) = (from.min(bytes.len()), to.min(bytes.len()));
            bytes[from..to].fill(0);
        }
        self.models[nth].changed();
        self.names_changed = true;
    }

    /// Walks the file from `offset` on by its data ranges. Everything between them is zero.
    pub(crate) fn check_seek(&self, nth: usize, offset: u64) {
        let (file, bytes) = (self.file(nth), &self.models[nth].bytes);
        let mut at = offset.min(self.len(nth));
        loop {
            let data = file.seek(at, SeekWhence::Data).unwrap();
            let end = data.unwrap_or(self.len(nth));
            assert!(bytes[at as usize..end as usize].iter().all(|byte| *byte == 0), "data at {at} taken for a hole");
            let Some(data) = data else { return };
            at = file.seek(data, SeekWhence::Hole).unwrap().expect("the end is a hole");
            assert!(data < at && at <= self.len(nth), "a hole at {at} behind data at {data}");
        }
    }

    pub(crate) fn check_read(&self, nth: usize, offset: u64, len: u64) {
        let mut got = vec![0xaa; len as usize];
        let read = self.file(nth).read_at(offset, &mut got).unwrap();
        let bytes = &self.models[nth].bytes;
        let from = (offset as usize).min(bytes.len());
        let want = &bytes[from..(from + len as usize).min(bytes.len())];
        expect_equal(&got[..read], want, "read");
        if let Some(lent) = self.file(nth).peek(ReadRequest::at(offset), len as usize, |slices| slices.concat()) {
            expect_equal(&lent, want, "lent");
        }
    }

    pub(crate) fn check_reads(&self) {
        for nth in 0..FILES {
            self.check_read(nth, 0, self.len(nth) + 100);
            assert_eq!(self.file(nth).inode().size_bytes(), self.len(nth));
            let stored = self.backend.volatile_file(self.file(nth).inode().id()).unwrap_or_default();
            assert!(stored.len() as u64 <= self.len(nth), "the backing file is longer than the file");
        }
        let volume = &self.running().volume;
        assert!(volume.bdi().pinned_frames() <= volume.bdi().share_frames().max(volume_share(self.arena())));
    }

    /// Returns whether it failed.
    pub(crate) fn fsync(&mut self, nth: usize, data_only: bool) -> bool {
        self.running.as_mut().expect("running").unhold();
        let file = self.file(nth);
        let result = if data_only { file.fdatasync() } else { file.fsync() };
        self.note(("fsync", nth, &result));
        if result.is_ok() {
            let stored = self.backend.durable_file(self.file(nth).inode().id()).expect("durable");
            expect_equal(&stored, &self.models[nth].bytes, "durable after fsync");
            self.models[nth].durable();
        }
        result.is_err()
    }

    pub(crate) fn sync_volume(&mut self) {
        self.heal();
        // The first may report an earlier failure; the second has nothing to report.
        if self.running().volume.sync().is_err() {
            self.running().volume.sync().unwrap();
        }
        for nth in 0..FILES {
            let stored = self.backend.durable_file(self.file(nth).inode().id()).expect("durable");
            expect_equal(&stored, &self.models[nth].bytes, "durable after sync");
            self.models[nth].durable();
        }
        self.names_changed = false;
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        let step = Duration::from_millis(250);
        let mut left = by;
        while left > Duration::ZERO {
            let now = left.min(step);
            self.clock.advance(now);
            self.running().engine.step();
            left -= now;
        }
    }

    pub(crate) fn fault(&mut self, rule: Rule) {
        self.running().faults.add(rule);
    }

    /// The next units stay in flight until [`World::release`], or until something waits for them.
    pub(crate) fn hold(&mut self, units: u64) {
        let running = self.running.as_mut().expect("running");
        running.holds.push(running.faults.add(Rule::hold().on("write").next(units)));
    }

    /// Releases held units, in any order.
    pub(crate) fn release(&mut self, dice: &mut Dice) {
        let mut held = self.running().faults.held();
        while !held.is_empty() {
            let one = held.swap_remove(dice.below(held.len() as u64) as usize);
            self.running().faults.release(one.ticket);
        }
    }

    pub(crate) fn heal(&mut self) {
        let running = self.running.as_mut().expect("running");
        running.unhold();
        running.faults.clear();
    }

    /// kill -9: the state of the process is lost, the arena and the backend remain.
    pub(crate) fn process_dies(&mut self) {
        let Running { engine, volume, faults, files, .. } = self.running.take().expect("running");
        let fd = self.arena().try_clone_fd().unwrap();
        drop((volume, files));
        drop(engine);
        // Held units own their data, and the dead process must release it.
        for held in faults.held() {
            faults.fail(held.ticket, ErrorKind::Abandoned);
        }
        self.arena = None;
        let (arena, survivors) = Arena::open_fd(fd).unwrap();
        self.arena = Some(arena);
        let engine = Engine::recover(self.arena().clone(), survivors, self.clock.clone(), tunables());
        self.start(engine);
        self.check_reads();
    }

    /// Power failure: the arena is lost too, and the backend has its durable data.
    pub(crate) fn machine_crashes(&mut self) {
        self.heal();
        drop(self.running.take());
        self.backend.crash();
        for (nth, model) in self.models.iter_mut().enumerate() {
            let stored = self.backend.durable_file(format!("file{nth}").as_str());
            check_durable(stored.as_deref(), model);
            model.bytes = stored.unwrap_or_default();
            model.states = vec![model.bytes.clone()];
            model.synced = model.synced && !model.bytes.is_empty();
        }
        self.arena = Some(Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap());
        let engine = Engine::new(self.arena().clone(), self.clock.clone(), tunables());
        self.names_changed = true;
        self.start(engine);
    }

    /// The backend loses its unconfirmed data while the engine lives, and the engine writes that data again.
    pub(crate) fn backend_forgets(&mut self) -> bool {
        if self.names_changed {
            return false;
        }
        self.heal();
        self.backend.crash();
        self.check_reads();
        true
    }

    pub(crate) fn unlink(&mut self, nth: usize) {
        self.heal();
        let running = self.running.as_mut().expect("running");
        let root = running.volume.root().unwrap();
        let name = format!("file{nth}");
        running.volume.remove(&root, &name, Removal::File).unwrap();
        // The file is still open: it reads and accepts writes as before.
        let file = &running.files[nth];
        let mut got = vec![0; self.models[nth].bytes.len()];
        assert_eq!(file.read_at(0, &mut got).unwrap(), got.len());
        expect_equal(&got, &self.models[nth].bytes, "read of an unlinked file");
        let _ = file.write(WriteRequest::at(0).wait(WaitFor::Backend), b"gone with the last handle").unwrap();
        let fresh = File::open(&running.volume.make(&root, &name, NewNode::File, 0o644).unwrap()).unwrap();
        running.files[nth] = fresh;
        // The old name is durable until the directory is: after a crash it may be either file.
        let states = std::mem::take(&mut self.models[nth].states);
        self.models[nth] = Model { bytes: Vec::new(), states, synced: false };
        self.models[nth].changed();
        self.names_changed = true;
    }

    pub(crate) fn remount(&mut self) {
        self.heal();
        let Running { engine, volume, faults, files, .. } = self.running.take().expect("running");
        drop(files);
        volume.umount(UmountOptions::default()).unwrap();
        assert_eq!(volume.bdi().pinned_frames(), 0);
        assert_eq!(volume.status().bytes_left(), 0);
        assert_eq!(self.arena().free_frames(), u64::from(self.arena().frames()), "every frame came back");
        drop((volume, faults));
        for (nth, model) in self.models.iter_mut().enumerate() {
            let stored = self.backend.durable_file(format!("file{nth}").as_str()).expect("durable");
            expect_equal(&stored, &model.bytes, "durable after umount");
            model.durable();
        }
        self.names_changed = false;
        self.start(engine);
    }

    pub(crate) fn finish(mut self) {
        let Running { engine, volume, faults, files, .. } = self.running.take().expect("running");
        drop((files, faults));
        volume.umount(UmountOptions::default()).unwrap();
        drop((volume, engine));
        SPARE.with(|spare| *spare.borrow_mut() = self.arena.take());
    }
}

fn volume_share(arena: &Arena) -> u64 {
    u64::from(arena.frames()) * 12 / 100
}

/// Each surviving byte was there in some state since the last durable one, and so was the size between the least and
/// the greatest.
fn check_durable(stored: Option<&[u8]>, model: &Model) {
    let Some(stored) = stored else {
        assert!(!model.synced, "a synced file is gone");
        return;
    };
    let sizes = || model.states.iter().map(Vec::len);
    let least = if model.synced { sizes().min().unwrap_or(0) } else { 0 };
    assert!((least..=sizes().max().unwrap_or(0)).contains(&stored.len()), "size {} was never there", stored.len());
    for (at, byte) in stored.iter().enumerate() {
        let known = *byte == 0 && !model.synced
            || model.states.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte);
        assert!(known, "byte {at} is {byte}, which was never there");
    }
}

fn expect_equal(got: &[u8], want: &[u8], what: &str) {
    if got == want {
        return;
    }
    let at = got.iter().zip(want).position(|(got, want)| got != want);
    panic!("{what}: {} bytes, expected {}; first difference at {at:?}", got.len(), want.len());
}
