//! An engine over a memory backend with injected faults, and functions that its tests share.
//!
//! Most tests drive the engine by hand: a clock that stands still, no flusher threads, [`Engine::step`]. The fault
//! layer holds calls, so that "in flight" is a state a test can stay in. [`spawn`] or [`within`] run a call that may
//! hang, and fail the test instead of hanging it.

pub(crate) mod stacks;
pub(crate) mod sys;

use std::fs::File as OsFile;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use slackwater::backend::{Limits, MAX_UNIT_BYTES, MemBackend, NewNode, Removal};
use slackwater::{
    Clock, Engine, File, ManualClock, MountError, PAGE_BYTES, SuperBlock, Timestamp, Tunables, UmountOptions, WaitFor,
    WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_backends::SystemClock;
use slackwater_testkit::{Fault, FaultControl, pattern};

/// Far beyond the duration of anything here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const PAGE: usize = PAGE_BYTES as usize;

/// The size of most arenas here: half of it is a volume's share.
pub(crate) const ARENA_BYTES: u64 = 16 << 20;

/// A memory backend behind a fault layer.
pub(crate) struct Disk {
    pub(crate) mem: Arc<MemBackend>,
    pub(crate) faults: FaultControl,
    pub(crate) backend: Arc<Fault>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self::with_limits(limits())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::over(Arc::new(MemBackend::with_limits(limits)))
    }

    /// Another layer around the same memory, as a restarted process would see it.
    pub(crate) fn over(mem: Arc<MemBackend>) -> Self {
        let (backend, faults) = Fault::new(mem.clone());
        Self { mem, faults, backend: Arc::new(backend) }
    }
}

/// The tunables of [`MemBackend::new`].
pub(crate) fn limits() -> Limits {
    Limits {
        max_file_bytes: 1 << 44,
        unit_bytes: MAX_UNIT_BYTES,
        units_in_flight: 8,
        device: None,
        readahead_bytes: 0,
        flushes: false,
        reopens: true,
    }
}

/// An engine with one volume.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    /// Stands still, and is not used by a live engine.
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) disk: Disk,
    pub(crate) volume: Arc<SuperBlock>,
}

/// Tunables of an engine without flusher threads.
pub(crate) fn by_hand() -> Tunables {
    Tunables { flusher_threads: 0, ..Tunables::default() }
}

/// Tunables of a live engine that is always at work.
pub(crate) fn busy() -> Tunables {
    Tunables {
        dirty_writeback: Duration::from_millis(20),
        dirty_expire: Duration::from_millis(40),
        commit_interval: Duration::from_millis(20),
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(50),
        ..Tunables::default()
    }
}

impl Rig {
    /// Driven by [`Engine::step`] alone.
    pub(crate) fn by_hand() -> Self {
        Self::with(Disk::new(), by_hand())
    }

    pub(crate) fn with(disk: Disk, tunables: Tunables) -> Self {
        Self::on(Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap(), disk, tunables)
    }

