//! Eviction on a real engine, stepped by hand.

use slackwater_arena::{Arena, ArenaConfig, Pool};
use slackwater_sync::shim::Arc;
use slackwater_sync::shim::atomic::{AtomicUsize, Ordering};

use super::policy::SWEEP_SLACK;
use crate::backend::{Backend, Call, Limits, MemBackend, NewNode, Removal};
use crate::cgroup::Memcg;
use crate::clock::ManualClock;
use crate::engine::{Engine, Shared};
use crate::file::File;
use crate::filemap::{ReadRequest, WaitFor, WriteRequest, Written};
use crate::super_block::SuperBlock;
use crate::tunables::Tunables;
use crate::units::{PAGE_BYTES, Timestamp};

const PAGE: usize = PAGE_BYTES as usize;
/// Frames of the arena, and how many of them are outside the reserve.
const FRAMES: u64 = 4096;
const NORMAL: u64 = 3072;

struct Rig {
    engine: Engine,
    shared: Arc<Shared>,
    sb: Arc<SuperBlock>,
}

impl Rig {
    fn new() -> Self {
        Self::with(0)
    }

    fn with(readahead_pages: u32) -> Self {
        let rig = Self::of(FRAMES, readahead_pages);
        assert_eq!(rig.free(), NORMAL);
        rig
    }

    fn of(frames: u64, readahead_pages: u32) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(frames * PAGE_BYTES)).unwrap();
        let tunables = Tunables { flusher_threads: 0, readahead_pages, ..Tunables::default() };
        let engine = Engine::new(arena, Arc::new(ManualClock::new(Timestamp(0))), tunables);
        let sb = engine.mount("a", Arc::new(MemBackend::new())).unwrap();
        let shared = Arc::clone(sb.engine());
        Self { engine, shared, sb }
    }

    fn create(&self, name: &str) -> File {
        create(&self.sb, name)
    }

    /// A file of this many pages, none of them cached.
    fn stored(&self, name: &str, pages: u64) -> File {
        let file = self.create(name);
        file.set_len(pages * PAGE_BYTES).unwrap();
        file
    }

    fn free(&self) -> u64 {
        self.shared.arena.free_frames_in(Pool::Normal)
    }

    fn root(&self) -> &Memcg {
        self.engine.root_memcg()
    }
}

fn create(sb: &Arc<SuperBlock>, name: &str) -> File {
    File::open(&sb.make(&sb.root().unwrap(), name, NewNode::File, 0o644).unwrap()).unwrap()
}

/// Reads the pages `from..to` one by one.
fn read(file: &File, payer: &Arc<Memcg>, pages: std::ops::Range<u64>) {
    let mut page = [0; PAGE];
    for index in pages {
        assert_eq!(file.read(ReadRequest::at(index * PAGE_BYTES).memcg(payer), &mut page).unwrap(), PAGE);
    }
}

/// The number of these pages that are cached.
fn cached(file: &File, pages: std::ops::Range<u64>) -> u64 {
    let mapping = &file.inode().arc().mapping;
    let is_cached = |index: &u64| {
        mapping.with_page(crate::units::PageIndex(*index), |leaf, slot| leaf.frame(slot).is_some()) == Some(true)
    };
    pages.filter(is_cached).count() as u64
}

#[test]
fn short_lived_files_leave_no_entries_in_the_queues() {
    let rig = Rig::new();
    let kept = rig.create("kept");
    kept.write_at(0, b"kept").unwrap();
    kept.fsync().unwrap();
    for _ in 0..5000 {
        let file = rig.create("x");
        file.write_at(0, b"x").unwrap();
        file.fsync().unwrap();
        rig.sb.remove(&rig.sb.root().unwrap(), "x", Removal::File).unwrap();
    }
    let length = rig.root().lruvec.entries();
    assert!(length <= SWEEP_SLACK + 2, "{length} entries for one file");
    assert_eq!(cached(&kept, 0..1), 1);
}

#[test]
fn short_lived_volumes_leave_no_entries_in_the_queues() {
    let rig = Rig::new();
    let other = rig.engine.mount("b", Arc::new(MemBackend::new())).unwrap();
    for nth in 0..2 * SWEEP_SLACK {
        let inode = other.make(&other.root().unwrap(), nth.to_string(), NewNode::File, 0o644).unwrap();
        File::open(&inode).unwrap().write_at(0, b"x").unwrap();
        if nth % 500 == 0 {
            other.sync().unwrap();
        }
    }
    other.sync().unwrap();
    assert!(rig.root().lruvec.entries() > SWEEP_SLACK);
    other.umount(crate::umount::UmountOptions::default()).unwrap();
    let _ = rig.engine.step();
    assert_eq!((rig.root().lruvec.entries(), rig.root().lruvec.pages(), rig.free()), (0, 0, NORMAL));
}

