//! The mounts of this user: one file per mount, in a private directory. A mount process has a socket beside its file;
//! the volumes of a daemon name the daemon's socket.
//!
//! # Invariants
//! Y1. The directory belongs to this user and is closed to all others. Its files were written by processes of this
//!     user.
//! Y2. The process that an entry names holds a lock (`flock`) on it, from before the entry has its name until the
//!     process is gone. So an entry that can be locked belongs to a dead process, whatever process has its pid now.
//! Y3. The entry of a process that ended in order is empty: it was emptied before it was removed. A process that has it
//!     open can tell this end from a death.
//! Y4. A process that checks for conflicts and then adds an entry holds [`Guard`] during both.
//! Y5. When another process takes a kept mount over, it changes the entry in place, by one write that does not shorten
//!     it. So the lock stays, and a reader sees the old entry or the new one.
//!
//! The entry of a dead process stays as long as its arena: it says to which source that data belongs.

mod entry;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use slackwater_control::client::is_cut_off;
use slackwater_control::exit::Failure;
use slackwater_control::os::private_dir;
use slackwater_host::Printable as _;

use crate::os::killed_process;
use crate::source::unsynced_mark::UnsyncedMark;

use self::entry::ENTRY_VERSION;
pub(crate) use self::entry::Entry;

/// A longer entry is not ours.
const ENTRY_BYTES_MAX: u64 = 1 << 20;
/// How long a killed process may take to end once nothing holds it up.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long the lock of a dead process may remain while another process closes its descriptors.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(5);

/// An entry as found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) is_alive: bool,
    file: File,
    path: PathBuf,
}

impl Found {
    /// Whether the process is alive now.
    pub(crate) fn is_still_alive(&self) -> bool {
        is_locked(&self.file)
    }

    /// Whether a request that the process has not answered will be answered by another one, which takes the mount over.
    pub(crate) fn is_answered_by_successor(&self, error: &io::Error) -> bool {
        is_cut_off(error) && self.entry.keeper.is_some() && self.is_still_alive()
    }

    /// Whether the keeper of the mount is alive.
    fn is_kept(&self) -> bool {
        self.entry.keeper.is_some_and(|keeper| !killed_process::is_gone(keeper))
    }

    /// Whether a daemon that is kept writes back what the dead process left.
    pub(crate) fn is_left_to_daemon(&self) -> bool {
        self.entry.daemon.is_some() && self.is_kept()
    }

    /// Whether the process was killed and cannot end, and a keeper waits for that.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_kept() && killed_process::is_killed(self.entry.pid)
    }

    /// Whether the process has released everything, so that nothing is left (Y3).
    pub(crate) fn has_ended_in_order(&self) -> bool {
        self.file.metadata().is_ok_and(|status| status.len() == 0)
    }

    /// Removes the entry of a dead process of which nothing is left any more, as the process itself does (Y3).
    pub(crate) fn end(&self) {
        // If it fails, the end looks like a death that left nothing.
        let _ = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.set_len(0));
        self.remove();
    }

    /// Removes what a dead process left.
    pub(crate) fn remove(&self) {
        debug_assert!(!self.is_alive, "Y2");
        remove_files(&self.path);
    }

    /// The socket of the process.
    pub(crate) fn socket(&self) -> PathBuf {
        self.entry.daemon.clone().unwrap_or_else(|| self.path.with_extension("sock"))
    }
}

/// The directory of all entries.
#[derive(Clone, Debug)]
pub(crate) struct Registry {
    dir: PathBuf,
    own: Own,
}

/// The entries of this process.
#[derive(Clone, Debug, Default)]
struct Own(Arc<Mutex<OwnEntries>>);

#[derive(Debug, Default)]
struct OwnEntries {
    /// Names of entries, each with its mount point.
    names: HashMap<OsString, PathBuf>,
    mountpoints: HashSet<PathBuf>,
}

