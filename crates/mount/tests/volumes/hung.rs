//! A volume whose source does not respond affects no other volume.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slackwater_backends::DirBackend;
use slackwater_fuse::mount::unmount;
use slackwater_mount::{MountedError, UmountRequest};
use slackwater_testkit::{Rule, pattern};

use crate::mapper::Mapper;
use crate::needs;
use crate::programs::{LONG, in_own_process, spawn, until, wait};
use crate::rig::{Rig, TestVolume, threads};

/// Longer than any call takes that does not wait for a hung source, even on a busy machine.
const PROMPT: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// A directory served by a program that can be stopped.
struct Bindfs {
    /// The underlying directory.
    directory: PathBuf,
    /// Where bindfs mounts the directory.
    path: PathBuf,
    process: Child,
}

impl Bindfs {
    /// `None` if bindfs is not installed.
    fn new(rig: &Rig) -> Option<Self> {
        if needs::are_missing(&["bindfs"]) {
            return None;
        }
        let [directory, path] = ["bound", "bindfs"].map(|name| rig.home.join(name));
        [&directory, &path].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let mut command = Command::new("bindfs");
        command.arg("-f").args([&directory, &path]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let bindfs = Self { directory, path, process };
        fs::write(bindfs.directory.join("is there"), b"").unwrap();
        until("bindfs has mounted", || bindfs.path.join("is there").exists());
        Some(bindfs)
    }

    fn stop(&self) -> Stopped {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.process.id());
        until("bindfs is stopped", || fs::read_to_string(&stat).unwrap().contains(") T "));
        Stopped(pid)
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        let _ = unmount(&self.path, true);
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir(&self.path);
    }
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Runs work that may hang, and returns how long it took.
fn within(what: &str, work: impl FnOnce() + Send + 'static) -> Duration {
    let (send, done) = mpsc::channel();
    let start = Instant::now();
    std::thread::spawn(move || {
        work();
        send.send(())
    });
    done.recv_timeout(LONG).unwrap_or_else(|_| panic!("it hangs or fails: {what}"));
    start.elapsed()
}

/// Writes, syncs, creates, renames, lists and removes. None of this may wait for the hung source.
fn use_fully(volume: &TestVolume, seed: u64) {
    let mut file = File::create(volume.file("a")).unwrap();
    file.write_all(&pattern(seed, BYTES)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fs::create_dir(volume.file("d")).unwrap();
    fs::write(volume.file("d/b"), b"b").unwrap();
    fs::rename(volume.file("d/b"), volume.file("b")).unwrap();
    fs::remove_dir(volume.file("d")).unwrap();
    fs::remove_file(volume.file("b")).unwrap();
    assert_eq!(fs::read_dir(&volume.path).unwrap().count(), 1);
    assert!(fs::read(volume.file("a")).unwrap() == pattern(seed, BYTES));
}

/// A process that executes a program first closes its files. A close waits for a file system that hangs, and most entries
/// of the process in `/proc` cannot be read until then.
#[test]
fn p04_a_program_that_cannot_start_delays_no_unmount() {
    in_own_process("hung::p04_a_program_that_cannot_start_delays_no_unmount", || {
        let rig = Rig::new(64 << 20);
        let Some(bindfs) = Bindfs::new(&rig) else { return };
        let volume = Arc::new(rig.mount());
        let used = File::create(volume.file("a")).unwrap();
        let hung = File::create(bindfs.path.join("a")).unwrap();
        let stopped = bindfs.stop();
        let starting = std::thread::spawn(|| wait(&mut spawn("true", &[])));
        until("a child waits for the hung file system", || children().into_iter().any(|child| !answers(child)));
        for _ in 0..3 {
            let volume = Arc::clone(&volume);
            let took = within("an unmount of a volume in use", move || {
                let result = volume.mounted.umount(UmountRequest::default(), &|_| {});
                let Err(MountedError::Busy { holders, .. }) = result else { panic!("{result:?}") };
                assert!(holders.iter().any(|holder| holder.pid == std::process::id()), "{holders:?}");
            });
            assert!(took < PROMPT, "{took:?}");
        }
        assert!((1..=4).contains(&threads()["sw-proc"]), "a thread waits for the child: {:?}", threads());
        drop(used);
        let took = within("the unmount", move || volume.umount().unwrap());
        assert!(took < PROMPT, "{took:?}");
        assert!(children().into_iter().any(|child| !answers(child)), "the child still waits");
        drop((stopped, hung));
        assert!(starting.join().unwrap().expect("it starts").success());
    });
}

/// The process ids of the children of this process.
fn children() -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// Whether the mappings of the process can be read.
fn answers(pid: u32) -> bool {
    let (send, answer) = mpsc::channel();
    std::thread::spawn(move || send.send(fs::read(format!("/proc/{pid}/maps")).is_ok()));
    answer.recv_timeout(Duration::from_secs(5)).is_ok()
}

#[test]
fn p04_a_source_that_does_not_respond_stops_no_other_volume() {
    // No other test starts a program while it has the files of this one, whose close would wait.
    in_own_process("hung::p04_a_source_that_does_not_respond_stops_no_other_volume", || {
        let rig = Rig::new(64 << 20);
        let Some(bindfs) = Bindfs::new(&rig) else { return };
        let mut others: Vec<_> = (0..4).map(|_| Arc::new(rig.mount())).collect();
        let hung = rig.mount_on(Arc::new(DirBackend::open(&bindfs.path).unwrap()));
        fs::create_dir(hung.file("d")).unwrap();
        let mut file = File::create(hung.file("a")).unwrap();
        let stopped = bindfs.stop();
        // This goes to the cache. Calls that need the source wait, on more threads than the pool has readers.
        file.write_all(&pattern(9, BYTES)).unwrap();
        let names: Vec<_> = (0..12).map(|number| hung.file(&format!("d/{number}")).display().to_string()).collect();
        let mut children: Vec<_> = names.iter().map(|name| spawn("mkdir", &[name])).collect();
        children.push(spawn("sync", &[hung.file("a").to_str().unwrap()]));
        for (seed, volume) in (0..).zip(others.drain(..)) {
            let took = within("another volume", move || {
                use_fully(&volume, seed);
                volume.umount().unwrap();
                assert!(fs::read(volume.stored("a")).unwrap() == pattern(seed, BYTES));
            });
            println!("meanwhile another volume was used and unmounted in {took:?}");
            assert!(took < PROMPT, "{took:?}");
        }
        // A new volume can be mounted and unmounted too.
        let fresh = rig.mount();
        let took = within("a new volume", move || {
            use_fully(&fresh, 7);
            fresh.umount().unwrap();
        });
        assert!(took < PROMPT, "{took:?}");
        assert!(children.iter_mut().all(|child| child.try_wait().unwrap().is_none()), "the source has not responded");
        drop(stopped);
        for child in &mut children {
            assert!(wait(child).expect("it continues").success());
        }
        drop(file);
        hung.umount().unwrap();
        assert!(fs::read(bindfs.directory.join("a")).unwrap() == pattern(9, BYTES));
        assert_eq!(fs::read_dir(bindfs.directory.join("d")).unwrap().count(), names.len());
    });
}

/// Each volume would block as many threads as a session may, and together more than the pool has.
#[test]
fn p04_nine_hung_volumes_leave_threads_for_a_tenth() {
    const HUNG: usize = 9;
    const CALLERS: usize = 70;
    let rig = Rig::new(64 << 20);
    let hung: Vec<_> = (0..HUNG).map(|_| rig.mount()).collect();
    let healthy = Arc::new(rig.mount());
    let mut callers = Vec::new();
    for volume in &hung {
        volume.faults.add(Rule::hold().on("lookup"));
        for caller in 0..CALLERS {
            let path = volume.file(&format!("none-{caller}"));
            let call = move || fs::metadata(path).map(drop).map_err(|error| error.kind());
            callers.push(std::thread::Builder::new().stack_size(64 << 10).spawn(call).unwrap());
        }
    }
    // Each volume blocks as many threads as it may, and the other calls wait for one.
    until("all calls are counted", || hung.iter().all(|volume| volume.mounted.calls() == CALLERS));
    for seed in 0..3 {
        let volume = Arc::clone(&healthy);
        let took = within("the tenth volume", move || {
            use_fully(&volume, seed);
            fs::remove_file(volume.file("a")).unwrap();
        });
        assert!(took < PROMPT, "{took:?}");
    }
    hung.iter().for_each(TestVolume::let_through);
    let outcomes = callers.into_iter().map(|caller| caller.join().unwrap());
    assert!(outcomes.into_iter().all(|outcome| outcome == Err(ErrorKind::NotFound)));
    hung.iter().for_each(|volume| volume.umount().unwrap());
    healthy.umount().unwrap();
}

/// Pages stored to mappings wait with their replies while the source hangs. They take no frames beyond the volume's
/// share and no threads, and are written back when the source responds again.
#[test]
fn p06_mappings_of_a_hung_volume_take_only_its_share_and_no_threads() {
    in_own_process("hung::p06_mappings_of_a_hung_volume_take_only_its_share_and_no_threads", || {
        const MAPPED: usize = 24 << 20;
        let rig = Rig::new(32 << 20);
        let hung = rig.mount();
        let healthy = Arc::new(rig.mount());
        File::create(hung.file("a")).unwrap().set_len(MAPPED as u64).unwrap();
        let mut mapper = Mapper::of(&hung.file("a"));
        hung.faults.add(Rule::hold().on("write"));
        let serving = |threads: &BTreeMap<String, usize>| threads["sw-fuse"];
        let before = serving(&threads());
        mapper.begin("fill a");
        let bdi = hung.mounted.super_block().bdi();
        until("mapped pages wait", || hung.mounted.parked_bytes() > 0);
        let took = within("a healthy volume", move || use_fully(&healthy, 3));
        assert!(took < PROMPT, "{took:?}");
        assert!(bdi.pinned_frames() <= bdi.share_frames(), "{} of {}", bdi.pinned_frames(), bdi.share_frames());
        let threads = threads();
        println!("{} bytes are waiting, {threads:?}", hung.mounted.parked_bytes());
        // Threads that the healthy volume needed briefly may still run.
        assert!(serving(&threads) < before + 8, "{before} before, {threads:?}");
        assert!(threads.get("sw-parked").is_none_or(|threads| *threads <= 16), "{threads:?}");
        hung.let_through();
        mapper.done();
        mapper.end();
        hung.umount().unwrap();
        // A page is answered before its payload is freed.
        until("no page waits any more", || hung.mounted.parked_bytes() == 0);
        let stored = fs::read(hung.stored("a")).unwrap();
        assert!(stored.len() == MAPPED && stored.chunks(4096).all(|page| page[..6] == *b"filled"));
    });
}
