//! A volume stepped by hand, on a backend that can hold and fail calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slackwater::backend::{Backend, Call, Limits, MemBackend, NewNode};
use slackwater::{
    DontcacheForm, Engine, File, Forms, ManualClock, PAGE_BYTES, SuperBlock, Timestamp, Tunables, UmountOptions,
    WriteFlags, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig, Survivors};

pub(crate) const PAGE: usize = PAGE_BYTES as usize;

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Script {
    holds_units: bool,
    held: Vec<Call>,
    units_to_fail: u32,
    commits_to_fail: u32,
    at_next_unit: Option<Hook>,
    reads_fail_from: Option<u64>,
}

/// A wrapper of [`MemBackend`], which answers on the caller's thread.
pub(crate) struct ScriptedBackend {
    pub(crate) mem: MemBackend,
    script: Mutex<Script>,
}

impl ScriptedBackend {
    /// Holds units until [`ScriptedBackend::release`].
    pub(crate) fn hold_units(&self) {
        self.script.lock().unwrap().holds_units = true;
    }

    /// Number of units held.
    pub(crate) fn held(&self) -> usize {
        self.script.lock().unwrap().held.len()
    }

    pub(crate) fn release(&self) {
        let held = {
            let mut script = self.script.lock().unwrap();
            script.holds_units = false;
            std::mem::take(&mut script.held)
        };
        held.into_iter().for_each(|call| self.submit(call));
    }

    pub(crate) fn fail(&self, units: u32, commits: u32) {
        let mut script = self.script.lock().unwrap();
        (script.units_to_fail, script.commits_to_fail) = (units, commits);
    }

    /// Makes reads of bytes from `offset_bytes` on fail.
    pub(crate) fn fail_reads_from(&self, offset_bytes: u64) {
        self.script.lock().unwrap().reads_fail_from = Some(offset_bytes);
    }

    /// Runs `hook` at the next unit, on the flusher's thread.
    pub(crate) fn at_next_unit(&self, hook: impl FnOnce() + Send + 'static) {
        self.script.lock().unwrap().at_next_unit = Some(Box::new(hook));
    }
}

fn fails(left: &mut u32) -> bool {
    let fails = *left != 0;
    *left -= u32::from(fails);
    fails
}

impl Backend for ScriptedBackend {
    fn submit(&self, call: Call) {
        let is_unit = matches!(call, Call::Write(_));
        let is_commit = matches!(call, Call::Sync { .. } | Call::SyncVolume { .. });
        let mut script = self.script.lock().unwrap();
        let hook = if is_unit { script.at_next_unit.take() } else { None };
        if is_unit && script.holds_units {
            script.held.push(call);
            drop(script);
        } else {
            let from = script.reads_fail_from.unwrap_or(u64::MAX);
            let is_bad_read = matches!(&call, Call::Read(unit) if unit.offset_bytes() >= from);
            let fails = is_bad_read
                || is_unit && fails(&mut script.units_to_fail)
                || is_commit && fails(&mut script.commits_to_fail);
            drop(script);
            if fails {
                drop(call); // which answers with an error
            } else {
                self.mem.submit(call);
            }
        }
        hook.into_iter().for_each(|hook| hook());
    }

    fn limits(&self) -> Limits {
        self.mem.limits()
    }
}

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) backend: Arc<ScriptedBackend>,
    pub(crate) volume: Arc<SuperBlock>,
}

impl Rig {
    /// The flusher runs only on request, not because of the background threshold. Reads fetch what is asked for and no
    /// more.
    pub(crate) fn new(arena_bytes: u64) -> Self {
        Self::with(arena_bytes, |tunables| tunables)
    }

    /// The same, with the changes that `adjust` makes.
    pub(crate) fn with(arena_bytes: u64, adjust: impl FnOnce(Tunables) -> Tunables) -> Self {
        Self::build(arena_bytes, adjust, DontcacheForm::Kick, MemBackend::new())
    }

    /// On a backend with `space_bytes` of space.
    pub(crate) fn of_space(arena_bytes: u64, space_bytes: u64) -> Self {
        let limits = MemBackend::new().limits();
        let mem = MemBackend::with_space(limits, space_bytes);
        Self::build(arena_bytes, |tunables| tunables, DontcacheForm::Kick, mem)
    }

    pub(crate) fn formed(dontcache: DontcacheForm) -> Self {
        Self::build(64 << 20, |tunables| tunables, dontcache, MemBackend::new())
    }

    fn build(
        arena_bytes: u64,
        adjust: impl FnOnce(Tunables) -> Tunables,
        dontcache: DontcacheForm,
        mem: MemBackend,
    ) -> Self {
        let tunables = adjust(Tunables {
            flusher_threads: 0,
            dirty_background_percent: 95,
            dirty_percent: 100,
            readahead_pages: 0,
            ..Tunables::default()
        });
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let arena = Arena::create(&ArenaConfig::memfd(arena_bytes)).unwrap();
        let forms = Forms { dontcache, ..Forms::default() };
        let engine = Engine::with_forms(arena, Survivors::default(), clock.clone(), tunables, forms);
        let backend = Arc::new(ScriptedBackend { mem, script: Mutex::default() });
        let volume = engine.mount("rig", backend.clone()).unwrap();
        Self { engine, clock, backend, volume }
    }

    pub(crate) fn small() -> Self {
        Self::new(16 << 20)
    }

    pub(crate) fn create(&self, name: &str) -> File {
        let root = self.volume.root().unwrap();
        File::open(&self.volume.make(&root, name, NewNode::File, 0o644).unwrap()).unwrap()
    }

    /// Pages in the cache.
    pub(crate) fn cached(&self) -> u64 {
        u64::from(self.engine.arena().frames()) - self.engine.arena().free_frames()
    }

    pub(crate) fn dontcache_dirty(&self) -> u64 {
        self.engine.check_counts().unwrap();
        self.volume.status().dontcache_dirty_bytes / PAGE_BYTES
    }

    /// Lets enough time pass for any back-off and commit interval to expire, and runs the flusher.
    pub(crate) fn advance(&self, seconds: u64) {
        for _ in 0..2 * seconds {
            self.clock.advance(Duration::from_millis(500));
            self.engine.step();
        }
    }

    /// Unmounts, and checks that everything is durable and every frame is free.
    pub(crate) fn umount(self) {
        self.engine.check_counts().unwrap();
        self.volume.umount(UmountOptions::default()).unwrap();
        assert_eq!(self.cached(), 0);
    }
}

pub(crate) fn pages(count: usize, byte: u8) -> Vec<u8> {
    vec![byte; count * PAGE]
}

/// Writes `count` pages from `index` on with DONTCACHE.
pub(crate) fn pass_through(file: &File, index: u64, count: usize, byte: u8) {
    assert_eq!(
        file.write(WriteRequest::at(index * PAGE_BYTES).flags(WriteFlags::DONTCACHE), &pages(count, byte)).unwrap(),
        Written::Bytes(count * PAGE)
    );
}

/// A file of `count` pages, none of them cached.
pub(crate) fn stored(rig: &Rig, name: &str, count: usize) -> File {
    let file = rig.create(name);
    pass_through(&file, 0, count, 1);
    rig.volume.sync().unwrap();
    assert_eq!(rig.cached(), 0);
    file
}

pub(crate) fn write(file: &File, index: u64, count: usize, byte: u8) {
    file.write_at(index * PAGE_BYTES, &pages(count, byte)).unwrap();
}

pub(crate) fn read(file: &File, index: u64, count: usize) -> Vec<u8> {
    let mut bytes = pages(count, 0xee);
    let read = file.read_at(index * PAGE_BYTES, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}
