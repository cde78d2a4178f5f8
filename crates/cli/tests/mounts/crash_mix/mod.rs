//! A mount process is killed at any moment, with every kind of operation in progress: writes and stores through
//! mappings, modes with set-user-ID that another user's writes clear, and files that are replaced, truncated and
//! removed. Before the next mount, files are changed in the source. The next mount may be of a directory above or
//! below, and may also die before it is ready.
//!
//! `SLACKWATER_CRASH_MIX_SEED` repeats the choices of a failed run, but not its timing.

mod changes;
mod log;
mod model;
mod worker;

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::mount::mount_bind;

use self::log::Event;
use self::model::{Files, Found, State, check_set_id, replay, saved_bytes, slotted_bytes};
use self::worker::Orders;
use crate::rig::{Process, Scratch, is_enough, need_fuse};
use crate::runs;

/// Number of kills, as in `kills`.
const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_KILLS";
const RUNS: u64 = 8;
const SEED_VARIABLE: &str = "SLACKWATER_CRASH_MIX_SEED";
/// The longest time that workers run, except for an occasional long run, in which stores reach their age limit.
const LIFE_US: u64 = 300_000;
const LONG_LIFE_US: u64 = 6_000_000;
/// A killed process that takes longer is stuck.
const ENDS_WITHIN: Duration = Duration::from_millis(500);
const QUIET_AFTER_MS: u64 = 400;
/// The longest time before a mount is killed while it starts.
const START_US: u64 = 60_000;
const WORKERS: u64 = 2;
/// Each directory is inside the one before. Each is mounted at its own mount point.
const DIRS: [&str; 3] = ["", "inner", "inner/deep"];
const OPTIONS: [&str; 4] = ["--dirty-expire", "100ms", "--cache", "32MiB"];
/// Mode of a file that every user may write to.
const FOR_ALL: u32 = 0o757;

fn slot_file(dir: &str) -> String {
    Path::new(dir).join("slots").to_str().unwrap().to_owned()
}

fn mode_file(dir: &str, worker: u64) -> String {
    Path::new(dir).join(format!("mode-{worker}")).to_str().unwrap().to_owned()
}

fn saved_file(dir: &str, worker: u64) -> String {
    Path::new(dir).join(format!("saved-{worker}")).to_str().unwrap().to_owned()
}

struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

struct World {
    scratch: Scratch,
    /// The outermost source.
    source: PathBuf,
    /// A bind mount of the directory inside it.
    alias: PathBuf,
    random: Random,
    files: Files,
    next_numbers: [u64; WORKERS as usize],
    /// Names of the rescue files that were already checked.
    seen: Vec<PathBuf>,
    figures: Figures,
}

