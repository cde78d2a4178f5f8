//! Two mounts that take a volume over from each other while programs write through both, and a third that reads it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::programs::{Programs, State};
use crate::rig::{Mount, Scratch, bytes, is_enough, need_fuse, run, umount_when_free, wait_until};
use crate::store::{Store, stores};

const FIGHTS_VARIABLE: &str = "SLACKWATER_MOUNT_FIGHTS";
const FIGHTS: u64 = 3;
/// The longest time that a winner has the volume for itself.
const PEACE_MS: u64 = 300;

/// A user with one mount point and a registry of its own, which knows no mount of the other side.
struct Side<'a> {
    scratch: &'a Scratch,
    store: &'a Store,
    mountpoint: PathBuf,
    registry: PathBuf,
}

impl<'a> Side<'a> {
    fn new(scratch: &'a Scratch, store: &'a Store, mountpoint: PathBuf) -> Self {
        let name = format!("{}-registry", mountpoint.file_name().unwrap().to_str().unwrap());
        Self { scratch, store, mountpoint, registry: scratch.dir(&name, 0o700) }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.store.command(self.scratch, words);
        command.env("SLACKWATER_RUNTIME_DIR", &self.registry);
        command
    }

    fn mount(&self, more: &[&str]) -> Mount {
        let mut command = self.store.mount_command(self.scratch, &self.mountpoint, more);
        command.env("SLACKWATER_RUNTIME_DIR", &self.registry);
        Mount::start(command, &self.mountpoint)
    }

    /// Ends a mount that has lost the volume.
    fn give_up(&self, mut mount: Mount, is_killed: bool) {
        if is_killed {
            mount.kill();
            drop(mount);
            self.store.lose_arena(&self.mountpoint);
        } else {
            let at = self.mountpoint.to_str().unwrap();
            // A mount namespace that another test makes in this moment has a copy of the mount, which `--force` ends.
            run(self.command(&["umount", at, "--discard", "--yes", "--force"])).expect(0, &[]);
            mount.wait().expect(0, &[]);
        }
    }
}

/// Reads the volume at `dir` until `is_over`: the tree is whole, and never older than before. Returns the number of looks.
fn watch(dir: &Path, is_over: &AtomicBool) -> u64 {
    let (mut looks, mut last) = (0, State::default());
    while !is_over.load(Ordering::Relaxed) {
        match State::read(dir) {
            Ok(state) => {
                assert!(state.is_not_before(&last), "the reader goes back from {last:?} to {state:?}");
                (looks, last) = (looks + 1, state);
            }
            // A saved file that is replaced while it is read.
            Err(error) if is_stale(&error) => {}
            Err(error) => panic!("the reader finds a broken tree after {last:?}: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
    looks
}

fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

/// Returns what is on the volume in the end.
fn fight(scratch: &Scratch, store: &Store, sides: &[Side<'_>; 2]) -> State {
    let mut writer = sides[0].mount(&[]);
    let mut state = State::default();
    let mut round = 0;
    while !is_enough(round, FIGHTS_VARIABLE, FIGHTS, state.is_idle()) {
        let [loser, winner] = [round, round + 1].map(|side| &sides[side as usize % 2]);
        let programs = Programs::start(&loser.mountpoint, &state);
        let random = bytes(round ^ u64::from(std::process::id()) << 20, 2);
        thread::sleep(Duration::from_millis(u64::from(random[0]) * PEACE_MS / 255));
        let next = winner.mount(&["--take-over"]);
        let found = State::of(&winner.mountpoint);
        let works = programs.join();
        println!("{}: fight {round}: {found:?}", store.url);
        for work in &works {
            assert!(is_stale(&work.error), "a program of the loser fails with {}", work.error);
        }
        found.check_after_crash(&winner.mountpoint, &works);
        loser.give_up(writer, random[1].is_multiple_of(2));
        assert_eq!(State::of(&winner.mountpoint), found, "the loser changed the volume after it had lost it");
        (writer, state) = (next, found);
        round += 1;
    }
    let last = &sides[round as usize % 2];
    let umount = || run(last.command(&["umount", last.mountpoint.to_str().unwrap()]));
    umount_when_free(umount).expect(0, &[]);
    writer.wait().expect(0, &[]);
    state.assert_work();
    store.fsck(scratch);
    state
}

#[test]
fn a_fight_loses_nothing_that_was_synced_and_mixes_nothing() {
    need_fuse();
    let scratch = Scratch::new();
    for store in stores(&scratch) {
        let [first, second, third] = store.mountpoints(&scratch);
        store.mkfs(&scratch);
        let sides = [first, second].map(|at| Side::new(&scratch, &store, at));
        let mut reader = store.mount(&scratch, &third, &["--read-only", "--follow", "1s"]);
        let is_over = AtomicBool::new(false);
        let looks = thread::scope(|scope| {
            let looks = scope.spawn(|| watch(&third, &is_over));
            let ends = EndsWatch(&is_over);
            let state = fight(&scratch, &store, &sides);
            wait_until("the reader sees the end", || State::read(&third).is_ok_and(|seen| seen == state));
            drop(ends);
            looks.join().unwrap()
        });
        println!("{}: {looks} looks of the reader", store.url);
        assert!(looks > 0, "the reader has never seen a whole tree");
        scratch.umount(&third);
        reader.wait().expect(0, &[]);
        assert_eq!(store.left(), Vec::<String>::new());
    }
}

/// Ends the watch also when a fight fails.
struct EndsWatch<'a>(&'a AtomicBool);

impl Drop for EndsWatch<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