#[test]
fn entries_of_small_short_lived_volumes_are_swept_in_batches() {
    let rig = Rig::new();
    let mut most = 0;
    for nth in 0..2 * SWEEP_SLACK {
        let small = rig.engine.mount("small", Arc::new(MemBackend::new())).unwrap();
        let inode = small.make(&small.root().unwrap(), "file", NewNode::File, 0o644).unwrap();
        let file = File::open(&inode).unwrap();
        file.write_at(0, b"x").unwrap();
        file.fsync().unwrap();
        drop((file, inode));
        small.umount(crate::umount::UmountOptions::default()).unwrap();
        let _ = rig.engine.step();
        most = most.max(rig.root().lruvec.entries());
        assert!(nth != 0 || most == 1, "no sweep for a single one");
    }
    assert!(most <= SWEEP_SLACK, "{most} stale entries");
    assert_eq!(rig.free(), NORMAL);
}

#[test]
fn dirty_pages_are_in_no_queue_and_durable_ones_in_one_once() {
    let rig = Rig::new();
    let file = rig.create("x");
    for _ in 0..3 {
        file.write_at(0, &[1; 100 * PAGE]).unwrap();
        assert!([0, 100].contains(&rig.root().lruvec.pages()));
        file.fsync().unwrap();
        assert_eq!((rig.root().lruvec.pages(), rig.root().lruvec.entries()), (100, 2));
    }
    // Written while its entry is examined: it is dropped from the queue, and listed again by the next commit.
    file.write_at(0, &[2; 100 * PAGE]).unwrap();
    assert_eq!(rig.shared.reclaim.evict(1), super::shrink::Evicted::Nothing);
    assert_eq!((rig.root().lruvec.pages(), cached(&file, 0..100)), (0, 100));
    file.fsync().unwrap();
    assert_eq!((rig.root().lruvec.pages(), rig.root().lruvec.entries()), (100, 2));
}

#[test]
fn a_scan_keeps_reused_pages_and_takes_whole_leaves() {
    let rig = Rig::with(256);
    let (set, scanned) = (rig.stored("set", 1024), rig.stored("scanned", 4 * FRAMES));
    let payer = rig.engine.root_memcg();
    read(&set, payer, 0..1024);
    read(&set, payer, 0..1024);
    read(&scanned, payer, 0..4 * FRAMES);
    assert_eq!(cached(&set, 0..1024), 1024);
    for leaf in 0..4 * FRAMES / 64 - 16 {
        let count = cached(&scanned, leaf * 64..(leaf + 1) * 64);
        assert!([0, 64].contains(&count), "{count} pages of leaf {leaf}");
    }
}

#[test]
fn a_page_that_is_soon_read_again_stays_longer() {
    let rig = Rig::new();
    let (file, scanned) = (rig.stored("x", 64), rig.stored("scanned", 4 * FRAMES));
    let payer = rig.engine.root_memcg();
    read(&file, payer, 0..64);
    read(&scanned, payer, 0..NORMAL);
    assert_eq!(cached(&file, 0..64), 0);
    read(&file, payer, 0..64);
    read(&scanned, payer, NORMAL..4 * FRAMES);
    assert_eq!(cached(&file, 0..64), 64);
}

/// P6 for tenants, by counts: reading four times the cache evicts nothing of another tenant's working set below its
/// share.
#[test]
fn reading_more_than_the_cache_takes_nothing_of_another_tenants_share() {
    let rig = Rig::new();
    let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
    let (set, scanned) = (rig.stored("set", 1400), rig.stored("scanned", 4 * FRAMES));
    // Used once: without shares, the scan would evict it.
    read(&set, &a, 0..1400);
    read(&scanned, &b, 0..4 * FRAMES);
    assert_eq!(cached(&set, 0..1400), 1400);
    assert_eq!((a.lruvec.pages(), rig.root().lruvec.pages()), (1400, 0));
    assert!(b.lruvec.pages() <= NORMAL - 1400);
    // And the reverse: the tenant above its share gives up frames down to it, and no further.
    read(&scanned, &a, 0..4 * FRAMES);
    let kept = b.lruvec.pages();
    assert!((1400..=NORMAL - 1400).contains(&kept), "{kept} pages of the other tenant are left");
}

