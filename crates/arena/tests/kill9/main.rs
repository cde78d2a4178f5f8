//! A process that is killed at any instruction loses nothing it has acknowledged.
//!
//! A child works on an arena in a file: two threads, each on inodes of its own. Through a pipe it reports each step
//! before it begins and after the call returned. The parent kills it at some moment, opens the file and compares it
//! with a model. All acknowledged steps must be there exactly; the one step per thread in flight may have happened or
//! not. The next child continues with the same file. A second test trades the model for speed: see [`tight`].

mod model;
mod step;
mod tight;
mod writer;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use slackwater_arena::{Arena, ArenaError};

use model::Model;
use step::{Random, Report};

const PATH_VARIABLE: &str = "SLACKWATER_KILL9_ARENA";
const TIGHT_VARIABLE: &str = "SLACKWATER_KILL9_TIGHT";
const SEED_VARIABLE: &str = "SLACKWATER_KILL9_SEED";

/// Removes the file when the test ends, in any way.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn acknowledged_steps_survive_a_kill_at_any_moment() {
    const RUNS: u64 = 200;
    // A new file from time to time, so that kills hit its creation too.
    const RUNS_PER_FILE: u64 = 20;
    let first_seed = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok());
    let first_seed = first_seed.unwrap_or_else(|| u64::from(std::process::id()) << 16);
    let Some((path, _remove)) = temporary("random") else { return };
    let started = Instant::now();
    let mut model = Model::default();
    for seed in first_seed..first_seed + RUNS {
        println!("seed {seed} (set {SEED_VARIABLE} to begin with it)");
        if seed.is_multiple_of(RUNS_PER_FILE) {
            let _ = std::fs::remove_file(&path);
            model = Model::default();
        }
        let reports = run_and_kill(&path, seed);
        for report in reports {
            model.learn(report);
        }
        match Arena::open(&path) {
            Ok((arena, survivors)) => model.compare_and_adopt(&arena, &survivors),
            Err(ArenaError::Os { .. }) if !path.exists() => assert!(model.is_empty(), "the file is gone"),
            Err(error) => panic!("{error}: {error:?}"),
        }
    }
    println!("{} steps acknowledged in {RUNS} runs, {:?}", model.acknowledged(), started.elapsed());
    assert!(model.acknowledged() > RUNS, "the children got nothing done");
}

#[test]
fn a_kill_in_the_middle_of_a_step_leaves_the_old_or_the_new() {
    const RUNS: u64 = 200;
    let Some((path, _remove)) = temporary("tight") else { return };
    let mut random = Random::new(std::process::id().into());
    let mut acknowledged = 0;
    for _ in 0..RUNS {
        let mut child = spawn(&path, TIGHT_VARIABLE, 0);
        let mut ready = [0];
        let pipe = child.stderr.as_mut().expect("the child's stderr is a pipe");
        pipe.read_exact(&mut ready).expect("the child says when it begins");
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        kill(child);
        let (arena, survivors) = Arena::open(&path).expect("the child made it before it said so");
        acknowledged += tight::check(&arena, &survivors);
        std::fs::remove_file(&path).expect("it was opened");
    }
    println!("{acknowledged} versions acknowledged in {RUNS} runs");
    assert!(acknowledged > RUNS, "the children got nothing done");
}

/// Not a test of its own: the body of the child.
#[test]
fn writer_process() {
    if let Ok(path) = std::env::var(TIGHT_VARIABLE) {
        tight::work(Path::new(&path));
    }
    if let (Ok(path), Ok(seed)) = (std::env::var(PATH_VARIABLE), std::env::var(SEED_VARIABLE)) {
        writer::work(Path::new(&path), seed.parse().expect("the parent sends a number"));
    }
}

fn run_and_kill(path: &Path, seed: u64) -> Vec<Report> {
    let mut child = spawn(path, PATH_VARIABLE, seed);
    let pipe = child.stderr.take().expect("the child's stderr is a pipe");
    let reader = std::thread::spawn(move || Report::read_all(pipe));
    std::thread::sleep(Duration::from_micros(Random::new(seed).below(40_000)));
    let status = kill(child);
    let reports = reader.join().expect("every report is whole");
    assert_eq!(status.signal(), Some(9), "the child failed: {status}");
    reports
}

fn kill(mut child: Child) -> ExitStatus {
    child.kill().expect("the child runs until it is killed");
    child.wait().expect("it is our child")
}

/// A path on tmpfs that is removed at the end.
fn temporary(name: &str) -> Option<(PathBuf, Remove)> {
    if !Path::new("/dev/shm").is_dir() {
        println!("skipped: no /dev/shm");
        return None;
    }
    let path = PathBuf::from(format!("/dev/shm/slackwater-kill9-{name}-{}", std::process::id()));
    Some((path.clone(), Remove(path)))
}

fn spawn(path: &Path, variable: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", "writer_process", "--nocapture"])
        .env(variable, path)
        .env(SEED_VARIABLE, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test can run itself")
}
