//! A program that changes files in every possible way, and reports each change before and after.
//!
//! It is a separate process: a store into a mapping of a dead mount raises a signal, and another user's write needs
//! another user.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use super::log::Event;
use super::model::{FILE_BYTES, SLOTS, saved_bytes, slot_at, slot_bytes};
use super::{Random, mode_file, saved_file, slot_file};
use crate::rig::Process;
use crate::sys::Mapped;

/// The orders of a worker, as JSON.
const VARIABLE: &str = "SLACKWATER_CRASH_MIX_WORKER";
const NOBODY: u32 = 65534;
const MODES: [u32; 6] = [0o4757, 0o6777, 0o2777, 0o6767, 0o757, 0o777];

/// See the [module documentation](self).
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// The mount point, and the part of the outermost source that it shows.
    pub(crate) mountpoint: PathBuf,
    pub(crate) shown: String,
    /// Directories, relative to the outermost source.
    pub(crate) dirs: Vec<String>,
    /// 0 or 1.
    pub(crate) worker: u64,
    pub(crate) next_number: u64,
    pub(crate) seed: u64,
    /// After this time, only its age makes a store durable.
    pub(crate) quiet_after_ms: Option<u64>,
}

impl Orders {
    /// Starts the worker. It ends at the first error.
    pub(crate) fn start(&self) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash_mix::worker::worker", "--nocapture"]);
        command.env(VARIABLE, serde_json::to_string(self).unwrap());
        Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
    }
}

