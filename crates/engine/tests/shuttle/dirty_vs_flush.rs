//! Writers, flushers, syncs, truncations and unmounts of one volume in random schedules.
//!
//! The backend answers from its own thread, so completions run concurrently with everything else. Limits are small: a
//! few frames, units of two pages.

use crate::threaded::{Refused, ThreadedBackend, limits};
use slackwater::backend::{Backend, Call, Limits, MemBackend, NewNode};
use slackwater::{Engine, File, ManualClock, PAGE_BYTES, SuperBlock, Timestamp, Tunables, UmountError, UmountOptions};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_sync::shim::atomic::{AtomicBool, Ordering};
use slackwater_sync::shim::{Arc, model, thread};

const EXECUTIONS: usize = 2000;

struct Rig {
    engine: Engine,
    volume: Arc<SuperBlock>,
    backend: Arc<MemBackend>,
    worker: thread::JoinHandle<()>,
    /// Set once the volume is unmounted: the backend must not be called any more.
    is_gone: Arc<AtomicBool>,
}

/// A backend that checks that its volume is mounted.
struct OfVolume {
    inner: ThreadedBackend,
    is_gone: Arc<AtomicBool>,
}

impl Backend for OfVolume {
    fn submit(&self, call: Call) {
        assert!(!self.is_gone.load(Ordering::SeqCst), "{} for an unmounted volume", call.name());
        self.inner.submit(call);
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(Refused(0))
    }

    fn with(refused: Refused) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(16 * PAGE_BYTES).with_inodes(4).with_volumes(1)).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let tunables = Tunables {
            flusher_threads: 1,
            dirty_writeback: std::time::Duration::ZERO,
            dirty_background_percent: 10,
            readahead_pages: 2,
            ..Tunables::default()
        };
        let engine = Engine::new(arena, clock, tunables);
        let backend = Arc::new(MemBackend::with_limits(limits()));
        let (threaded, worker) = ThreadedBackend::new(Arc::clone(&backend), refused);
        let is_gone = Arc::new(AtomicBool::new(false));
        let own = OfVolume { inner: threaded, is_gone: Arc::clone(&is_gone) };
        let volume = engine.mount("rig", Arc::new(own)).unwrap();
        Self { engine, volume, backend, worker, is_gone }
    }

    fn create(&self, name: &str) -> Arc<File> {
        let root = self.volume.root().unwrap();
        Arc::new(File::open(&self.volume.make(&root, name, NewNode::File, 0o644).unwrap()).unwrap())
    }

    fn finish(self) {
        self.volume.umount(UmountOptions::default()).unwrap();
        self.assert_nothing_left();
    }

    /// Checks, after the unmount, that every frame is free and the backend is not called.
    fn assert_nothing_left(self) {
        self.is_gone.store(true, Ordering::SeqCst);
        assert_eq!(self.volume.bdi().pinned_frames(), 0);
        assert_eq!(self.engine.arena().free_frames(), 16);
        drop((self.volume, self.engine));
        self.worker.join().unwrap();
    }
}

fn page(byte: u8) -> Vec<u8> {
    vec![byte; PAGE_BYTES as usize]
}

#[test]
fn rewrites_during_write_back_are_written_back_too() {
    model::check(EXECUTIONS, || {
        let rig = Rig::new();
        let file = rig.create("a");
        let writer = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                for byte in 1..4 {
                    file.write_at(0, &page(byte)).unwrap();
                    file.write_at(PAGE_BYTES, &page(byte + 10)[..100]).unwrap();
                }
            })
        };
        file.fsync().unwrap();
        writer.join().unwrap();
        file.fsync().unwrap();
        let mut want = page(3);
        want.extend_from_slice(&page(13)[..100]);
        assert!(rig.backend.durable_file("a").unwrap() == want);
        drop(file);
        rig.finish();
    });
}

/// The second write goes to the page and frame of the first, while a flush may be taking it.
#[test]
fn a_page_extended_while_it_is_taken_loses_none_of_its_tail() {
    model::check(EXECUTIONS, || {
        let rig = Rig::new();
        let file = rig.create("a");
        file.write_at(0, &page(1)[..100]).unwrap();
        let writer = {
            let file = Arc::clone(&file);
            thread::spawn(move || file.write_at(100, &page(2)[..100]).unwrap())
        };
        file.fsync().unwrap();
        writer.join().unwrap();
        file.fsync().unwrap();
        let want = [&page(1)[..100], &page(2)[..100]].concat();
        assert!(rig.backend.durable_file("a").unwrap() == want, "the tail is on the backend");
        drop(file);
        rig.finish();
    });
}

