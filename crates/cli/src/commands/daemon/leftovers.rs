//! Leftovers of a dead daemon: mounts where every operation fails, and an arena with unwritten data.
//!
//! The next daemon at the same socket takes over the arena. A volume with data in it gets that data when it is mounted
//! again. Data of volumes that are not in the configuration is written back at once, without a mount. Data that cannot
//! be written back stays in the arena, and the registry entry says to which source it belongs.
//!
//! # Invariants
//! L1. Each volume is written back by its own thread, beside everything else. A hung source delays only mounts of that
//!     source.
//! L2. Meanwhile no other mount of the source is allowed, and the arena is not removed: an identity is in
//!     `being_written_back` from before its survivors are taken until they are in the source or back in the arena.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slackwater::{Engine, SuperBlock};
use slackwater_arena::{Arena, Survivors};
use slackwater_control::errln;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::os::detach::detach;
use slackwater_control::os::mount_table::MountTable;
use slackwater_control::protocol::VolumeRef;
use slackwater_control::spec::VolumeSpec;
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::registry::{Entry, Found, Registry};
use crate::source::opened::{Opened, Opening};
use crate::volume::{arena_file, rescued};

/// The volumes in the arena, by identity.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    volumes: HashMap<String, LeftoverVolume>,
    /// L2.
    being_written_back: Mutex<HashMap<String, Entry>>,
    written_back: Condvar,
    /// Volumes that were written back, and those that could not be. Until they are mounted again, or their end was
    /// reported.
    ended: Mutex<HashMap<String, (Entry, bool)>>,
    /// Sources of volumes of which only a local log is left, until they are mounted again.
    logs: Mutex<HashMap<String, PathBuf>>,
}

#[derive(Debug)]
struct LeftoverVolume {
    /// `None` if the registry has lost it.
    source: Option<PathBuf>,
    nodes: HashSet<u64>,
    bytes: u64,
}