/// The worker process, not a test.
#[test]
fn worker() {
    let Ok(orders) = std::env::var(VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let mut worker = Worker {
        random: Random::new(orders.seed),
        number: orders.next_number,
        start: Instant::now(),
        maps: orders.dirs.iter().map(|_| None).collect(),
        orders,
    };
    while worker.step().is_ok() {}
}

struct Worker {
    orders: Orders,
    random: Random,
    number: u64,
    start: Instant,
    /// Per directory: a file of slots that stays open, and its mapping.
    maps: Vec<Option<(File, Option<Mapped>)>>,
}

impl Worker {
    fn step(&mut self) -> io::Result<()> {
        let dir = self.random.below(self.orders.dirs.len() as u64) as usize;
        match self.random.below(12) {
            0..=2 => self.write_slot(dir),
            3..=5 => self.store(dir),
            6 => self.sync_slots(dir),
            7..=8 => self.write_as_nobody(dir),
            9 => self.change_mode(dir),
            10 => self.replace(dir),
            _ => self.write_anew_or_remove(dir),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        let below = Path::new(file).strip_prefix(&self.orders.shown).unwrap();
        self.orders.mountpoint.join(below)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number * 2 + self.orders.worker
    }

    fn own_slot(&mut self) -> u64 {
        self.random.below(SLOTS / 2) * 2 + self.orders.worker
    }

    fn is_quiet(&self) -> bool {
        self.orders.quiet_after_ms.is_some_and(|ms| self.start.elapsed() > Duration::from_millis(ms))
    }

    /// Writes into the file that both workers and their mappings use, or into this worker's file with a mode.
    fn write_slot(&mut self, dir: usize) -> io::Result<()> {
        let dir = &self.orders.dirs[dir];
        let file = if self.random.below(2) == 0 { slot_file(dir) } else { mode_file(dir, self.orders.worker) };
        let (slot, number) = (self.own_slot(), self.next_number());
        let how = self.random.below(if self.is_quiet() { 1 } else { 4 });
        Event::Slot { file: file.clone(), slot, number, by_nobody: false }.report();
        let flags = if how == 1 { libc::O_DSYNC } else { 0 };
        let opened = OpenOptions::new().write(true).custom_flags(flags).open(self.path(&file))?;
        opened.write_all_at(&slot_bytes(number), slot_at(slot) as u64)?;
        Event::Done.report();
        if how == 2 {
            Event::Sync { file, call: "fsync".to_owned() }.report();
            opened.sync_all()?;
            Event::Done.report();
        }
        Ok(())
    }

    /// Stores through a mapping; msync, munmap or the age of the store acknowledges it.
    fn store(&mut self, dir: usize) -> io::Result<()> {
        let (slot, number, how) = (self.own_slot(), self.next_number(), self.random.below(4));
        let file = slot_file(&self.orders.dirs[dir]);
        let is_quiet = self.is_quiet();
        let is_first = self.maps[dir].is_none();
        if is_first {
            let opened = OpenOptions::new().read(true).write(true).open(self.path(&file))?;
            self.maps[dir] = Some((opened, None));
        }
        let (opened, mapped) = self.maps[dir].as_mut().unwrap();
        let mut map = match mapped.take() {
            Some(map) => map,
            None => Mapped::try_new(opened)?,
        };
        Event::Slot { file: file.clone(), slot, number, by_nobody: false }.report();
        map.store_at(slot_at(slot), &slot_bytes(number))?;
        Event::Stored(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64).report();
        // The age counts from the first page that the kernel hands over of an open file.
        match how {
            0 if !is_quiet || is_first => {
                Event::Sync { file, call: "msync".to_owned() }.report();
                map.sync()?;
                Event::Done.report();
            }
            1 if !is_quiet => {
                Event::Sync { file, call: "munmap".to_owned() }.report();
                map.unmap()?;
                // The result is ignored: a process that answers at this point has received the store.
                let path = self.path(&slot_file(&self.orders.dirs[dir]));
                File::open(path)?;
                Event::Done.report();
                return Ok(());
            }
            _ => {}
        }
        *mapped = Some(map);
        Ok(())
    }

    fn sync_slots(&mut self, dir: usize) -> io::Result<()> {
        if self.is_quiet() {
            return Ok(());
        }
        let file = slot_file(&self.orders.dirs[dir]);
        let opened = OpenOptions::new().write(true).open(self.path(&file))?;
        Event::Sync { file, call: "fsync".to_owned() }.report();
        if self.random.below(2) == 0 {
            opened.sync_all()?
        } else {
            opened.sync_data()?
        }
        Event::Done.report();
        Ok(())
    }

    /// Another user's write or truncation, which clears set-user-ID.
    fn write_as_nobody(&mut self, dir: usize) -> io::Result<()> {
        let file = mode_file(&self.orders.dirs[dir], self.orders.worker);
        let path = self.path(&file);
        if self.random.below(4) == 0 {
            Event::Cut { file }.report();
            as_nobody(|| OpenOptions::new().write(true).open(&path)?.set_len(FILE_BYTES as u64))?;
        } else {
            let (slot, number) = (self.random.below(SLOTS), self.next_number());
            Event::Slot { file, slot, number, by_nobody: true }.report();
            as_nobody(|| {
                let opened = OpenOptions::new().write(true).open(&path)?;
                opened.write_all_at(&slot_bytes(number), slot_at(slot) as u64)
            })?;
        }
        Event::Done.report();
        Ok(())
    }

    fn change_mode(&mut self, dir: usize) -> io::Result<()> {
        let file = mode_file(&self.orders.dirs[dir], self.orders.worker);
        let mode = MODES[self.random.below(MODES.len() as u64) as usize];
        let number = self.next_number();
        Event::Mode { file: file.clone(), mode, number }.report();
        fs::set_permissions(self.path(&file), Permissions::from_mode(mode))?;
        Event::Done.report();
        Ok(())
    }

    /// Renames a new file over the old one. Its bytes are written, or stored in a mapping that still exists at the
    /// rename.
    fn replace(&mut self, dir: usize) -> io::Result<()> {
        let (file, number) = (saved_file(&self.orders.dirs[dir], self.orders.worker), self.next_number());
        let (path, how) = (self.path(&file), self.random.below(3));
        let (temporary, bytes) = (path.with_extension("new"), saved_bytes(number));
        let mut options = OpenOptions::new();
        let mut opened = options.read(true).write(true).create(true).truncate(true).open(&temporary)?;
        // Only a rename over an existing file writes the stores back.
        let by_store = how == 0 && path.exists();
        let mut map = None;
        if by_store {
            opened.set_len(bytes.len() as u64)?;
            map.insert(Mapped::try_new(&opened)?).store_at(0, &bytes)?;
        } else {
            bytes.chunks(50_000).try_for_each(|part| opened.write_all(part))?;
        }
        if how == 1 {
            opened.sync_all()?;
        }
        Event::Replace { file, number, by_store }.report();
        fs::rename(&temporary, &path)?;
        Event::Done.report();
        Ok(())
    }

    fn write_anew_or_remove(&mut self, dir: usize) -> io::Result<()> {
        let file = saved_file(&self.orders.dirs[dir], self.orders.worker);
        let path = self.path(&file);
        if self.random.below(4) == 0 && path.exists() {
            Event::Remove { file }.report();
            fs::remove_file(path)?;
        } else {
            let number = self.next_number();
            Event::Anew { file, number }.report();
            let mut opened = File::create(path)?;
            saved_bytes(number).chunks(50_000).try_for_each(|part| opened.write_all(part))?;
        }
        Event::Done.report();
        Ok(())
    }
}

/// Runs `work` as another user, on its own thread.
fn as_nobody(work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    let act = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}
