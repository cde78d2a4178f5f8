//! The process that is killed.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use slackwater::backend::{NewNode, Removal};
use slackwater::{Engine, ErrorKind, File, SuperBlock, Tunables};
use slackwater_arena::{Arena, ArenaConfig};
use slackwater_backends::{DirBackend, SystemClock};

use crate::model::{FILES_PER_THREAD, Step, Steps, THREADS, name, payload};

const ARENA_BYTES: u64 = 16 << 20;
pub(crate) const INODES: u64 = 1024;

/// All work is due all the time.
pub(crate) fn tunables() -> Tunables {
    Tunables {
        dirty_writeback: Duration::from_millis(10),
        dirty_expire: Duration::from_millis(20),
        commit_interval: Duration::from_millis(15),
        ..Tunables::default()
    }
}

/// Works until it is killed.
pub(crate) fn work(dir: &Path, arena: &Path, seed: u64) -> ! {
    let config = ArenaConfig::file(arena, ARENA_BYTES).with_inodes(INODES as u32);
    let engine = Engine::new(Arena::create(&config).unwrap(), Arc::new(SystemClock), tunables());
    let volume = engine.mount("volume", Arc::new(DirBackend::open(dir).unwrap())).unwrap();
    report(u8::MAX);
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let volume = volume.clone();
            std::thread::spawn(move || run(&volume, thread, seed))
        })
        .collect();
    // A thread ends only by a panic. Its message is not a report, and fails the test.
    threads.into_iter().for_each(|thread| drop(thread.join()));
    std::process::exit(1)
}

/// Sends a byte, in one system call: it is in the pipe before the next operation begins.
fn report(byte: u8) {
    std::io::stderr().write_all(&[byte]).unwrap();
}

fn run(volume: &Arc<SuperBlock>, thread: usize, seed: u64) {
    let mut steps = Steps::new(seed, thread);
    let mut files: BTreeMap<u64, File> = BTreeMap::new();
    for file in 0..FILES_PER_THREAD {
        match volume.walk(name(thread, file)) {
            Ok(inode) => drop(files.insert(file, File::open(&inode).unwrap())),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
        }
    }
    loop {
        let size_of = |file| files.get(&file).map(|file| file.inode().size_bytes());
        let (file, step) = steps.next(size_of);
        let root = volume.root().unwrap();
        match step {
            Step::Create => {
                let inode = volume.make(&root, name(thread, file), NewNode::File, 0o644).unwrap();
                files.insert(file, File::open(&inode).unwrap());
            }
            Step::Unlink => {
                volume.remove(&root, name(thread, file), Removal::File).unwrap();
                files.remove(&file);
            }
            Step::Write { at, len, seed } => files[&file].write_at(at, &payload(seed, len)).unwrap(),
            Step::Append { len, seed } => {
                let end = files[&file].inode().size_bytes();
                files[&file].write_at(end, &payload(seed, len)).unwrap();
            }
            Step::Truncate { len } => files[&file].set_len(len).unwrap(),
            Step::Fsync => files[&file].fsync().unwrap(),
            Step::Read { at, len } => drop(files[&file].read_at(at, &mut vec![0; len]).unwrap()),
            Step::SyncVolume => volume.sync().unwrap(),
        }
        report(thread as u8);
    }
}
