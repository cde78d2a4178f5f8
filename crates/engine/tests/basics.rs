//! A volume as programs see it: bytes written are bytes read, before and after write-back.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use slackwater::backend::{AttrChange, Backend, Call, Limits, MemBackend, NewNode, Removal};
use slackwater::{
    Engine, File, FileError, ManualClock, SuperBlock, Timestamp, Tunables, UmountError, UmountOptions, WaitFor,
    WriteRequest, Written,
};
use slackwater_arena::{Arena, ArenaConfig};

/// Writes without waiting for write-back.
#[track_caller]
fn try_write(file: &File, at: u64, bytes: &[u8]) -> Written {
    file.write(WriteRequest::at(at).wait(WaitFor::Backend), bytes).unwrap()
}

struct Rig {
    engine: Engine,
    clock: Arc<ManualClock>,
    backend: Arc<MemBackend>,
    volume: Arc<SuperBlock>,
}

impl Rig {
    fn new(arena_bytes: u64, tunables: Tunables) -> Self {
        let arena = Arena::create(&ArenaConfig::memfd(arena_bytes)).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        let engine = Engine::new(arena, clock.clone(), tunables);
        let backend = Arc::new(MemBackend::new());
        let volume = engine.mount("rig", backend.clone()).unwrap();
        Self { engine, clock, backend, volume }
    }

    fn by_hand() -> Self {
        Self::new(16 << 20, Tunables { flusher_threads: 0, ..Tunables::default() })
    }

    fn create(&self, name: &str) -> File {
        let root = self.volume.root().unwrap();
        File::open(&self.volume.make(&root, name, NewNode::File, 0o644).unwrap()).unwrap()
    }

    fn stored(&self, file: &File) -> Vec<u8> {
        self.backend.volatile_file(file.inode().id()).unwrap()
    }

    fn advance(&self, by: Duration) {
        let end = by;
        let step = Duration::from_millis(500);
        let mut at = Duration::ZERO;
        while at < end {
            self.clock.advance(step);
            at += step;
            self.engine.step();
        }
    }
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.inode().size_bytes() as usize + 10];
    let read = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn written_bytes_are_read_back_and_reach_the_backend_at_fsync() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"hello").unwrap();
    file.write_at(5000, b"world").unwrap();
    assert_eq!(rig.stored(&file), b"", "not yet written back");
    let mut want = vec![0; 5005];
    want[..5].copy_from_slice(b"hello");
    want[5000..].copy_from_slice(b"world");
    assert_eq!(read_all(&file), want);
    file.fsync().unwrap();
    assert_eq!(rig.stored(&file), want);
    assert_eq!(rig.backend.durable_file(file.inode().id()).unwrap(), want);
    assert_eq!(rig.volume.status().bytes_left(), 0);
    assert_eq!(rig.volume.bdi().pinned_frames(), 0);
    drop(file);
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(rig.engine.arena().free_frames(), u64::from(rig.engine.arena().frames()));
}

/// Notes the name of each call, and the thread that waits for it if one does.
struct Noting {
    inner: Arc<MemBackend>,
    /// Calls are made on threads of their own, also those with callers that wait.
    is_elsewhere: bool,
    seen: Mutex<Vec<(&'static str, Option<ThreadId>)>>,
}

impl Noting {
    fn note(&self, call: Call, waits: bool) {
        self.seen.lock().unwrap().push((call.name(), waits.then(|| thread::current().id())));
        let inner = Arc::clone(&self.inner);
        match self.is_elsewhere {
            true => drop(thread::spawn(move || inner.submit(call))),
            false => inner.submit(call),
        }
    }
}

impl Backend for Noting {
    fn submit(&self, call: Call) {
        self.note(call, false);
    }