#[test]
fn a_truncation_and_a_flush_never_leave_the_backing_file_longer() {
    model::check(EXECUTIONS, || {
        let rig = Rig::new();
        let file = rig.create("a");
        for at in 0..4 {
            file.write_at(at * PAGE_BYTES, &page(7)).unwrap();
        }
        let syncer = {
            let file = Arc::clone(&file);
            thread::spawn(move || file.fsync().unwrap())
        };
        file.set_len(PAGE_BYTES + 5).unwrap();
        assert!(rig.backend.volatile_file("a").unwrap().len() as u64 <= PAGE_BYTES + 5);
        syncer.join().unwrap();
        file.fsync().unwrap();
        assert_eq!(rig.backend.durable_file("a").unwrap().len() as u64, PAGE_BYTES + 5);
        drop(file);
        rig.finish();
    });
}

/// The pages are in two leaves, so there is an index above them, which is updated later than the leaf.
#[test]
fn a_truncation_of_a_long_file_waits_for_units_that_a_flush_takes_meanwhile() {
    model::check(EXECUTIONS, || {
        let rig = Rig::new();
        let file = rig.create("a");
        for at in [1, 64] {
            file.write_at(at * PAGE_BYTES, &page(7)).unwrap();
        }
        let syncer = {
            let file = Arc::clone(&file);
            thread::spawn(move || file.fsync().unwrap())
        };
        file.set_len(PAGE_BYTES + 5).unwrap();
        syncer.join().unwrap();
        assert!(rig.backend.volatile_file("a").unwrap().len() as u64 <= PAGE_BYTES + 5);
        file.set_len(66 * PAGE_BYTES).unwrap();
        file.fsync().unwrap();
        let durable = rig.backend.durable_file("a").unwrap();
        assert!(durable[PAGE_BYTES as usize + 5..].iter().all(|byte| *byte == 0), "no old bytes reappear");
        drop(file);
        rig.finish();
    });
}

/// The unit is the flusher's, and may complete before, while or after the sync checks.
#[test]
fn a_sync_during_a_failing_unit_reports_it_or_writes_again() {
    model::check(EXECUTIONS, || {
        let rig = Rig::with(Refused(1));
        let file = rig.create("a");
        for at in 0..2 {
            file.write_at(at * PAGE_BYTES, &page(7)).unwrap();
        }
        let writer = {
            let file = Arc::clone(&file);
            thread::spawn(move || file.write_at(0, &page(8)).unwrap())
        };
        if file.fsync().is_ok() {
            let durable = rig.backend.durable_file("a").unwrap();
            assert!(
                durable == [page(7), page(7)].concat() || durable == [page(8), page(7)].concat(),
                "fsync returned success"
            );
        }
        writer.join().unwrap();
        drop(file);
        rig.finish();
    });
}

#[test]
fn a_writer_without_a_free_frame_gets_one() {
    model::check(EXECUTIONS / 3, || {
        let rig = Rig::new();
        let file = rig.create("a");
        let other = rig.create("b");
        let writer = {
            let other = Arc::clone(&other);
            thread::spawn(move || {
                for at in 0..6 {
                    other.write_at(at * PAGE_BYTES, &page(2)).unwrap();
                }
            })
        };
        for at in 0..6 {
            file.write_at(at * PAGE_BYTES, &page(1)).unwrap();
        }
        writer.join().unwrap();
        drop((file, other));
        rig.finish();
    });
}

#[test]
fn umount_during_reads_and_writes_ends_and_loses_nothing() {
    model::check(EXECUTIONS, || {
        let rig = Rig::new();
        let file = rig.create("a");
        let user = thread::spawn(move || {
            file.write_at(0, &page(9)).unwrap();
            let mut bytes = page(0);
            assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
            assert!(bytes == page(9));
        });
        let early = rig.volume.umount(UmountOptions::default());
        user.join().unwrap();
        match early {
            // The file was open, or it was closed while the inode was still in use.
            Err(UmountError::Busy { .. }) => rig.volume.umount(UmountOptions::default()).unwrap(),
            other => other.unwrap(),
        }
        assert!(rig.backend.durable_file("a").unwrap() == page(9));
        rig.assert_nothing_left();
    });
}

#[test]
fn eviction_takes_no_page_that_is_being_read() {
    model::check(EXECUTIONS / 3, || {
        let rig = Rig::new();
        let file = rig.create("a");
        for at in 0..4 {
            file.write_at(at * PAGE_BYTES, &page(at as u8 + 1)).unwrap();
        }
        file.fsync().unwrap();
        let reader = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                for at in 0..4_u64 {
                    let mut bytes = page(0);
                    file.read_at(at * PAGE_BYTES, &mut bytes).unwrap();
                    assert!(bytes == page(at as u8 + 1));
                }
            })
        };
        let other = rig.create("b");
        for at in 0..6 {
            other.write_at(at * PAGE_BYTES, &page(50)).unwrap();
        }
        reader.join().unwrap();
        drop((file, other));
        rig.finish();
    });
}