impl Own {
    fn entries(&self) -> MutexGuard<'_, OwnEntries> {
        // A thread that panicked has changed all or nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock of the registry: while this exists, no other process adds an entry (Y4).
pub(crate) struct Guard {
    _lock: File,
}

/// An entry of this process. Dropping it removes the entry.
pub(crate) struct Registered {
    own: Own,
    path: PathBuf,
    /// The file of the entry, which has the lock of Y2.
    file: File,
    /// The entry of a predecessor: if this is dropped, it stays for the next process.
    is_inherited: bool,
}

impl Registered {
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.with_extension("sock")
    }

    /// The entry, whose lock is Y2.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes the entry of a predecessor one of this process, which removes it at the end.
    pub(crate) fn own(&mut self) {
        self.is_inherited = false;
    }

    /// Leaves the entry behind as a killed process does, without its lock: it says where the data is.
    #[cfg(test)]
    pub(crate) fn die(mut self) {
        self.is_inherited = true;
    }

    /// Leaves the entry behind, with its lock until this process ends.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    fn forget(&self) {
        if let Some(name) = self.path.file_name() {
            let mut own = self.own.entries();
            if let Some(mountpoint) = own.names.remove(name) {
                own.mountpoints.remove(&mountpoint);
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.is_inherited {
            // Y3. If it failed, the end would look like a death that left nothing in the arena.
            let _ = self.file.set_len(0);
            remove_files(&self.path);
        }
        self.forget();
    }
}

fn remove_files(entry: &Path) {
    // Files that do not exist count as removed.
    let _ = std::fs::remove_file(entry.with_extension("sock"));
    let log = entry.with_extension("log");
    if std::fs::metadata(&log).is_ok_and(|log| log.len() == 0) {
        // An empty log has nothing worth keeping.
        let _ = std::fs::remove_file(&log);
    }
    let _ = std::fs::remove_file(entry);
}

impl Registry {
    /// A registry in a directory that the test has created.
    #[cfg(test)]
    pub(crate) fn in_dir(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), own: Own::default() }
    }

    /// Opens the directory of this user, and creates it if it does not exist.
    pub(crate) fn open() -> Result<Self, Failure> {
        let dir = runtime_dir()?;
        let failed = |what: &str, error: &io::Error| {
            Failure::failed(format!("cannot {what} the runtime directory {}: {error}", dir.printable()))
                .advise("set SLACKWATER_RUNTIME_DIR to a directory of your own")
        };
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", &error)),
            _ => {}
        }
        if !private_dir::closed(&dir) {
            let what = format!("the runtime directory {} must be a directory of yours with mode 0700", dir.printable());
            return Err(Failure::failed(what).advise("set SLACKWATER_RUNTIME_DIR to one that is"));
        }
        Ok(Self { dir, own: Own::default() })
    }

    /// The default socket of a daemon.
    ///
    /// # Errors
    /// There is no runtime directory, and none can be created.
    pub(crate) fn default_socket() -> Result<PathBuf, Failure> {
        Ok(runtime_dir()?.join("daemon.sock"))
    }

    /// Y4.
    ///
    /// # Blocking
    /// While another mount starts.
    pub(crate) fn lock(&self) -> io::Result<Guard> {
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.dir.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(Guard { _lock: lock })
    }

    /// All entries, sorted by pid.
    pub(crate) fn entries(&self) -> Result<Vec<Found>, Failure> {
        self.read_all(|_| true)
    }

    /// All entries except those of this process: a daemon knows its own, of which there may be thousands.
    pub(crate) fn entries_of_others(&self) -> Result<Vec<Found>, Failure> {
        let own = self.own.entries();
        self.read_all(|name| !own.names.contains_key(name))
    }

    /// Whether an entry of this process is mounted there, or will be.
    pub(crate) fn is_own_mountpoint(&self, mountpoint: &Path) -> bool {
        self.own.entries().mountpoints.contains(mountpoint)
    }

    fn read_all(&self, is_wanted: impl Fn(&OsStr) -> bool) -> Result<Vec<Found>, Failure> {
        let failed = |error: io::Error| Failure::failed(format!("cannot read the list of mounts: {error}"));
        let mut found = Vec::new();
        for file in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = file.map_err(failed)?.file_name();
            if name.as_bytes().ends_with(b".json") && is_wanted(&name) {
                found.extend(read(self.dir.join(name)));
            }
        }
        found.sort_by_cached_key(|found| (found.entry.pid, found.entry.volume.clone()));
        end_killed_processes(&mut found);
        Ok(found)
    }

    /// Adds an entry of this process.
    pub(crate) fn register(&self, _guard: &Guard, entry: &Entry) -> io::Result<Registered> {
        let name = entry.file_name();
        let path = self.dir.join(&name);
        if File::open(&path).is_ok_and(|earlier| is_locked(&earlier)) {
            return Err(io::Error::other(format!("{} belongs to another mount", path.printable())));
        }
        remove_files(&path); // of an earlier process with this number
        let unnamed = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unnamed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(entry)?)?;
        std::fs::rename(&unnamed, &path)?;
        Ok(self.registered(entry, path, file, false))
    }

    /// The entry of a predecessor, whose lock `file` has, with this process in it. Until [`Registered::own`], a failure
    /// leaves it to the next process.
    pub(crate) fn inherit(&self, entry: &Entry, file: OwnedFd) -> io::Result<Registered> {
        let file = File::from(file);
        // In place, because the lock belongs to this file (Y5).
        let mut text = serde_json::to_vec(entry)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        text.resize(text.len().max(len), b' ');
        file.write_all_at(&text, 0)?;
        Ok(self.registered(entry, self.dir.join(entry.file_name()), file, true))
    }

    fn registered(&self, entry: &Entry, path: PathBuf, file: File, is_inherited: bool) -> Registered {
        let mut own = self.own.entries();
        own.names.insert(entry.file_name().into(), entry.mountpoint.clone());
        own.mountpoints.insert(entry.mountpoint.clone());
        drop(own);
        Registered { own: self.own.clone(), path, file, is_inherited }
    }

    /// Marks a source through which a dead process may have made changes that are not durable.
    pub(crate) fn mark_unsynced(&self, identity: &str) -> io::Result<()> {
        UnsyncedMark::make(&self.dir, identity).map(drop)
    }

    /// The lock file of the daemon whose base name is `name`.
    pub(crate) fn lock_of(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.lock"))
    }

    /// The file with the names of pods, of the daemon whose base name is `name`.
    pub(crate) fn pods_of(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pods"))
    }

    /// The log file of a mount in the background.
    pub(crate) fn log_file(&self, pid: u32) -> PathBuf {
        self.dir.join(format!("{pid}.log"))
    }
}