impl Leftovers {
    /// The data of the volumes of `entries` among `survivors`.
    pub(crate) fn of<'e>(survivors: &Survivors, entries: impl Iterator<Item = &'e Entry>) -> Self {
        let entries: Vec<_> = entries.collect();
        let mut volumes = HashMap::new();
        for survivor in &survivors.volumes {
            let identity = String::from_utf8_lossy(survivor.record.id.as_slice()).into_owned();
            let source = entries.iter().find(|entry| entry.identity == identity);
            let left = volumes.entry(identity).or_insert_with(|| LeftoverVolume {
                source: source.map(|entry| entry.source.name().to_path_buf()),
                nodes: HashSet::new(),
                bytes: 0,
            });
            left.nodes.extend(survivor.inodes.iter().map(|inode| inode.record.ino));
            left.bytes += arena_file::bytes_in(survivor);
        }
        volumes.retain(|_, left| !left.nodes.is_empty());
        Self { volumes, ..Self::default() }
    }

    fn bytes(&self) -> u64 {
        self.volumes.values().map(|left| left.bytes).sum()
    }

    /// The inode numbers of a volume's files that have data in the arena.
    pub(crate) fn nodes_of(&self, identity: &str) -> Option<&HashSet<u64>> {
        Some(&self.volumes.get(identity)?.nodes)
    }

    /// The source of an identity, for messages.
    pub(crate) fn source_of(&self, identity: &str) -> String {
        let source = self.volumes.get(identity).and_then(|left| left.source.as_ref());
        source.map_or_else(|| format!("volume {identity}"), |source| source.printable().to_string())
    }

    fn being_written_back(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // A thread that panicked has changed one entry or none.
        self.being_written_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, HashMap<String, (Entry, bool)>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a volume is written back that a dead daemon has unmounted. `None` if nothing was left of it at the
    /// start.
    ///
    /// # Errors
    /// `Deadline`; or `Left`, if its data cannot be written back.
    ///
    /// # Blocking
    /// For the source, at most for `within`.
    pub(crate) fn wait_for(&self, volume: &VolumeRef, within: Duration) -> Option<Result<(), Failure>> {
        let is_meant = |entry: &Entry| {
            let is_named = volume.name.is_some() && volume.name == entry.volume;
            is_named || volume.mountpoint.as_ref() == Some(&entry.mountpoint)
        };
        let is_left = |left: &mut HashMap<String, Entry>| left.values().any(is_meant);
        let waited = self.written_back.wait_timeout_while(self.being_written_back(), within, is_left);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            let what = "the deadline passed while the data that a dead daemon left is written back";
            return Some(Err(Failure::new(Reason::Deadline, what).advise("nothing is lost: the daemon continues")));
        }
        let mut ended = self.ended();
        let (identity, (entry, is_written)) = ended.iter().find(|(_, (entry, _))| is_meant(entry))?;
        if *is_written {
            let identity = identity.clone();
            ended.remove(&identity);
            return Some(Ok(()));
        }
        let (source, arena) = (entry.source.name().printable(), entry.arena.printable());
        let what = format!("{} is unmounted, but its data could not be written back", entry.mountpoint.printable());
        let advice = format!("the data is kept in {arena}: mount {source} again to write it back");
        Some(Err(Failure::new(Reason::Left, what).advise(advice)))
    }

    /// The sources whose data is being written back (L2), and those with a local log, as messages name them.
    pub(crate) fn sources_outside_the_arena(&self) -> BTreeSet<String> {
        let (on_their_way, logs) = (self.being_written_back(), self.logs());
        let on_their_way = on_their_way.values().map(|entry| entry.source.name());
        on_their_way.chain(logs.values().map(PathBuf::as_path)).map(|source| source.printable().to_string()).collect()
    }

    fn logs(&self) -> MutexGuard<'_, HashMap<String, PathBuf>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a volume has ended, or was not mounted, if changes are in its local log. Returns whether there are
    /// some.
    pub(crate) fn note_log(&self, entry: &Entry) -> bool {
        let has_log = entry.has_log();
        if has_log {
            self.logs().insert(entry.identity.clone(), entry.source.name().to_path_buf());
        }
        has_log
    }

    /// Notes that a volume is mounted, and has its log.
    pub(crate) fn has_mounted(&self, identity: &str) {
        self.logs().remove(identity);
        self.ended().remove(identity);
    }

    /// Whether data of a dead daemon is being written back (L2).
    pub(crate) fn is_writing_back(&self) -> bool {
        !self.being_written_back().is_empty()
    }

    /// Waits until the leftovers of a volume are in its source, or are known to stay in the arena (L2).
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn wait_until_written_back(&self, identity: &str) {
        let is_on_its_way = |being_written_back: &mut HashMap<String, Entry>| being_written_back.contains_key(identity);
        drop(self.written_back.wait_while(self.being_written_back(), is_on_its_way));
    }

    /// Reserves the entries of dead mounts whose sources `is_mounted_anyway` does not know. These sources cannot be
    /// mounted until [`Leftovers::write_back`] has returned for each of them. Entries of which nothing is left end.
    pub(crate) fn reserve(&self, dead: Vec<Found>, is_mounted_anyway: impl Fn(&Path) -> bool) -> Vec<Found> {
        let is_left = |found: &Found| self.volumes.contains_key(&found.entry.identity) || found.entry.has_log();
        let (mut reserved, ended): (Vec<_>, Vec<_>) = dead.into_iter().partition(is_left);
        ended.iter().for_each(Found::end);
        reserved.retain(|found| !is_mounted_anyway(found.entry.source.name()));
        let identify = |found: &Found| (found.entry.identity.clone(), found.entry.clone());
        self.being_written_back().extend(reserved.iter().map(identify));
        reserved
    }

    /// Writes back the data of one reserved entry, and brings the local log of an object volume to its store. `keeper`
    /// is that of this daemon, which may also have been that of the dead one.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn write_back(&self, engine: &Engine, found: &Found, keeper: Option<u32>) {
        let entry = &found.entry;
        let source = entry.source.name();
        let left = self.volumes.get(&entry.identity);
        let shown = left.map_or_else(|| "changes".to_owned(), |left| size::text(left.bytes));
        let outcome = written_back(engine, entry, left, keeper);
        self.ended().insert(entry.identity.clone(), (entry.clone(), outcome.is_ok()));
        match outcome {
            Ok(()) => {
                errln!("Wrote back {shown} of {}.", source.printable());
                found.end();
            }
            Err(error) => {
                errln!("Cannot write back {shown} of {}: {error}", source.printable());
                errln!("  The data is kept; mount the source again when the cause is gone.");
                self.note_log(entry);
            }
        }
        self.being_written_back().remove(&entry.identity);
        self.written_back.notify_all();
    }
}