    fn submit_and_wait(&self, call: Call) {
        self.note(call, true);
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }
}

/// A program that waits for a sync makes its calls itself: the last unit, the times, and the commit. Earlier units are
/// written meanwhile. A thread that answers a call never waits for another, and a sync with a deadline never for any.
#[test]
fn a_sync_without_a_deadline_makes_its_calls_itself() {
    let rig = Rig::by_hand();
    let calls_of = |is_elsewhere, bytes, sync: fn(&Arc<SuperBlock>, File)| {
        let backend = Arc::new(Noting { inner: Arc::new(MemBackend::new()), is_elsewhere, seen: Mutex::default() });
        let volume = rig.engine.mount("noting", backend.clone()).unwrap();
        let file = File::open(&volume.make(&volume.root().unwrap(), "a", NewNode::File, 0o644).unwrap()).unwrap();
        file.write_at(0, &vec![7; bytes]).unwrap();
        backend.seen.lock().unwrap().clear();
        sync(&volume, file);
        let seen = std::mem::take(&mut *backend.seen.lock().unwrap());
        let own = thread::current().id();
        assert!(seen.iter().all(|(_, waiter)| waiter.is_none_or(|waiter| waiter == own)), "{seen:?}");
        // A thread that has answered a call may still be about to end.
        loop {
            match volume.umount(UmountOptions::default()) {
                Err(UmountError::Busy { .. } | UmountError::Deadline { .. }) => thread::yield_now(),
                ended => break ended.unwrap(),
            }
        }
        seen.into_iter().map(|(name, waiter)| (name, waiter.is_some())).collect::<Vec<_>>()
    };
    let fsync = |_: &Arc<SuperBlock>, file: File| file.fsync().unwrap();
    assert_eq!(calls_of(false, 100, fsync), [("write", true), ("setattr", true), ("sync", true)]);
    let large = calls_of(false, (2 << 20) + 100, fsync);
    assert_eq!(
        large,
        [("write", false), ("write", false), ("write", true), ("setattr", true), ("sync", true)],
        "in three units"
    );
    let elsewhere: Vec<_> = calls_of(true, 100, fsync).into_iter().map(|(name, _)| name).collect();
    assert_eq!(elsewhere, ["write", "setattr", "sync"]);
    let pages_only = calls_of(false, 100, |_, file| file.write_back().unwrap());
    assert_eq!(pages_only, [("write", true), ("setattr", false)]);
    let deadline = |volume: &Arc<SuperBlock>, file: File| {
        drop(file);
        volume.flush_until(Some(volume.now() + Duration::from_secs(60))).unwrap();
    };
    assert_eq!(calls_of(false, 100, deadline), [("write", false), ("setattr", false), ("sync_volume", false)]);
}

#[test]
fn old_data_is_written_back_after_its_age_and_one_period() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[7; 10_000]).unwrap();
    rig.advance(Duration::from_secs(29));
    assert_eq!(rig.stored(&file), b"");
    rig.advance(Duration::from_secs(7));
    assert_eq!(rig.stored(&file), [7; 10_000]);
    rig.advance(Duration::from_secs(6));
    assert_eq!(rig.volume.status().bytes_left(), 0, "and committed");
    assert_eq!(rig.engine.step(), None, "a clean engine has no timer");
}

#[test]
fn a_truncated_and_extended_file_has_zeroes_in_place_of_old_bytes() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[7; 10_000]).unwrap();
    file.set_len(100).unwrap();
    file.set_len(9000).unwrap();
    let mut want = vec![0; 9000];
    want[..100].fill(7);
    assert_eq!(read_all(&file), want);
    file.fsync().unwrap();
    assert_eq!(rig.stored(&file), want);
    file.set_len(5000).unwrap();
    file.write_at(8000, b"x").unwrap();
    want[8000..].copy_from_slice(&{
        let mut tail = vec![0; 1000];
        tail[0] = b'x';
        tail
    });
    want.truncate(8001);
    assert_eq!(read_all(&file), want);
    file.fsync().unwrap();
    assert_eq!(rig.stored(&file), want);
}

#[test]
fn evicted_pages_are_read_again() {
    let rig = Rig::new(16 << 20, Tunables::default());
    let file = rig.create("big");
    let chunk: Vec<u8> = (0..1_000_003_u32).map(|at| (at * 7 % 251) as u8).collect();
    for nth in 0..40 {
        file.write_at(nth * chunk.len() as u64, &chunk).unwrap();
    }
    for nth in 0..40 {
        let mut bytes = vec![0; chunk.len()];
        assert_eq!(file.read_at(nth * chunk.len() as u64, &mut bytes).unwrap(), chunk.len());
        assert!(bytes == chunk, "chunk {nth}");
    }
    file.fsync().unwrap();
    drop(file);
    rig.volume.umount(UmountOptions::default()).unwrap();
}

#[test]
fn an_open_file_makes_the_volume_busy_and_a_second_umount_finds_nothing() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    assert!(matches!(rig.volume.umount(UmountOptions::default()), Err(UmountError::Busy { open_files: 1, .. })));
    file.write_at(0, b"still works").unwrap();
    drop(file);
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert!(matches!(rig.volume.umount(UmountOptions::default()), Err(UmountError::NotMounted)));
    assert!(matches!(rig.volume.root(), Err(FileError::NotMounted)));
    assert!(matches!(rig.volume.sync(), Err(FileError::NotMounted)));
}