/// Ends killed processes that cannot end without help; their entries then count as dead.
fn end_killed_processes(found: &mut [Found]) {
    for of_one in found.chunk_by_mut(|one, other| one.entry.pid == other.entry.pid) {
        // The connection of a kept mount serves again soon.
        if of_one.iter().all(|found| !found.is_alive || found.is_kept()) {
            continue;
        }
        let pid = of_one[0].entry.pid;
        let within = match killed_process::abort_connections_of(pid) {
            true => ENDS_WITHIN,
            false if killed_process::is_gone(pid) => CLOSES_WITHIN,
            false => continue,
        };
        let start = Instant::now();
        for found in of_one.iter_mut().filter(|found| found.is_alive) {
            while found.is_still_alive() && start.elapsed() < within {
                thread::sleep(LOOK);
            }
            found.is_alive = found.is_still_alive();
        }
    }
}

/// A file that vanishes or is not an entry is skipped.
fn read(path: PathBuf) -> Option<Found> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(&path, flags, Mode::empty()).ok()?);
    let status = file.metadata().ok()?;
    if !status.is_file() || status.len() > ENTRY_BYTES_MAX {
        return None;
    }
    // The lock is checked first: a process that ends in between leaves a complete entry and counts as alive for a
    // moment.
    let is_alive = is_locked(&file);
    // Y5: a change lasts for less than this.
    let entry: Entry = parse(&file).or_else(|| {
        thread::sleep(LOOK);
        parse(&file)
    })?;
    (entry.version == ENTRY_VERSION).then_some(Found { entry, is_alive, file, path })
}

