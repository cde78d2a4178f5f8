//! All operations at once, on real threads. At the end every byte is right and every gauge is zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slackwater::backend::{Limits, Removal, RenameMode};
use slackwater::{ErrorKind, File, SuperBlock, Tunables, UmountOptions, WriteFlags, WriteRequest, Written};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::{Fault, Random, Rule, pattern};

use crate::rig::{
    Disk, PAGE, Rig, Running, TempDir, assert_idle, assert_same, busy, count_engine_panics, create, engine_panics,
    eventually, limits, open, spawn, within,
};

const TIME: Duration = Duration::from_secs(3);
const THREADS: u64 = 4;
/// Files that all threads write to, each thread in pages of its own.
const SHARED: u64 = 4;
/// Pages of one thread in each of them.
const PAGES: u64 = 500;

/// The content that one thread expects: its own files, and its pages of the shared ones.
struct Worker {
    volume: Arc<SuperBlock>,
    thread: u64,
    random: Random,
    shared: Vec<(File, Vec<Vec<u8>>)>,
    own: Vec<u8>,
}

impl Worker {
    fn new(volume: Arc<SuperBlock>, thread: u64, seed: u64) -> Self {
        let shared = (0..SHARED).map(|nth| (open(&volume, &format!("shared{nth}")), vec![Vec::new(); PAGES as usize]));
        let shared = shared.collect();
        drop(create(&volume, &format!("own{thread}")));
        Self { volume, thread, random: Random::new(seed ^ thread << 32), shared, own: Vec::new() }
    }

    /// Pages of the threads alternate, so that the threads meet in units and leaves but not in bytes.
    fn at(&self, page: u64) -> u64 {
        (page * THREADS + self.thread) * PAGE as u64
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..55 => self.write_shared(),
            55..75 => self.read_shared(),
            75..90 => self.change_own(),
            90..95 => drop(self.shared[self.random.below(SHARED) as usize].0.fsync()),
            95..97 => drop(self.volume.sync()),
            _ => self.come_and_go(),
        }
    }

    fn write_shared(&mut self) {
        let (nth, page) = (self.random.below(SHARED) as usize, self.random.below(PAGES));
        let within = self.random.below(PAGE as u64 - 1);
        let part = pattern(self.random.next(), (self.random.below(PAGE as u64 - within) + 1) as usize);
        let at = self.at(page) + within;
        let (file, pages) = &mut self.shared[nth];
        if file.write_at(at, &part).is_err() {
            return; // a page that is covered in part could not be read
        }
        let wanted = &mut pages[page as usize];
        wanted.resize(PAGE, 0);
        wanted[within as usize..within as usize + part.len()].copy_from_slice(&part);
    }

    fn read_shared(&mut self) {
        let (nth, page) = (self.random.below(SHARED) as usize, self.random.below(PAGES));
        self.check_shared(nth, page);
    }

    fn check_shared(&self, nth: usize, page: u64) {
        let (file, pages) = &self.shared[nth];
        let wanted = &pages[page as usize];
        let mut found = vec![0xee; PAGE];
        if let Ok(read) = file.read_at(self.at(page), &mut found) {
            // Unwritten pages are zero, or lie beyond the end.
            let wanted = if wanted.is_empty() { &vec![0; read] } else { wanted };
            let read = if wanted.len() == PAGE && read < PAGE {
                &[&found[..read], &vec![0; PAGE - read]].concat()
            } else {
                &found[..read]
            };
            assert_same(read, wanted, "a page of this thread");
        }
    }

    fn change_own(&mut self) {
        let file = open(&self.volume, &format!("own{}", self.thread));
        match self.random.below(4) {
            0 => {
                let len = self.random.below(500_000);
                if file.set_len(len).is_ok() {
                    self.own.resize(len as usize, 0);
                }
            }
            1 => {
                let mut found = vec![0xee; self.own.len() + 10];
                if let Ok(read) = file.read_at(0, &mut found) {
                    assert_same(&found[..read], &self.own, "the file of this thread");
                }
            }
            2 => drop(file.fsync()),
            _ => {
                let at = self.random.below(300_000) as usize;
                let part = pattern(self.random.next(), self.random.below(100_000) as usize + 1);
                // Page by page, since a write that fails halfway has written its beginning.
                let mut done = 0;
                while done < part.len() {
                    let end = part.len().min(done + PAGE - (at + done) % PAGE);
                    if file.write_at((at + done) as u64, &part[done..end]).is_err() {
                        break;
                    }
                    self.own.resize(self.own.len().max(at + end), 0);
                    self.own[at + done..at + end].copy_from_slice(&part[done..end]);
                    done = end;
                }
            }
        }
    }

    fn come_and_go(&mut self) {
        let name = format!("brief{}", self.thread);
        let file = create(&self.volume, &name);
        let bytes = pattern(self.random.next(), self.random.below(200_000) as usize);
        if file.write_at(0, &bytes).is_ok() {
            let mut found = vec![0; bytes.len()];
            if file.read_at(0, &mut found).is_ok() {
                assert_same(&found, &bytes, "a brief file");
            }
        }
        let root = self.volume.root().unwrap();
        match self.random.below(3) {
            0 => {
                drop(file);
                self.volume.remove(&root, &name, Removal::File).unwrap();
            }
            1 => {
                self.volume.remove(&root, &name, Removal::File).unwrap();
                Self::check_nameless(&file, bytes);
            }
            _ => {
                let other = format!("other{}", self.thread);
                drop(create(&self.volume, &other));
                // The replaced file may be written back first.
                while self.volume.rename(&root, &other, &root, &name, RenameMode::Replace).is_err() {}
                Self::check_nameless(&file, bytes);
                self.volume.remove(&root, &name, Removal::File).unwrap();
            }
        }
    }

    /// A file that has just lost its name still exists for its open descriptions, whatever is cached of it.
    fn check_nameless(file: &File, mut bytes: Vec<u8>) {
        let written = file.write(WriteRequest::at(0).flags(WriteFlags::DONTCACHE), &[7; PAGE]);
        if !matches!(written, Ok(Written::Bytes(PAGE))) || file.fsync().is_err() {
            return;
        }
        bytes.resize(bytes.len().max(PAGE), 0);
        bytes[..PAGE].fill(7);
        let mut found = vec![0; bytes.len()];
        match file.read_at(0, &mut found) {
            Ok(_) => assert_same(&found, &bytes, "a file without a name"),
            Err(error) => assert_ne!(error.kind(), ErrorKind::Stale),
        }
    }

    /// Without faults, all content is as it was last written.
    fn check_all(&self) {
        for nth in 0..SHARED as usize {
            for page in 0..PAGES {
                self.check_shared(nth, page);
            }
        }
        let file = open(&self.volume, &format!("own{}", self.thread));
        let mut found = vec![0xee; self.own.len() + 10];
        let read = file.read_at(0, &mut found).unwrap();
        assert_same(&found[..read], &self.own, "the file of this thread");
    }
}