    fn on(arena: Arc<Arena>, disk: Disk, tunables: Tunables) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        Self::assemble(Engine::new(arena, clock.clone(), tunables), clock, disk)
    }

    /// On the arena of a killed one, at the time of its clock.
    pub(crate) fn after(left: OwnedFd, clock: &Arc<ManualClock>, mem: &Arc<MemBackend>) -> Self {
        let (arena, survivors) = Arena::open_fd(left).unwrap();
        let engine = Engine::recover(arena, survivors, Arc::clone(clock) as Arc<dyn Clock>, by_hand());
        Self::assemble(engine, Arc::clone(clock), Disk::over(Arc::clone(mem)))
    }

    /// A rig with flusher threads and the machine's clock.
    pub(crate) fn live(disk: Disk, tunables: Tunables) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        Self::assemble(Engine::new(arena, Arc::new(SystemClock), tunables), clock, disk)
    }

    fn assemble(engine: Engine, clock: Arc<ManualClock>, disk: Disk) -> Self {
        let volume = engine.mount("rig", disk.backend.clone()).unwrap();
        Self { engine, clock, disk, volume }
    }

    /// Another volume of the same engine.
    pub(crate) fn mount(&self, name: &str) -> (Disk, Arc<SuperBlock>) {
        let disk = Disk::new();
        let volume = self.engine.mount(name, disk.backend.clone()).unwrap();
        (disk, volume)
    }

    pub(crate) fn create(&self, name: &str) -> File {
        create(&self.volume, name)
    }

    pub(crate) fn open(&self, name: &str) -> File {
        open(&self.volume, name)
    }

    pub(crate) fn unlink(&self, name: &str) {
        let root = self.volume.root().unwrap();
        self.volume.remove(&root, name, Removal::File).unwrap();
    }

    /// Moves time on in small steps and runs all due work.
    pub(crate) fn advance(&self, by: Duration) {
        let step = Duration::from_millis(100);
        let mut at = Duration::ZERO;
        while at < by {
            self.clock.advance(step);
            at += step;
            self.engine.step();
        }
    }

    /// Submits all dirty data, as a shortage would, without waiting for it.
    pub(crate) fn flush_without_waiting(&self) {
        let tunables = Tunables::default();
        self.advance(tunables.dirty_expire + 2 * tunables.dirty_writeback);
    }

    pub(crate) fn durable(&self, name: &str) -> Option<Vec<u8>> {
        self.disk.mem.durable_file(name)
    }

    pub(crate) fn stored(&self, name: &str) -> Option<Vec<u8>> {
        self.disk.mem.volatile_file(name)
    }

    /// Nothing is pinned, nothing is left, and every frame and record has been returned.
    #[track_caller]
    pub(crate) fn unmount_and_find_nothing_left(self) {
        self.volume.umount(UmountOptions::default()).unwrap();
        assert_idle(&self.engine, &self.volume);
    }
}

/// Nothing of the engine's only volume, which is unmounted, is left.
#[track_caller]
pub(crate) fn assert_idle(engine: &Engine, volume: &Arc<SuperBlock>) {
    let arena = engine.arena();
    assert_eq!(volume.bdi().pinned_frames(), 0, "pinned frames");
    assert_eq!(volume.status().bytes_left(), 0, "bytes left");
    assert_eq!(volume.status().open_files, 0, "open files");
    assert_eq!(arena.free_frames(), u64::from(arena.frames()), "free frames");
    assert_eq!(arena.free_inodes(), inodes_of(arena), "free inode records");
}

static ENGINE_PANICS: AtomicU32 = AtomicU32::new(0);

/// Starts counting panics of threads that no test waits for: flushers and workers, of any engine of this process.
pub(crate) fn count_engine_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("sw-") || name.starts_with("slack")) {
                ENGINE_PANICS.fetch_add(1, Ordering::SeqCst);
            }
        }));
    });
}

/// How many threads of engines of this process have panicked.
pub(crate) fn engine_panics() -> u32 {
    ENGINE_PANICS.load(Ordering::SeqCst)
}

/// Held by one test at a time, if tests share state of the process: a held gate, or gauges.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many inode records an arena of this size has, by default.
pub(crate) fn inodes_of(arena: &Arena) -> u64 {
    u64::from(arena.frames() / 4).max(1024)
}

pub(crate) fn create(volume: &Arc<SuperBlock>, name: &str) -> File {
    let root = volume.root().unwrap();
    File::open(&volume.make(&root, name, NewNode::File, 0o644).unwrap()).unwrap()
}

pub(crate) fn open(volume: &Arc<SuperBlock>, name: &str) -> File {
    File::open(&volume.walk(name).unwrap()).unwrap()
}

