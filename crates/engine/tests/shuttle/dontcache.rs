//! DONTCACHE writes with concurrent flushers, commits, truncations and switches in random schedules.
//!
//! Neither age nor the background threshold starts write-back: data that no sync covers is written only because of a
//! kick. `SLACKWATER_SHUTTLE_EXECUTIONS` sets the number of schedules.

use std::time::Duration;

use crate::schedules::check;
use crate::threaded::{Refused, ThreadedBackend, limits};
use slackwater::backend::{MemBackend, NewNode};
use slackwater::{
    Engine, File, Forms, InodeRef, ManualClock, Memcg, PAGE_BYTES, ReadFlags, ReadRequest, SuperBlock, Timestamp,
    Tunables, UmountOptions, WriteFlags, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig, Survivors};
use slackwater_sync::rcu::Options;
use slackwater_sync::shim::{Arc, thread};

const FRAMES: u64 = 16;
/// Foreign rounds of one page, after which the next one moves the inode.
const ROUNDS: u64 = 8;
/// Polls for what other threads do, which happens within some hundred.
const POLLS: usize = 5_000;

struct Rig {
    engine: Engine,
    volume: Arc<SuperBlock>,
    backend: Arc<MemBackend>,
    worker: thread::JoinHandle<()>,
}

impl Rig {
    fn new() -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(FRAMES * PAGE_BYTES).with_inodes(4).with_volumes(1)).unwrap();
        let tunables = Tunables {
            flusher_threads: 2,
            dirty_writeback: Duration::ZERO,
            dirty_background_percent: 95,
            dirty_percent: 100,
            readahead_pages: 0,
            ..Tunables::default()
        };
        let forms = Forms { rcu: Options { coalesce: Duration::ZERO, ..Options::default() }, ..Forms::default() };
        let clock = Arc::new(ManualClock::new(Timestamp(1)));
        let engine = Engine::with_forms(arena, Survivors::default(), clock, tunables, forms);
        let backend = Arc::new(MemBackend::with_limits(limits()));
        let (threaded, worker) = ThreadedBackend::new(Arc::clone(&backend), Refused(0));
        let volume = engine.mount("rig", Arc::new(threaded)).unwrap();
        Self { engine, volume, backend, worker }
    }

    fn create(&self, name: &str) -> InodeRef {
        self.volume.make(&self.volume.root().unwrap(), name, NewNode::File, 0o644).unwrap()
    }

    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..POLLS {
            if is_so() {
                return;
            }
            thread::yield_now();
        }
        panic!("gave up waiting for {what}: {:?}, {:?}", self.volume.status(), self.engine.check_counts());
    }

    /// Syncs until nothing is left. The first sync may leave a page whose write is just being answered and which is not
    /// yet known to be durable.
    fn sync(&self) {
        self.eventually("dirty data to be written", || {
            self.volume.sync().unwrap();
            self.volume.status().bytes_left() == 0
        });
    }

    /// Checks that `cached` pages are in the cache and nothing else is left.
    fn finish(self, cached: u64) {
        self.sync();
        self.eventually("consistent counts", || self.engine.check_counts().is_ok());
        self.eventually("what stays", || self.engine.arena().free_frames() == FRAMES - cached);
        self.eventually("the tenants to be released", || {
            self.volume.wbs_alive() == 1 && self.engine.memcgs().len() == 1 && self.engine.switches_in_flight() == 0
        });
        self.volume.umount(UmountOptions::default()).unwrap();
        assert_eq!(self.volume.bdi().pinned_frames(), 0);
        assert_eq!(self.engine.arena().free_frames(), FRAMES);
        drop((self.volume, self.engine));
        self.worker.join().unwrap();
    }
}

/// Writes page `index` for `memcg`.
fn write(inode: &InodeRef, memcg: &Arc<Memcg>, flags: WriteFlags, index: u64, byte: u8) -> File {
    let file = File::open_for(inode, memcg).unwrap();
    assert_eq!(
        file.write(WriteRequest::at(index * PAGE_BYTES).flags(flags), &[byte; PAGE_BYTES as usize]).unwrap(),
        Written::Bytes(PAGE_BYTES as usize)
    );
    file
}

fn start_writer(
    inode: &InodeRef,
    memcg: &Arc<Memcg>,
    flags: WriteFlags,
    indexes: std::ops::Range<u64>,
) -> thread::JoinHandle<()> {
    let (inode, memcg) = (inode.clone(), Arc::clone(memcg));
    thread::spawn(move || indexes.for_each(|index| drop(write(&inode, &memcg, flags, index, 7))))
}

