//! Tenants and volumes that come and go, on real threads. No thread waits for ever, and at the end every count adds up
//! and every gauge is zero.
//!
//! A page is written as a whole, with words that name its place. `SLACKWATER_TORTURE_SECONDS` sets a longer duration.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use slackwater::backend::{AttrChange, Limits, Removal};
use slackwater::{
    Engine, ErrorKind, File, InodeRef, Memcg, SuperBlock, UmountError, UmountOptions, WriteFlags, WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::SystemClock;
use slackwater_testkit::{Random, Rule};

use crate::rig::{
    ARENA_BYTES, Disk, PAGE, PATIENCE, Running, busy, count_engine_panics, create, engine_panics, eventually,
    inodes_of, limits, spawn, within,
};

const THREADS: u64 = 6;
const VOLUMES: u64 = 3;
/// Files of each volume, which all threads write to for any tenant.
const FILES: u64 = 4;
const PAGES: u64 = 150;
const TENANTS: u64 = 5;

/// A volume, which is absent while it is unmounted and mounted again.
struct Place {
    name: String,
    disk: Disk,
    volume: RwLock<Option<Arc<SuperBlock>>>,
}

struct World {
    engine: Engine,
    places: Vec<Place>,
    tenants: Mutex<Vec<Arc<Memcg>>>,
    remounts: AtomicU64,
    offline: AtomicU64,
}

struct Worker {
    world: Arc<World>,
    thread: u64,
    random: Random,
}

fn limit(random: &mut Random) -> Option<u64> {
    match random.below(4) {
        0 => None,
        1 => Some(random.below(4) * PAGE as u64),
        _ => Some(random.below(200) * PAGE as u64),
    }
}

/// The word that fills page `page` of file `file`; `stamp` identifies the write.
fn word(file: u64, page: u64, stamp: u64) -> [u8; 8] {
    (file << 56 | page << 32 | stamp & 0xffff_ffff | 1).to_le_bytes()
}

impl World {
    fn new(seed: u64) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(ARENA_BYTES)).unwrap();
        let engine = Engine::new(arena, Arc::new(SystemClock), busy());
        let places = (0..VOLUMES).map(|nth| {
            let disk = Disk::with_limits(Limits { unit_bytes: 16 << 10, ..limits() });
            for (rule, name) in (0..).zip(["write", "sync", "sync_volume", "setattr"]) {
                disk.faults.add(Rule::fail(ErrorKind::Io).on(name).chance(0.01, seed ^ nth << 8 ^ rule));
            }
            let name = format!("volume {nth}");
            let volume = engine.mount(&name, disk.backend.clone()).unwrap();
            (0..FILES).for_each(|file| drop(create(&volume, &format!("shared{file}"))));
            Place { name, disk, volume: RwLock::new(Some(volume)) }
        });
        let places = places.collect();
        let tenants = (0..TENANTS).map(|nth| engine.memcg_create(&format!("{nth}"), None, None)).collect();
        Self { engine, places, tenants: Mutex::new(tenants), remounts: AtomicU64::new(0), offline: AtomicU64::new(0) }
    }

    /// Takes a tenant offline and replaces it by another, which may be below another tenant.
    fn replace_tenant(&self, random: &mut Random) {
        let (nth, parent) = (random.below(TENANTS) as usize, random.below(3 * TENANTS) as usize);
        let mut tenants = self.tenants.lock().unwrap();
        let parent = tenants.get(parent).filter(|_| parent != nth).cloned();
        let fresh = self.engine.memcg_create("fresh", parent.as_ref(), limit(random));
        let old = std::mem::replace(&mut tenants[nth], fresh);
        drop(tenants);
        assert!(self.engine.memcg_offline(&old));
        self.offline.fetch_add(1, Ordering::Relaxed);
    }

    /// Unmounts a volume, unless a file is open, and mounts it again.
    fn remount(&self, place: &Place) {
        let mut volume = place.volume.write().unwrap();
        let mounted = volume.take().unwrap();
        match mounted.umount(UmountOptions { deadline: Some(PATIENCE / 2), discard: false }) {
            Ok(()) => {
                assert_eq!((mounted.bdi().pinned_frames(), mounted.status().bytes_left()), (0, 0));
                drop(mounted);
                *volume = Some(self.engine.mount(&place.name, place.disk.backend.clone()).unwrap());
                self.remounts.fetch_add(1, Ordering::Relaxed);
            }
            Err(UmountError::Busy { .. } | UmountError::Deadline { .. }) => *volume = Some(mounted),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Worker {
    fn step(&mut self) {
        let world = Arc::clone(&self.world);
        let place = &world.places[self.random.below(VOLUMES) as usize];
        match self.random.below(1000) {
            0..20 => return world.replace_tenant(&mut self.random),
            20..40 => {
                let tenants = world.tenants.lock().unwrap();
                return tenants[self.random.below(TENANTS) as usize].set_limit_bytes(limit(&mut self.random));
            }
            40..45 => return world.remount(place),
            _ => {}
        }
        // Held while a file is open. An unmount waits for it, and meets everything that runs without it.
        let mounted = place.volume.read().unwrap();
        let Some(volume) = mounted.as_ref() else { return };
        let memcg = Arc::clone(&world.tenants.lock().unwrap()[self.random.below(TENANTS) as usize]);
        match self.random.below(100) {
            0..2 => drop(volume.sync()),
            2..7 => self.come_and_go(volume, &memcg),
            _ => {
                let nth = self.random.below(FILES);
                let Ok(inode) = volume.walk(format!("shared{nth}")) else { return };
                self.use_file(volume, &inode, nth, &memcg);
            }
        }
    }

    fn use_file(&mut self, volume: &Arc<SuperBlock>, inode: &InodeRef, nth: u64, memcg: &Arc<Memcg>) {
        let Ok(file) = File::open_for(inode, memcg) else { return };
        match self.random.below(100) {
            0..60 => self.write(&file, nth),
            60..75 => self.read(&file, nth),
            75..85 => drop(file.fsync()),
            85..92 => drop(file.set_len(self.random.below(PAGES) * PAGE as u64)),
            92..95 => {
                let change = AttrChange { mode: Some(0o6755), ..AttrChange::default() };
                drop(volume.setattr(inode, change));
                drop(volume.kill_suidgid(inode));
            }
            _ => {
                let page = self.random.below(PAGES);
                let bytes = word(nth, page, self.random.next()).repeat(PAGE / 8);
                drop(file.write(WriteRequest::from_mapping(page * PAGE as u64), &bytes));
            }
        }
    }

    fn write(&mut self, file: &File, nth: u64) {
        let first = self.random.below(PAGES);
        let flags = [WriteFlags::NONE, WriteFlags::DONTCACHE][self.random.below(2) as usize];
        for page in first..PAGES.min(first + 1 + self.random.below(20)) {
            let bytes = word(nth, page, self.random.next()).repeat(PAGE / 8);
            assert_eq!(
                file.write(WriteRequest::at(page * PAGE as u64).flags(flags), &bytes).unwrap(),
                Written::Bytes(bytes.len())
            );
        }
    }

    /// Each page is zero or is filled with one word, which names the page.
    fn read(&mut self, file: &File, nth: u64) {
        let page = self.random.below(PAGES);
        let mut bytes = vec![0; PAGE];
        let read = file.read_at(page * PAGE as u64, &mut bytes).unwrap();
        let Some(first) = bytes[..read].first_chunk::<8>() else { return };
        assert!(bytes[..read].chunks(8).all(|word| word == first), "a torn page {page} of {nth}");
        let value = u64::from_le_bytes(*first);
        assert!(value == 0 || value >> 32 == nth << 24 | page, "page {page} of {nth} has {value:x}");
    }

    fn come_and_go(&mut self, volume: &Arc<SuperBlock>, memcg: &Arc<Memcg>) {
        let name = format!("brief{}", self.thread);
        let inode = create(volume, &name).inode().clone();
        let file = File::open_for(&inode, memcg).unwrap();
        file.write_at(0, &[7; PAGE]).unwrap();
        if self.random.below(2) == 0 {
            drop(file.fsync());
        }
        if self.random.below(2) == 0 {
            drop((file, inode));
        }
        volume.remove(&volume.root().unwrap(), &name, Removal::File).unwrap();
    }
}

/// Runs the workers for `time`, and makes sure that none of them stalls.
fn run(world: &Arc<World>, seed: u64, time: Duration) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let steps: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
    let workers: Vec<Running<()>> = (0..THREADS)
        .map(|thread| {
            let (world, stop, steps) = (Arc::clone(world), Arc::clone(&stop), Arc::clone(&steps));
            spawn("a worker", move || {
                let mut worker = Worker { world, thread, random: Random::new(seed ^ thread << 32) };
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                    steps[thread as usize].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let look = || steps.iter().map(|steps| steps.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let started = Instant::now();
    let (mut seen, mut moved) = (look(), vec![started; THREADS as usize]);
    while started.elapsed() < time {
        std::thread::sleep(Duration::from_millis(10));
        for (thread, (now, seen)) in look().into_iter().zip(&mut seen).enumerate() {
            if now != *seen {
                (*seen, moved[thread]) = (now, Instant::now());
            }
            assert!(moved[thread].elapsed() < PATIENCE, "thread {thread} stands still: {:?}", world.engine.memcgs());
        }
        assert_eq!(engine_panics(), 0);
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(Running::wait);
    look().iter().sum()
}

#[test]
fn tenants_and_volumes_that_come_and_go_leave_every_count_right_and_every_gauge_zero() {
    let wanted = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let seed = wanted("SLACKWATER_SEED").unwrap_or(u64::from(std::process::id()));
    let time = Duration::from_secs(wanted("SLACKWATER_TORTURE_SECONDS").unwrap_or(5));
    println!("seed {seed}");
    count_engine_panics();
    let world = Arc::new(World::new(seed));
    let steps = run(&world, seed, time);
    let (remounts, offline) = (world.remounts.load(Ordering::Relaxed), world.offline.load(Ordering::Relaxed));
    println!("{steps} steps, {remounts} volumes mounted again, {offline} tenants went");

    let engine = &world.engine;
    println!("{} inodes switched, {:?}", engine.inodes_switched(), engine.drain_stats());
    let memcgs = std::mem::take(&mut *world.tenants.lock().unwrap());
    memcgs.iter().for_each(|memcg| assert!(engine.memcg_offline(memcg)));
    drop(memcgs);
    world.places.iter().for_each(|place| place.disk.faults.clear());
    let volumes: Vec<_> = world.places.iter().filter_map(|place| place.volume.write().unwrap().take()).collect();
    for volume in &volumes {
        eventually("it comes to rest", || volume.sync().is_ok() && volume.status().bytes_left() == 0);
    }
    eventually("the end of the tenants", || engine.memcgs().len() == 1);
    for volume in &volumes {
        assert_eq!(volume.wbs_alive(), 1, "{}", volume.name());
    }
    let mut counts = Ok(());
    eventually("counts that add up", || {
        counts = engine.check_counts();
        counts.is_ok()
    });
    for volume in volumes {
        within("umount", move || {
            volume.umount(UmountOptions::default()).unwrap();
            assert_eq!((volume.bdi().pinned_frames(), volume.status().bytes_left()), (0, 0));
        });
    }
    let arena = engine.arena();
    assert_eq!(arena.free_frames(), u64::from(arena.frames()));
    assert_eq!(arena.free_inodes(), inodes_of(arena));
    assert_eq!((engine.dead_volume_uses(), engine.switches_in_flight(), engine_panics()), (0, 0, 0));
}
