//! Mounts of object volumes that are killed at any moment; and machines that crash, so that arena and local log are gone
//! too.
//!
//! *Savers* replace a file again and again by writing a new one and renaming it. A *maker* makes new files, one after
//! the other, without replacing any: their names are in memory until a commit. All of them sync now and then.
//!
//! - After a kill, everything that returned is there, names included.
//! - After a crash of the machine, everything is there that came before an fsync that returned. The volume is that of
//!   one moment: the maker's files are there up to one of them, without a gap, and a saved file is a whole version.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::rig::{Scratch, need_fuse};
use crate::{bytes, runs};

const RUNS_VARIABLE: &str = "SLACKWATER_MOUNT_KILLS";
const RUNS: u64 = 8;
/// The longest time that they work.
const LIFE_US: u64 = 400_000;
const SAVERS: u64 = 2;
/// Old data is written back all the time, so that the kill hits every step.
const OPTIONS: [&str; 4] = ["--dirty-expire", "100ms", "--cache", "32MiB"];

/// The progress of one program: how many steps returned, and how many of them before an fsync that returned.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    returned: u64,
    durable: u64,
}

/// Takes steps from `from` on, until one fails. A step returns whether it ended with an fsync.
fn go_on(from: u64, mut step: impl FnMut(u64) -> std::io::Result<bool>) -> Progress {
    let mut progress = Progress { returned: from, durable: from };
    while let Ok(synced) = step(progress.returned + 1) {
        progress.returned += 1;
        if synced {
            progress.durable = progress.returned;
        }
    }
    progress
}

fn saved_path(dir: &Path, saver: u64) -> PathBuf {
    dir.join(format!("saved-{saver}"))
}

/// The file's content in its `nth` version. Some are uploaded as segments, and some travel with a commit.
fn version(saver: u64, nth: u64) -> Vec<u8> {
    let seed = saver << 32 | nth;
    let most = if seed.is_multiple_of(3) { 200_000 } else { 9_000 };
    bytes(seed, 1 + (seed.wrapping_mul(0x9e37_79b9) % most) as usize)
}