fn written_back(
    engine: &Engine,
    entry: &Entry,
    left: Option<&LeftoverVolume>,
    keeper: Option<u32>,
) -> Result<(), String> {
    let say = |text: &str| tracing::info!("{text}");
    let opening = Opening::New { keeper, wait: false, say: &say };
    let opened = Opened::new(entry, &VolumeSpec::default(), left.is_some(), opening);
    let opened = opened.map_err(|failure| failure.to_string())?;
    let written = || -> Result<(), String> {
        let Some(left) = left else { return Ok(()) };
        let backend = opened.backend(Some(&left.nodes)).map_err(|error| error.to_string())?;
        let print = |volume: &Arc<SuperBlock>| rescued::print_all(&volume.rescued(), entry.source.name());
        arena_file::write_back_volume(engine, &entry.identity, backend, print).map(drop)
    };
    // If data is left, so is the claim: another writer would make the data older than the volume.
    written()?;
    opened.clone().close(false).map_err(|failure| failure.to_string())
}

/// The registry entries of the dead daemons that used this arena.
///
/// # Errors
/// The registry cannot be read.
pub(crate) fn of_dead(registry: &Registry, arena: &Path) -> Result<Vec<Found>, Failure> {
    let mut dead = registry.entries_of_others()?;
    dead.retain(|found| !found.is_alive && found.entry.arena == arena);
    Ok(dead)
}

/// Detaches the dead mounts of daemons. Some may be on volumes of this daemon, which have to be served by then.
pub(crate) fn free_mount_points(dead: &[Found]) {
    let mounts = MountTable::now();
    for found in dead {
        let mountpoint = &found.entry.mountpoint;
        if !mounts.has_slackwater_at(mountpoint) {
            continue;
        }
        match detach(mountpoint) {
            Ok(()) => {
                errln!(
                    "Freed {}, the mount point of a daemon that died (pid {}).",
                    mountpoint.printable(),
                    found.entry.pid
                )
            }
            Err(error) => {
                errln!("Cannot free {}, the mount point of a daemon that died: {error}", mountpoint.printable())
            }
        }
    }
}

/// Takes over the arena of a dead daemon if it has data. `None`: there is no data, and the file is removed. Records
/// that are damaged are printed.
///
/// # Errors
/// The file is not ours or in use; its header is damaged, or records are and the file cannot be kept.
pub(crate) fn take_arena(path: &Path, dead: &[Found]) -> Result<Option<(Arc<Arena>, Survivors, Leftovers)>, Failure> {
    let Some((arena, survivors)) = arena_file::open(path)? else { return Ok(None) };
    let left = Leftovers::of(&survivors, dead.iter().map(|found| &found.entry));
    if left.volumes.is_empty() {
        drop((arena, survivors));
        arena_file::remove(path)?;
        // The entry of an object volume with a log says where that belongs.
        dead.iter().filter(|found| !found.entry.has_log()).for_each(Found::remove);
        return Ok(None);
    }
    let (bytes, volumes) = (size::text(left.bytes()), left.volumes.len());
    errln!("A daemon died with {bytes} of {volumes} volumes unwritten: taking over its cache.");
    Ok(Some((arena, survivors, left)))
}