fn torture(volume: &Arc<SuperBlock>, seed: u64, calm: impl FnOnce()) -> Vec<Vec<u8>> {
    count_engine_panics();
    println!("seed {seed}");
    for nth in 0..SHARED {
        drop(create(volume, &format!("shared{nth}")));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<Running<Worker>> = (0..THREADS)
        .map(|thread| {
            let (volume, stop) = (volume.clone(), stop.clone());
            spawn("a worker", move || {
                let mut worker = Worker::new(volume, thread, seed);
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                }
                worker
            })
        })
        .collect();
    let started = Instant::now();
    while started.elapsed() < TIME {
        volume.sync().ok();
        assert!(volume.bdi().pinned_frames() <= volume.bdi().share_frames() + 2 * 4096, "a gauge has wrapped");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    let workers: Vec<Worker> = workers.into_iter().map(Running::wait).collect();
    calm();
    workers.iter().for_each(Worker::check_all);
    assert_eq!(engine_panics(), 0);
    workers.into_iter().map(|worker| worker.own).collect()
}

/// No node stays open without need: each is closed at every opportunity, whatever is done with its file.
fn restless() -> Tunables {
    Tunables { idle_nodes: 0, ..busy() }
}

fn seed() -> u64 {
    std::env::var("SLACKWATER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(u64::from(std::process::id()))
}

#[test]
fn threads_and_faults_leave_every_byte_right_and_every_gauge_zero() {
    let small = Limits { unit_bytes: 64 << 10, ..limits() };
    let rig = Rig::live(Disk::with_limits(small), restless());
    let (faults, seed) = (rig.disk.faults.clone(), seed());
    for (nth, name) in (0..).zip(["write", "sync", "sync_volume", "setattr", "read"]) {
        faults.add(Rule::fail(ErrorKind::Io).on(name).chance(0.02, seed + nth));
    }
    faults.add(Rule::short_write(3 * PAGE).chance(0.05, seed));
    let own = torture(&rig.volume, seed, || faults.clear());
    eventually("it comes to rest", || rig.volume.status().bytes_left() == 0);
    let (volume, mem) = (rig.volume.clone(), rig.disk.mem.clone());
    within("umount", move || volume.umount(UmountOptions::default())).unwrap();
    assert_idle(&rig.engine, &rig.volume);
    for (thread, bytes) in own.iter().enumerate() {
        assert_same(&mem.durable_file(&*format!("own{thread}")).unwrap(), bytes, "durable");
    }
}

#[test]
fn threads_over_a_directory_leave_every_byte_right_and_every_gauge_zero() {
    let dir = TempDir::new("torture");
    let arena = Arena::create(&ArenaConfig::memfd(8 << 20)).unwrap();
    let engine = slackwater::Engine::new(arena, Arc::new(SystemClock), restless());
    let (fault, faults) = Fault::new(Arc::new(DirBackend::open(dir.path()).unwrap()));
    let volume = engine.mount("torture", Arc::new(fault)).unwrap();
    let seed = seed();
    faults.add(Rule::fail(ErrorKind::Io).on("write").chance(0.02, seed));
    faults.add(Rule::short_write(3 * PAGE).chance(0.05, seed));
    let own = torture(&volume, seed, || faults.clear());
    let unmounted = volume.clone();
    within("umount", move || unmounted.umount(UmountOptions::default())).unwrap();
    assert_idle(&engine, &volume);
    for (thread, bytes) in own.iter().enumerate() {
        assert_same(&std::fs::read(dir.path().join(format!("own{thread}"))).unwrap(), bytes, "on disk");
    }
}