fn parse(mut file: &File) -> Option<Entry> {
    file.rewind().ok()?;
    serde_json::from_reader(io::BufReader::new(file)).ok()
}

/// Y2.
fn is_locked(file: &File) -> bool {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => flock(file, FlockOperation::Unlock).is_err(),
        Err(errno) => errno == Errno::WOULDBLOCK,
    }
}

/// The directory of the registry: `SLACKWATER_RUNTIME_DIR`; otherwise `/run/slackwater` for root and a private directory
/// for others.
pub(crate) fn runtime_dir() -> Result<PathBuf, Failure> {
    if let Some(dir) = std::env::var_os("SLACKWATER_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    if geteuid().is_root() {
        return Ok("/run/slackwater".into());
    }
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return Ok(Path::new(&dir).join("slackwater"));
    }
    private_dir::within(Path::new("/tmp")).map_err(|error| {
        Failure::failed(format!("cannot create a runtime directory in /tmp: {error}"))
            .advise("set SLACKWATER_RUNTIME_DIR to a directory of your own")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use slackwater_testkit::damage::{cases, damaged};

    #[test]
    fn entries_are_found_while_their_process_lives_and_known_to_be_dead_after() {
        let dir = std::env::temp_dir().join(format!("slackwater-registry-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let registry = Registry::in_dir(&dir);
        let entry = Entry::sample(&dir);
        let registered = registry.register(&registry.lock().unwrap(), &entry).unwrap();
        std::fs::write(dir.join("1.json"), "{ not an entry").unwrap();
        std::fs::write(dir.join("2.json"), serde_json::to_vec(&Entry { pid: 2, ..entry.clone() }).unwrap()).unwrap();

        assert_eq!(registry.entries_of_others().unwrap().len(), 1);
        let found = registry.entries().unwrap();
        let lives: Vec<_> = found.iter().map(|found| (found.entry.pid, found.is_alive)).collect();
        assert_eq!(lives, [(2, false), (entry.pid, true)]);
        assert_eq!(found[1].entry, entry);

        drop(registered);
        // A child that another test starts has the lock too, until it executes its program.
        let since = Instant::now();
        while found[1].is_still_alive() && since.elapsed() < Duration::from_secs(60) {
            thread::sleep(LOOK);
        }
        assert!(found[1].has_ended_in_order() && !found[1].is_still_alive());
        assert!(!found[0].has_ended_in_order());
        assert!(!found[0].is_still_alive());
        found[0].remove();
        assert!(registry.entries().unwrap().is_empty());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn a_damaged_entry_hides_no_other(bytes in damaged(vec![entry_text()])) {
            let dir = std::env::temp_dir().join(format!("slackwater-damaged-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("7.json"), &bytes).unwrap();
            std::fs::write(dir.join("8.json"), entry_text()).unwrap();
            let found = Registry::in_dir(&dir).entries().unwrap();
            std::fs::remove_dir_all(&dir).unwrap();
            prop_assert!(found.iter().any(|found| found.path.ends_with("8.json")));
            prop_assert!(found.iter().all(|found| found.entry.version == ENTRY_VERSION && !found.is_alive));
        }
    }

    fn entry_text() -> Vec<u8> {
        serde_json::to_vec(&Entry::sample(Path::new("/")).of_daemon("web".into(), "/run/s.sock".into())).unwrap()
    }
}