#[test]
fn pages_of_an_offline_tenant_pass_to_its_parent_and_are_evicted_normally() {
    let rig = Rig::new();
    let parent = rig.engine.memcg_create("a", None, None);
    let child = rig.engine.memcg_create("a/b", Some(&parent), None);
    let file = rig.stored("x", 4 * FRAMES);
    read(&file, &child, 0..500);
    let pages = child.lruvec.pages();
    assert!(pages >= 500);
    assert!(rig.engine.memcg_offline(&child));
    assert_eq!((child.lruvec.pages(), parent.lruvec.pages()), (0, pages));
    read(&file, &child, 1000..1001);
    assert_eq!((child.lruvec.pages(), parent.lruvec.pages()), (0, pages + 1));
    assert!(rig.engine.memcg_offline(&parent));
    assert_eq!((parent.lruvec.pages(), rig.root().lruvec.pages()), (0, pages + 1));
    read(&file, &child, 1001..4 * FRAMES);
    assert_eq!(cached(&file, 0..500), 0);
}

/// Counts the contiguous pieces of memory in units of streams, and discards the data.
struct Pieces {
    inner: MemBackend,
    /// Pieces in all units since the last reset, and the number of these units.
    pieces: AtomicUsize,
    units: AtomicUsize,
}

impl Backend for Pieces {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other calls are passed on")]
    fn submit(&self, call: Call) {
        match call {
            Call::Write(unit) => {
                let len_bytes = unit.len_bytes();
                if len_bytes > PAGE {
                    self.pieces.fetch_add(unit.slices().count(), Ordering::Relaxed);
                    self.units.fetch_add(1, Ordering::Relaxed);
                }
                unit.complete(Ok(len_bytes));
            }
            call => self.inner.submit(call),
        }
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }
}

/// The disk is fast for a unit in one contiguous piece. Two streams that overwrite more than the cache for a long time,
/// mixed with small writes, must not fragment the units.
#[test]
fn units_of_streams_stay_in_one_piece() {
    const PASSES: u64 = 8;
    const FILE: u64 = 192 << 20;
    const PART: usize = 1 << 20;
    let rig = Rig::of((128 << 20) / PAGE_BYTES, 0);
    let backend =
        Arc::new(Pieces { inner: MemBackend::new(), pieces: AtomicUsize::new(0), units: AtomicUsize::new(0) });
    let sb = rig.engine.mount("streams", Arc::clone(&backend) as Arc<dyn Backend>).unwrap();
    let streams = ["a", "b"].map(|name| (create(&sb, name), rig.engine.memcg_create(name, None, None)));
    let small = create(&sb, "small");
    for pass in 0..PASSES {
        if pass + 1 == PASSES {
            [&backend.pieces, &backend.units].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
        }
        for at in (0..FILE).step_by(PART) {
            for (file, memcg) in &streams {
                let mut landed = sb.landing_frames(PART).unwrap();
                let written = file.write_landed(WriteRequest::at(at).memcg(memcg), &mut landed, 0..PART).unwrap();
                assert_eq!(written, Written::Bytes(PART));
            }
            small.write_at(at / PART as u64 * PAGE_BYTES, b"small").unwrap();
            sb.sync().unwrap();
        }
    }
    let (pieces, units) = (backend.pieces.load(Ordering::Relaxed), backend.units.load(Ordering::Relaxed));
    assert!(pieces * 10 < units * 15, "{units} units in {pieces} pieces");
}

#[test]
fn frames_are_freed_before_a_writer_needs_them() {
    let rig = Rig::new();
    let file = rig.stored("x", 4 * FRAMES);
    let payer = rig.engine.root_memcg();
    read(&file, payer, 0..NORMAL - 80);
    let _ = rig.engine.step();
    assert_eq!(cached(&file, 0..64), 64, "enough is free");
    read(&file, payer, NORMAL - 80..NORMAL);
    assert!(rig.free() < FRAMES / 64);
    let _ = rig.engine.step();
    let free = rig.free();
    assert!((FRAMES / 32..FRAMES / 32 + 64).contains(&free), "{free} frames are free");
}

/// While every page is pinned a pass finds nothing, and none is started before a commit.
#[test]
fn no_pass_starts_while_every_page_is_pinned() {
    let rig = Rig::new();
    let other = rig.engine.mount("b", Arc::new(MemBackend::new())).unwrap();
    let files =
        [rig.create("x"), File::open(&other.make(&other.root().unwrap(), "y", NewNode::File, 0o644).unwrap()).unwrap()];
    for file in &files {
        let mut at = 0;
        while file.write(WriteRequest::at(at).wait(WaitFor::Backend), &[1; PAGE]).unwrap() == Written::Bytes(PAGE) {
            at += PAGE_BYTES;
        }
    }
    assert!(rig.free() < FRAMES / 64);
    let reclaim = &rig.shared.reclaim;
    assert!(!rig.shared.reclaim.run_background());
    for _ in 0..10 {
        rig.shared.reclaim.wake_if_low();
        assert!(!reclaim.kick.is_set());
    }
    files[0].fsync().unwrap();
    assert!(reclaim.kick.is_set());
    while rig.shared.reclaim.run_background() {}
    assert!(rig.free() >= FRAMES / 32);
}
