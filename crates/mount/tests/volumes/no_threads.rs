//! Written data survives when the system cannot start threads.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc;

use rustix::process::{Resource, getrlimit, setrlimit};
use slackwater::backend::MemBackend;
use slackwater_testkit::{Rule, pattern};

use crate::programs::{in_own_process, spawn, until, wait};
use crate::rig::{Rig, threads};

/// Twice the size of the cache.
const BYTES: usize = 16 << 20;

/// Leaves no memory for the stack of another thread, until dropped.
struct NoThreads {
    before: Option<u64>,
    /// Ends the threads that occupy the cached stacks.
    _taken: Vec<mpsc::Sender<()>>,
}

impl NoThreads {
    fn new() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let size_kib: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let mut limit = getrlimit(Resource::As);
        let before = limit.current;
        // Address space for everything but a stack, which takes 2 MiB.
        limit.current = Some((size_kib << 10) + (1 << 20));
        setrlimit(Resource::As, limit).unwrap();
        let mut taken = Vec::new();
        loop {
            let (send, receive) = mpsc::channel::<()>();
            match std::thread::Builder::new().spawn(move || receive.recv()) {
                Ok(_) => taken.push(send),
                Err(_) => return Self { before, _taken: taken },
            }
        }
    }
}

impl Drop for NoThreads {
    fn drop(&mut self) {
        let mut limit = getrlimit(Resource::As);
        limit.current = self.before;
        setrlimit(Resource::As, limit).unwrap();
    }
}

/// A program whose write finds no free frame gets a short count or EINTR, and retries until there is one.
#[test]
fn a_write_that_cannot_be_parked_is_retried_by_its_program() {
    in_own_process("no_threads::a_write_that_cannot_be_parked_is_retried_by_its_program", || {
        let rig = Rig::new(8 << 20);
        let volume = rig.mount_on(Arc::new(MemBackend::new()));
        volume.faults.add(Rule::hold().on("write"));
        let (original, go) = (rig.home.join("original"), rig.home.join("go"));
        fs::write(&original, pattern(1, BYTES)).unwrap();
        let copy = "until [ -e \"$0\" ]; do sleep 0.01; done; exec dd if=\"$1\" of=\"$2\" bs=64K";
        let names = [&go, &original, &volume.file("a")].map(|path| path.display().to_string());
        // Started before the limit, with all the memory that it needs.
        let mut dd = spawn("sh", &["-c", copy, &names[0], &names[1], &names[2]]);
        // A thread that ends later would leave its stack to another.
        until("the threads of the mount have ended", || {
            let threads = threads();
            ["sw-own-mount", "sw-fuse-notify"].iter().all(|name| !threads.contains_key(*name))
        });
        let no_threads = NoThreads::new();
        fs::write(&go, b"").unwrap();
        let size = || fs::metadata(volume.file("a")).map_or(0, |file| file.len());
        let mut last = (0, 0);
        until("dd makes no more progress", || {
            last = if size() > 0 && size() == last.0 { (last.0, last.1 + 1) } else { (size(), 0) };
            last.1 == 100
        });
        until("writes that no thread would retry are answered", || volume.mounted.parked_bytes() == 0);
        assert!(dd.try_wait().unwrap().is_none(), "dd retries");
        drop(no_threads);
        volume.let_through();
        assert!(wait(&mut dd).expect("dd continues").success());
        assert!(fs::read(volume.file("a")).unwrap() == pattern(1, BYTES), "no data is repeated or missing");
        [original, go].into_iter().for_each(|path| fs::remove_file(path).unwrap());
        volume.umount().unwrap();
    });
}
