//! A process that is killed at any moment loses no byte whose write had returned.
//!
//! A child works on a volume in a directory, with its cache in a file on tmpfs. It has a few threads, each with files
//! of its own, and a cache too small for them, so that write-back, commits and eviction never rest. It reports the
//! completed operations through a pipe. The parent kills it at some moment, mounts the volume on what is left, and
//! compares every file with a model. Acknowledged data must be there exactly. Of the one operation per thread that may
//! have been under way, any part may be there. Then the parent unmounts and compares the files in the directory. The
//! next child continues with the same directory.
//!
//! Operations are drawn from the seed and the sizes of the files alone, so parent and child draw the same.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod child;
mod model;
#[path = "../rig/mod.rs"]
#[allow(dead_code, reason = "shared with other tests, which use the rest")]
mod rig;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slackwater::backend::NodeKind;
use slackwater::{Engine, ErrorKind, File, SuperBlock, UmountOptions};
use slackwater_arena::Arena;
use slackwater_backends::{DirBackend, SystemClock};
use slackwater_testkit::Random;

use model::{Model, THREADS};
use rig::{count_engine_panics, engine_panics, eventually_is};

const SEED_VARIABLE: &str = "SLACKWATER_KILL9_SEED";
const RUNS_VARIABLE: &str = "SLACKWATER_KILL9_RUNS";
/// Directory and arena file of a child, separated by a colon.
const PLACE_VARIABLE: &str = "SLACKWATER_KILL9_PLACE";

const RUNS: u64 = 100;
/// A child works for up to this long.
const LIFE: Duration = Duration::from_millis(150);
/// The directory is renewed now and then, so that kills also hit the beginning.
const RUNS_PER_DIRECTORY: u64 = 20;

/// The volume's directory and the arena's file, removed however the test ends.
struct Place {
    dir: PathBuf,
    arena: PathBuf,
}