#[test]
fn an_unlinked_file_exists_while_open_and_its_dirty_pages_are_dropped_with_it() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, &[1; 9000]).unwrap();
    let root = rig.volume.root().unwrap();
    rig.volume.remove(&root, "a", Removal::File).unwrap();
    drop(root);
    file.write_at(9000, &[2; 9000]).unwrap();
    assert_eq!(read_all(&file).len(), 18_000);
    drop(file);
    assert_eq!(rig.volume.bdi().pinned_frames(), 0);
    assert_eq!(rig.volume.status().bytes_left(), 0);
    rig.volume.umount(UmountOptions::default()).unwrap();
    assert_eq!(rig.engine.arena().free_frames(), u64::from(rig.engine.arena().frames()));
}

#[test]
fn offsets_beyond_the_backends_limit_are_refused_before_anything_is_cached() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    assert!(matches!(file.write_at(u64::MAX - 3, b"12345"), Err(FileError::TooLarge { .. })));
    assert!(matches!(file.set_len(u64::MAX), Err(FileError::TooLarge { .. })));
    assert_eq!(file.read_at(u64::MAX - 3, &mut [0; 10]).unwrap(), 0);
    assert_eq!(rig.volume.status().bytes_left(), 0);
}

#[test]
fn a_flush_keeps_times_set_explicitly() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    file.write_at(0, b"x").unwrap();
    let change = AttrChange { mtime: Some(Timestamp(42)), ..AttrChange::default() };
    rig.volume.setattr(file.inode(), change).unwrap();
    rig.clock.advance(Duration::from_secs(5));
    file.fsync().unwrap();
    assert_eq!(file.inode().attr().mtime, Timestamp(42));
    let inode = file.inode().clone();
    drop(file);
    assert_eq!(inode.attr().mtime, Timestamp(42));
}

#[test]
fn a_full_arena_refuses_a_write_until_write_back_frees_frames() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let share = rig.volume.bdi().share_frames();
    let mut written = 0;
    loop {
        match try_write(&file, written, &[3; 4096]) {
            Written::Bytes(bytes) => written += bytes as u64,
            Written::NoFrames => break,
            Written::NoSpace | _ => unreachable!(),
        }
    }
    assert_eq!(written / 4096, share);
    rig.engine.step();
    assert!(matches!(try_write(&file, written, &[3; 4096]), Written::Bytes(4096)));
    file.fsync().unwrap();
    assert_eq!(rig.stored(&file).len() as u64, written + 4096);
}

#[test]
fn attributes_are_known_until_the_last_answer_is_too_old() {
    let rig = Rig::by_hand();
    let file = rig.create("a");
    let known = |max_age| rig.volume.known_attr(file.inode(), max_age).map(|attr| attr.size_bytes);
    assert_eq!(rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap().size_bytes, 0);
    assert_eq!(try_write(&file, 0, &[1; 10]), Written::Bytes(10));
    file.fsync().unwrap();
    assert_eq!(rig.volume.revalidate(file.inode(), Duration::ZERO).unwrap().size_bytes, 10);
    assert_eq!(known(Duration::from_secs(1)), Some(10));
    rig.clock.advance(Duration::from_secs(2));
    assert_eq!(known(Duration::from_secs(1)), None);
    assert_eq!(known(Duration::from_secs(3)), Some(10));
}

/// As chown(2) of Linux, which leaves those of a directory alone. On a backend that is a file system, its kernel does it.
#[test]
fn a_change_of_owner_clears_setuid_and_setgid_of_all_but_directories() {
    const FIFO: u32 = 0o010_000;
    let rig = Rig::by_hand();
    let root = rig.volume.root().unwrap();
    let special = NewNode::Special { type_bits: FIFO, rdev: 0 };
    for (name, node, mode, left) in [
        ("file", NewNode::File, 0o6755, 0o755),
        ("file for locks", NewNode::File, 0o6745, 0o2745),
        ("fifo", special, 0o6755, 0o755),
        ("directory", NewNode::Directory, 0o6755, 0o6755),
    ] {
        let inode = rig.volume.make(&root, name, node, mode).unwrap();
        rig.volume.setattr(&inode, AttrChange { mode: Some(mode), ..AttrChange::default() }).unwrap();
        rig.volume.setattr(&inode, AttrChange { uid: Some(7), ..AttrChange::default() }).unwrap();
        assert_eq!((inode.attr().mode & 0o7777, inode.attr().uid), (left, 7), "{name}");
    }
}