fn save(dir: &Path, saver: u64, nth: u64) -> std::io::Result<bool> {
    let temporary = dir.join(format!("saved-{saver}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(&version(saver, nth))?;
    drop(file);
    fs::rename(&temporary, saved_path(dir, saver))?;
    let syncs = nth.is_multiple_of(5);
    if syncs {
        File::open(dir)?.sync_all()?;
    }
    Ok(syncs)
}

fn made_path(dir: &Path, nth: u64) -> PathBuf {
    dir.join(format!("made-{}", nth / 100)).join(nth.to_string())
}

fn make(dir: &Path, nth: u64) -> std::io::Result<bool> {
    let path = made_path(dir, nth);
    if nth.is_multiple_of(100) || nth == 1 {
        fs::create_dir_all(path.parent().expect("a directory"))?;
    }
    let mut file = File::create_new(&path)?;
    file.write_all(&bytes(nth, 100))?;
    let syncs = nth.is_multiple_of(30);
    if syncs {
        file.sync_all()?;
    }
    Ok(syncs)
}

/// A volume with its processes.
struct World {
    scratch: Scratch,
    url: PathBuf,
    mountpoint: PathBuf,
    /// Has the arena and the local log.
    memory: PathBuf,
    savers: [Progress; SAVERS as usize],
    maker: Progress,
}

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        let url = PathBuf::from(format!("file://{}", scratch.path.join("objects").display()));
        let mountpoint = scratch.dir("mount", 0o755);
        let own = scratch.path.file_name().unwrap().to_str().unwrap().to_owned();
        let memory = Path::new("/dev/shm").join(own);
        fs::create_dir(&memory).unwrap();
        scratch.run(["mkfs", url.to_str().unwrap()]).expect(0, &[]);
        let mut world =
            Self { scratch, url, mountpoint, memory, savers: Default::default(), maker: Default::default() };
        let mount = world.mount();
        for saver in 0..SAVERS {
            fs::write(saved_path(&world.mountpoint, saver), version(saver, 0)).unwrap();
        }
        world.scratch.umount(&world.mountpoint);
        drop(mount);
        world.maker = Progress::default();
        world
    }

    fn mount(&self) -> crate::rig::Mount {
        let arena = self.memory.join("volume.arena");
        let arena = ["--arena", arena.to_str().unwrap()];
        self.scratch.mount(&self.url, &self.mountpoint, &[&OPTIONS[..], &arena].concat())
    }

    /// A process works and is killed. Its progress is recorded.
    fn live(&mut self, run: u64) {
        let mut mount = self.mount();
        let savers: Vec<_> = (0..SAVERS)
            .map(|saver| {
                let (dir, from) = (self.mountpoint.clone(), self.savers[saver as usize].returned);
                thread::spawn(move || go_on(from, |nth| save(&dir, saver, nth)))
            })
            .collect();
        let (dir, from) = (self.mountpoint.clone(), self.maker.returned);
        let maker = thread::spawn(move || go_on(from, |nth| make(&dir, nth)));
        let seed = bytes(run ^ u64::from(std::process::id()) << 20, 8);
        thread::sleep(Duration::from_micros(u64::from_le_bytes(seed.try_into().unwrap()) % LIFE_US));
        mount.kill();
        for (progress, saver) in self.savers.iter_mut().zip(savers) {
            *progress = saver.join().unwrap();
        }
        self.maker = maker.join().unwrap();
    }

    /// The machine crashes: nothing but the store is left.
    fn lose_memory(&self) {
        for entry in fs::read_dir(&self.memory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
    }

    /// Compares the volume with the progress of the programs, and adopts what is there. After a kill, all that returned
    /// must be there, otherwise all that was durable.
    fn check(&mut self, run: u64, memory_is_lost: bool) {
        let mount = self.mount();
        let least = |progress: &Progress| if memory_is_lost { progress.durable } else { progress.returned };
        for (saver, progress) in (0..).zip(&mut self.savers) {
            let found = fs::read(saved_path(&self.mountpoint, saver)).unwrap();
            let is = |nth: &u64| found == version(saver, *nth);
            let nth = (least(progress)..=progress.returned + 1).rev().find(is);
            let nth = nth.unwrap_or_else(|| {
                panic!("run {run}, saver {saver}: {} bytes are no version of {progress:?}", found.len())
            });
            *progress = Progress { returned: nth, durable: nth };
        }
        let is_there = |nth: u64| made_path(&self.mountpoint, nth).exists();
        let made = (1..=self.maker.returned + 1).take_while(|nth| is_there(*nth)).count() as u64;
        let found: u64 = count_files(&self.mountpoint);
        assert!(made >= least(&self.maker), "run {run}: {made} files of {:?}", self.maker);
        assert_eq!(found, made, "run {run}: files after a gap");
        let last = if memory_is_lost { self.maker.durable } else { self.maker.returned };
        for nth in (1..=last).rev().take(100) {
            // After a crash of the machine, only the data of files that were synced themselves is certain.
            if !memory_is_lost || nth.is_multiple_of(30) {
                let found = fs::read(made_path(&self.mountpoint, nth)).unwrap();
                assert!(found == bytes(nth, 100), "run {run}: {} bytes in file {nth}", found.len());
            }
        }
        // The step that was under way is made anew.
        let next = made_path(&self.mountpoint, made);
        if made > self.maker.returned {
            fs::remove_file(next).unwrap();
        }
        let returned = made.min(self.maker.returned);
        self.maker = Progress { returned, durable: returned };
        self.scratch.umount(&self.mountpoint);
        drop(mount);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.memory);
    }
}

/// The maker's files.
fn count_files(dir: &Path) -> u64 {
    let is_made = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with("made-"));
    let dirs = fs::read_dir(dir).unwrap().map(Result::unwrap).filter(is_made);
    dirs.map(|dir| fs::read_dir(dir.path()).unwrap().count() as u64).sum()
}

fn live_and_die(memory_is_lost: bool) {
    need_fuse();
    let mut world = World::new();
    for run in 0..runs(RUNS_VARIABLE, RUNS) {
        world.live(run);
        if memory_is_lost {
            world.lose_memory();
        }
        world.check(run, memory_is_lost);
    }
    println!("saved {:?}, made {:?}", world.savers, world.maker);
    assert!(world.maker.returned > 0 && world.savers.iter().all(|saver| saver.returned > 0), "nothing was done");
    world.scratch.run(["fsck", world.url.to_str().unwrap()]).expect(0, &["No errors."]);
}

#[test]
fn a_killed_mount_of_an_object_volume_loses_nothing_that_returned() {
    live_and_die(false);
}

#[test]
fn a_crash_of_the_machine_loses_nothing_that_was_synced_to_an_object_volume() {
    live_and_die(true);
}