/// No kick is lost, whether the flusher sleeps, runs, or the file's units are in flight. There are so few pages that
/// the approximate counts stay at zero, so that only kicks start the flusher.
#[test]
fn kicks_alone_write_back_all_dirty_pages() {
    check("kicks", 1500, || {
        let rig = Rig::new();
        let root = Arc::clone(rig.engine.root_memcg());
        let (x, y) = (rig.create("x"), rig.create("y"));
        let writers = [
            start_writer(&x, &root, WriteFlags::DONTCACHE, 0..2),
            start_writer(&x, &root, WriteFlags::DONTCACHE, 1..4),
            start_writer(&y, &root, WriteFlags::DONTCACHE, 0..1),
        ];
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        rig.eventually("the write-back", || {
            let status = rig.volume.status();
            status.dirty_bytes + status.writeback_bytes == 0
        });
        drop((x, y));
        rig.finish(0);
    });
}

/// The round of `b` moves the inode to it, and going offline moves it from `a` to the root.
#[test]
fn counts_are_exact_while_pages_come_and_leave_and_the_inode_moves() {
    check("counts", 700, || {
        let rig = Rig::new();
        let (a, b) = (rig.engine.memcg_create("a", None, None), rig.engine.memcg_create("b", None, None));
        let inode = rig.create("x");
        write(&inode, &a, WriteFlags::DONTCACHE, 0, 1).fsync().unwrap();
        for _ in 0..ROUNDS {
            write(&inode, &b, WriteFlags::DONTCACHE, 0, 1).fsync().unwrap();
        }
        assert_eq!(inode.memcg().id(), a.id());
        let cutter = {
            let (inode, a) = (inode.clone(), Arc::clone(&a));
            thread::spawn(move || {
                let file = write(&inode, &a, WriteFlags::DONTCACHE, 1, 2);
                file.set_len(PAGE_BYTES / 2).unwrap();
                drop(write(&inode, &a, WriteFlags::DONTCACHE, 2, 3));
            })
        };
        let writer = {
            let (inode, b) = (inode.clone(), Arc::clone(&b));
            thread::spawn(move || {
                write(&inode, &b, WriteFlags::DONTCACHE, 0, 4).fsync().unwrap();
                drop(write(&inode, &b, WriteFlags::DONTCACHE, 3, 5));
            })
        };
        assert!(rig.engine.memcg_offline(&a));
        cutter.join().unwrap();
        writer.join().unwrap();
        rig.eventually("consistent counts", || rig.engine.check_counts().is_ok());
        rig.sync();
        assert!(rig.engine.memcg_offline(&b));
        drop((a, b, inode));
        rig.finish(0);
    });
}

/// The write happens while the page is dirty, under write-back, waiting for the commit, being dropped, or gone.
#[test]
fn an_ordinary_write_keeps_its_page_in_any_state() {
    check("kept", 1000, || {
        let rig = Rig::new();
        let root = Arc::clone(rig.engine.root_memcg());
        let inode = rig.create("x");
        let passing = {
            let (inode, root) = (inode.clone(), Arc::clone(&root));
            thread::spawn(move || {
                let file = write(&inode, &root, WriteFlags::DONTCACHE, 0, 1);
                drop(write(&inode, &root, WriteFlags::DONTCACHE, 1, 1));
                file.fsync().unwrap();
            })
        };
        drop(write(&inode, &root, WriteFlags::NONE, 1, 2));
        let file = File::open(&inode).unwrap();
        file.write_at(PAGE_BYTES, b"kept").unwrap();
        passing.join().unwrap();
        rig.sync();
        let stored = rig.backend.durable_file("x").unwrap();
        let (first, second) = stored.split_at(PAGE_BYTES as usize);
        let all = |bytes: &[u8], byte: u8| bytes.iter().all(|stored| *stored == byte);
        assert!(all(first, 1) && second.len() == PAGE_BYTES as usize);
        assert!(all(second, 1) || (second.starts_with(b"kept") && (all(&second[4..], 1) || all(&second[4..], 2))));
        drop((file, inode));
        rig.finish(1);
    });
}

/// The last one of two concurrent readers of the same pages drops them, whichever of them brought them in.
#[test]
fn pages_read_only_by_dontcache_readers_leave() {
    check("readers", 1000, || {
        let rig = Rig::new();
        let root = Arc::clone(rig.engine.root_memcg());
        let inode = rig.create("x");
        for index in 0..3 {
            drop(write(&inode, &root, WriteFlags::DONTCACHE, index, 1));
        }
        rig.sync();
        let readers = [0_u64, 1].map(|first| {
            let inode = inode.clone();
            thread::spawn(move || {
                let file = File::open(&inode).unwrap();
                let mut bytes = vec![0; 2 * PAGE_BYTES as usize];
                let read =
                    file.read(ReadRequest::at(first * PAGE_BYTES).flags(ReadFlags::DONTCACHE), &mut bytes).unwrap();
                assert!(read == bytes.len() && bytes.iter().all(|byte| *byte == 1));
            })
        });
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(rig.engine.arena().free_frames(), FRAMES);
        drop(inode);
        rig.finish(0);
    });
}