/// All bytes of a file, with a check beyond its end.
pub(crate) fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.inode().size_bytes() as usize + 10];
    let mut read = 0;
    // A short answer is the last one.
    for part in bytes.chunks_mut(100_000) {
        read += file.read_at(read as u64, part).unwrap();
    }
    bytes.truncate(read);
    bytes
}

/// Compares without printing megabytes.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    if found == wanted {
        return;
    }
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    let lengths = (found.len(), wanted.len());
    panic!("{what}: first difference at {first:?}, lengths {lengths:?}");
}

/// Writes without waiting for write-back.
#[track_caller]
pub(crate) fn try_write(file: &File, at: u64, bytes: &[u8]) -> Written {
    file.write(WriteRequest::at(at).wait(WaitFor::Backend), bytes).unwrap()
}

/// Fills the volume's share of the arena with pages of `file`, and returns the number of bytes written.
pub(crate) fn fill(file: &File, from: u64) -> u64 {
    let chunk = pattern(7, 16 * PAGE);
    let mut at = from;
    while let Written::Bytes(taken) = try_write(file, at, &chunk) {
        at += taken as u64;
    }
    at - from
}

/// A function that runs on a thread of its own.
pub(crate) struct Running<T> {
    what: &'static str,
    result: mpsc::Receiver<T>,
}

impl<T> Running<T> {
    /// The result of the function, or a failed test.
    #[track_caller]
    pub(crate) fn wait(self) -> T {
        let patience = PATIENCE;
        match self.result.recv_timeout(patience) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                stacks::write_all();
                panic!("{} did not end within {patience:?}", self.what)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{} panicked", self.what),
        }
    }

    /// Whether it is still running after `time`. It must not end, so a slow machine cannot fail the test.
    pub(crate) fn is_running_after(&self, time: Duration) -> bool {
        matches!(self.result.recv_timeout(time), Err(mpsc::RecvTimeoutError::Timeout))
    }
}

pub(crate) fn spawn<T: Send + 'static>(what: &'static str, run: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (send, result) = mpsc::channel();
    std::thread::spawn(move || drop(send.send(run())));
    Running { what, result }
}

/// Runs a call that might hang.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(what: &'static str, run: impl FnOnce() -> T + Send + 'static) -> T {
    spawn(what, run).wait()
}

/// Waits until other threads make the condition true.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    eventually_is(what, &true, is_so);
}

/// Waits until other threads have changed a value to `wanted`.
#[track_caller]
pub(crate) fn eventually_is<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, mut find: impl FnMut() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = find();
        if found == *wanted {
            return;
        }
        if Instant::now() >= deadline {
            stacks::write_all();
            panic!("not within {PATIENCE:?}: {what}: {found:?}, not {wanted:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The state that a process killed now would leave: a copy of the arena, consistent if no thread writes.
pub(crate) fn snapshot(engine: &Engine) -> OwnedFd {
    let from = OsFile::from(engine.arena().try_clone_fd().unwrap());
    let to = OsFile::from(memfd_create("snapshot", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    let len = from.metadata().unwrap().len();
    to.set_len(len).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = &mut bytes[..(len - at).min(1 << 20) as usize];
        from.read_exact_at(part, at).unwrap();
        to.write_all_at(part, at).unwrap();
        at += part.len() as u64;
    }
    to.into()
}

/// An engine on the arena of a killed one.
pub(crate) fn recover(left: OwnedFd) -> (Engine, Arc<ManualClock>) {
    let (arena, survivors): (Arc<Arena>, Survivors) = Arena::open_fd(left).unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(2_000_000_000)));
    let shared: Arc<dyn Clock> = clock.clone();
    (Engine::recover(arena, survivors, shared, by_hand()), clock)
}

/// Mounts the surviving volume, with the backend as it is and no fault in front of it.
pub(crate) fn remount(engine: &Engine, mem: &Arc<MemBackend>) -> Result<Arc<SuperBlock>, MountError> {
    engine.mount("rig", mem.clone())
}

/// A directory below the build's own, on whatever file system that is on.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = format!("{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