impl Place {
    fn new() -> Option<Self> {
        if !Path::new("/dev/shm").is_dir() {
            println!("skipped: no /dev/shm");
            return None;
        }
        let name = format!("slackwater-kill9-volume-{}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        Some(Self { dir, arena: Path::new("/dev/shm").join(name) })
    }

    fn clear(&self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_file(&self.arena);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
    }
}

#[test]
fn acknowledged_bytes_survive_a_kill_at_any_moment() {
    let number = |variable| std::env::var(variable).ok().and_then(|value| value.parse().ok());
    let first_seed = number(SEED_VARIABLE).unwrap_or_else(|| u64::from(std::process::id()) << 16);
    let runs = number(RUNS_VARIABLE).unwrap_or(RUNS);
    let Some(place) = Place::new() else { return };
    count_engine_panics();
    let started = Instant::now();
    let (mut model, mut acknowledged, mut survived, mut done) = (Model::default(), 0, 0, 0);
    let is_enough = |acknowledged, survived| acknowledged > runs && (runs < RUNS || survived > runs);
    // On a loaded machine a child gets little done before it is killed: then there are more.
    while done < runs || done < 10 * runs && !is_enough(acknowledged, survived) {
        let seed = first_seed + done;
        println!("seed {seed} (set {SEED_VARIABLE} to begin with it)");
        if seed == first_seed || seed.is_multiple_of(RUNS_PER_DIRECTORY) {
            place.clear();
            std::fs::create_dir(&place.dir).unwrap();
            model = Model::default();
        }
        done += 1;
        let returned = run_and_kill(&place, seed);
        acknowledged += returned.iter().sum::<u64>();
        model.learn(seed, returned);
        survived += compare_and_unmount(&place, &mut model, seed);
        assert_eq!(engine_panics(), 0, "seed {seed}: a thread of the engine panicked");
    }
    let elapsed = started.elapsed();
    println!("{acknowledged} operations and {survived} surviving files in {done} runs, {elapsed:?}");
    assert!(acknowledged > runs, "the children got nothing done");
    assert!(runs < RUNS || survived > runs, "nothing was left to recover");
}

/// Not a test: the child's main function.
#[test]
fn child_process() {
    if let (Ok(place), Ok(seed)) = (std::env::var(PLACE_VARIABLE), std::env::var(SEED_VARIABLE)) {
        let (dir, arena) = place.split_once(':').unwrap();
        child::work(Path::new(dir), Path::new(arena), seed.parse().unwrap());
    }
}

/// The number of completed operations of each thread.
fn run_and_kill(place: &Place, seed: u64) -> [u64; THREADS] {
    let mut child = spawn(place, seed);
    let mut pipe = child.stderr.take().unwrap();
    let mut reports = [0];
    pipe.read_exact(&mut reports).expect("the child says when it begins");
    let reader = std::thread::spawn(move || {
        let mut returned = [0; THREADS];
        let mut reports = Vec::new();
        pipe.read_to_end(&mut reports).unwrap();
        // One byte for each operation: the thread.
        reports.iter().for_each(|thread| match returned.get_mut(usize::from(*thread)) {
            Some(count) => *count += 1,
            None => {
                panic!("the child failed: {}", String::from_utf8_lossy(&reports[reports.len().saturating_sub(4000)..]))
            }
        });
        returned
    });
    std::thread::sleep(Duration::from_micros(Random::new(seed).below(LIFE.as_micros() as u64)));
    child.kill().expect("the child runs until it is killed");
    let status = child.wait().expect("it is our child");
    assert_eq!(status.signal(), Some(9), "the child failed: {status}");
    reader.join().expect("every report is whole")
}

fn spawn(place: &Place, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(PLACE_VARIABLE, format!("{}:{}", place.dir.display(), place.arena.display()))
        .env(SEED_VARIABLE, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test can run itself")
}

/// Mounts the volume of the dead child and compares it, twice. Returns how many files had survived in the arena.
fn compare_and_unmount(place: &Place, model: &mut Model, seed: u64) -> u64 {
    let (arena, survivors) = Arena::open(&place.arena).expect("a killed process leaves a sound arena");
    let survived = survivors.volumes.iter().map(|volume| volume.inodes.len() as u64).sum();
    let (frames, inodes) = (u64::from(arena.frames()), child::INODES);
    let engine = Engine::recover(arena, survivors, Arc::new(SystemClock), child::tunables());
    let backend = Arc::new(DirBackend::open(&place.dir).unwrap());
    let volume = engine.mount("volume", backend).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for name in model::names() {
        let found = read(&volume, &name);
        model.compare_and_adopt(&name, found, seed);
    }
    let unmount = UmountOptions { deadline: Some(Duration::from_secs(120)), ..UmountOptions::default() };
    volume.umount(unmount).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    // The reclaim worker may have had pages in hand when the volume's inodes were evicted.
    eventually_is(&format!("free frames after seed {seed}"), &frames, || engine.arena().free_frames());
    assert_eq!(engine.arena().free_inodes(), inodes, "seed {seed}: records");
    drop((volume, engine));
    std::fs::remove_file(&place.arena).unwrap();
    for name in model::names() {
        model.compare(&name, std::fs::read(place.dir.join(&name)).ok(), seed);
    }
    survived
}

fn read(volume: &Arc<SuperBlock>, name: &str) -> Option<Vec<u8>> {
    let inode = match volume.walk(name) {
        Ok(inode) => inode,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => panic!("{name}: {error}"),
    };
    assert_eq!(inode.kind(), NodeKind::File);
    let file = File::open(&inode).unwrap();
    let mut bytes = vec![0xee; inode.size_bytes() as usize];
    let mut read = 0;
    for part in bytes.chunks_mut(256 << 10) {
        read += file.read_at(read as u64, part).unwrap();
    }
    assert_eq!(read, bytes.len(), "{name}");
    Some(bytes)
}