/// Counts of what happened in a run.
#[derive(Debug, Default)]
struct Figures {
    kills: u64,
    kills_at_start: u64,
    unmounts: u64,
    operations: usize,
    changed: u64,
    kept_beside: u64,
    /// Killed processes that could not end without help.
    helped: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let scratch = Scratch::new();
        let (source, alias) = (scratch.dir("outer", 0o755), scratch.dir("alias", 0o755));
        fs::create_dir_all(source.join(DIRS[2])).unwrap();
        mount_bind(source.join(DIRS[1]), &alias).unwrap();
        (0..DIRS.len()).for_each(|nth| drop(scratch.dir(&format!("mount-{nth}"), 0o755)));
        let mut files = Files::new();
        for dir in DIRS {
            files.insert(slot_file(dir), State::slotted(0, FOR_ALL));
            for worker in 0..WORKERS {
                files.insert(mode_file(dir, worker), State::slotted(0, FOR_ALL));
                files.insert(saved_file(dir, worker), State::saved(0));
            }
        }
        let world = Self {
            scratch,
            source,
            alias,
            random: Random::new(seed),
            files,
            next_numbers: [0; WORKERS as usize],
            seen: Vec::new(),
            figures: Figures::default(),
        };
        world.files.keys().for_each(|name| make_anew(&world.source.join(name)));
        world
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random.below(of) == 0
    }

    /// The mount point of a directory, and the path of its source this time.
    fn place(&mut self, nth: usize) -> (PathBuf, PathBuf) {
        let source = match nth == 1 && self.chance(3) {
            true => self.alias.clone(),
            false => self.source.join(DIRS[nth]).components().collect(),
        };
        (source, self.scratch.path.join(format!("mount-{nth}")))
    }

    /// Starts a mount and kills it before, or just when, it is ready.
    fn start_and_kill(&mut self) {
        let nth = self.random.below(DIRS.len() as u64) as usize;
        let (source, mountpoint) = self.place(nth);
        let arena = self.scratch.arena(&format!("mount-{nth}"));
        let mut command = self.scratch.command(["mount".as_ref(), source.as_os_str(), mountpoint.as_os_str()]);
        command.arg("--arena").arg(arena).args(OPTIONS).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::spawn(&mut command);
        thread::sleep(Duration::from_micros(self.random.below(START_US)));
        self.kill(&mut process);
        self.figures.kills_at_start += 1;
    }

    /// Runs one life: a mount, its initial check, work, and its end.
    fn live(&mut self) {
        if self.chance(5) {
            self.start_and_kill();
        }
        let nth = self.random.below(DIRS.len() as u64) as usize;
        let (source, mountpoint) = self.place(nth);
        let mut mount = self.scratch.mount(&source, &mountpoint, &OPTIONS);
        let shown = |name: &str| Path::new(name).strip_prefix(DIRS[nth]).map(|below| mountpoint.join(below)).ok();
        self.check(&|name| shown(name).unwrap_or_else(|| self.source.join(name)));
        self.settle_changes(&shown);
        if self.chance(8) {
            let other = (nth + 1) % DIRS.len();
            let words = [self.source.join(DIRS[other]), self.scratch.path.join(format!("mount-{other}"))];
            let words = words.map(|path| path.to_str().unwrap().to_owned());
            self.scratch.run(["mount", &words[0], &words[1]]).expect(3, &["is mounted at"]);
        }
        let is_long = self.chance(12);
        let mut workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let orders = Orders {
                    mountpoint: mountpoint.clone(),
                    shown: DIRS[nth].to_owned(),
                    dirs: DIRS[nth..].iter().map(|dir| (*dir).to_owned()).collect(),
                    worker,
                    next_number: self.next_numbers[worker as usize],
                    seed: self.random.below(u64::MAX),
                    quiet_after_ms: is_long.then_some(QUIET_AFTER_MS),
                };
                let mut process = orders.start();
                let mut report = process.0.stderr.take().unwrap();
                let reader = thread::spawn(move || {
                    let mut text = String::new();
                    report.read_to_string(&mut text).unwrap();
                    text
                });
                (process, reader)
            })
            .collect();
        let life_us = if is_long { LONG_LIFE_US } else { self.random.below(LIFE_US) };
        thread::sleep(Duration::from_micros(life_us));
        let killed_ms = match self.chance(6) {
            true => {
                workers.iter_mut().for_each(|(process, _)| process.0.kill().unwrap());
                None
            }
            false => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
                self.kill(&mut mount.process);
                Some(now)
            }
        };
        for ((mut process, reader), worker) in workers.into_iter().zip(0..) {
            process.wait();
            let events = Event::all(&reader.join().unwrap());
            self.figures.operations += events.iter().filter(|event| matches!(event, Event::Done)).count();
            let last = replay(&mut self.files, worker, &events, killed_ms);
            let next = &mut self.next_numbers[worker as usize];
            *next = (last / 2).max(*next);
        }
        if killed_ms.is_none() {
            self.scratch.umount(&mountpoint);
            self.check(&|name| self.source.join(name));
            self.figures.unmounts += 1;
        } else {
            self.figures.kills += 1;
        }
        self.check_set_ids();
        self.change_behind();
    }

    /// Kills a mount process. If it waits for its own answer in the kernel at that moment, it cannot end until another
    /// command ends it.
    fn kill(&mut self, process: &mut Process) {
        process.0.kill().unwrap();
        let deadline = Instant::now() + ENDS_WITHIN;
        while process.0.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.scratch.run(["status"]).expect(0, &[]);
                self.figures.helped += 1;
                process.wait();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Compares all files with the model, which then takes over what was found.
    fn check(&self, path_of: &dyn Fn(&str) -> PathBuf) -> Vec<(String, Option<Found>)> {
        let look = |(name, state): (&String, &State)| {
            let (path, figures) = (path_of(name), &self.figures);
            let found = find(&path);
            state.check(found.as_ref()).unwrap_or_else(|wrong| panic!("{}: {wrong}; {figures:?}", path.display()));
            (name.clone(), found)
        };
        self.files.iter().map(look).collect()
    }

    /// Checks that no file in the source of a dead mount has set-user-ID together with bytes of another user.
    fn check_set_ids(&self) {
        for (name, state) in &self.files {
            if let Some(found) = find(&self.source.join(name)) {
                check_set_id(state, &found).unwrap_or_else(|wrong| panic!("{name}, in the source: {wrong}"));
            }
        }
    }
}

/// The content and mode of a file, if it exists.
fn find(path: &Path) -> Option<Found> {
    match fs::read(path) {
        Ok(bytes) => Some((bytes, fs::metadata(path).unwrap().mode() & 0o7777)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Creates a file durably in its initial state, whatever was there.
fn make_anew(path: &Path) {
    let temporary = path.with_extension("anew");
    let is_saved = path.file_name().unwrap().to_str().unwrap().starts_with("saved");
    fs::write(&temporary, if is_saved { saved_bytes(0) } else { slotted_bytes(0) }).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(FOR_ALL)).unwrap();
    fs::File::open(&temporary).unwrap().sync_all().unwrap();
    fs::rename(temporary, path).unwrap();
}

/// Prints how to repeat a failed run.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to repeat the choices: {SEED_VARIABLE}={}", self.0);
        }
    }
}

#[test]
fn a_killed_mount_loses_nothing_whatever_was_in_progress() {
    need_fuse();
    let by_chance = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = Seed(runs(SEED_VARIABLE, by_chance));
    let mut world = World::new(seed.0);
    while !is_enough(world.figures.kills, RUNS_VARIABLE, RUNS, world.figures.operations == 0) {
        world.live();
    }
    println!("seed {}: {:?}", seed.0, world.figures);
    assert!(world.figures.operations > 0, "no operation completed");
}
