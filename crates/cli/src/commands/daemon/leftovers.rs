//! What a daemon that died has left: mounts where everything fails, and an arena with data that is not in the sources yet.
//!
//! The next daemon at the same socket takes the arena over as it is. A volume of which it has data gets it when it is mounted
//! again; those that the configuration does not name are brought in at once and not mounted. What cannot be brought in
//! stays in the arena, and the entry in the registry says whose it is.
//!
//! # Invariants
//! L1. Each volume is brought in by a thread of its own, beside everything else: a source that hangs keeps nobody waiting
//!     but who mounts that source.
//! L2. While it is brought in nobody else mounts its source, and the arena is not removed: an identity is in `bringing_in` from
//!     before its survivors are taken until they are in the source or in the arena again.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use slackwater::{Engine, UmountOptions};
use slackwater_arena::{Arena, Survivors};
use slackwater_fuse::Printable as _;
use slackwater_size as size;

use crate::exit::Failure;
use crate::os::detach::detach;
use crate::os::mount_table::MountTable;
use crate::output::terminal::errln;
use crate::registry::{Found, Registry};
use crate::volume::{arena_file, node_search, rescued};

/// Who the volumes in the arena were, by identity.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    volumes: HashMap<String, LeftoverVolume>,
    /// L2.
    bringing_in: Mutex<HashSet<String>>,
    brought_in: Condvar,
}

#[derive(Debug)]
struct LeftoverVolume {
    /// Unless the registry has lost it.
    source: Option<PathBuf>,
    nodes: HashSet<u64>,
    bytes: u64,
}

impl Leftovers {
    fn of(survivors: &Survivors, dead: &[Found]) -> Self {
        let mut volumes = HashMap::new();
        for survivor in &survivors.volumes {
            let identity = String::from_utf8_lossy(survivor.record.id.as_slice()).into_owned();
            let source = dead.iter().find(|found| found.entry.identity == identity);
            let left = volumes.entry(identity).or_insert_with(|| LeftoverVolume {
                source: source.map(|found| found.entry.source.path.clone()),
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

    /// The numbers of a volume's files that have data in the arena.
    pub(crate) fn nodes_of(&self, identity: &str) -> Option<&HashSet<u64>> {
        Some(&self.volumes.get(identity)?.nodes)
    }

    /// Whose an identity is, for people.
    pub(crate) fn source_of(&self, identity: &str) -> String {
        let source = self.volumes.get(identity).and_then(|left| left.source.as_ref());
        source.map_or_else(|| format!("volume {identity}"), |source| source.printable().to_string())
    }

    fn bringing_in(&self) -> MutexGuard<'_, HashSet<String>> {
        // A thread that panicked has changed one or none.
        self.bringing_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something of a dead daemon's is on its way to a source (L2).
    pub(crate) fn is_being_brought_in(&self) -> bool {
        !self.bringing_in().is_empty()
    }

    /// Waits until what is left of a volume is in its source, or is known to stay in the arena (L2).
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn wait_until_brought_in(&self, identity: &str) {
        let is_on_its_way = |bringing_in: &mut HashSet<String>| bringing_in.contains(identity);
        drop(self.brought_in.wait_while(self.bringing_in(), is_on_its_way));
    }

    /// The entries of the dead whose data belongs to sources that `is_mounted_anyway` does not know. Nobody mounts these until
    /// [`Left::bring_in`] is done with each of them.
    pub(crate) fn reserve(&self, dead: Vec<Found>, is_mounted_anyway: impl Fn(&Path) -> bool) -> Vec<Found> {
        let is_to_come = |found: &Found| {
            self.volumes.contains_key(&found.entry.identity) && !is_mounted_anyway(&found.entry.source.path)
        };
        let reserved: Vec<_> = dead.into_iter().filter(is_to_come).collect();
        self.bringing_in().extend(reserved.iter().map(|found| found.entry.identity.clone()));
        reserved
    }

    /// Brings in what belongs to the source of one that was reserved.
    ///
    /// # Blocking
    /// For the source.
    pub(crate) fn bring_in(&self, engine: &Engine, found: &Found) {
        let entry = &found.entry;
        let source = &entry.source.path;
        let Some(left) = self.volumes.get(&entry.identity) else { return };
        let brought = || -> Result<(), String> {
            let backend = node_search::open_for(source, Some(&left.nodes)).map_err(|error| error.to_string())?;
            let volume = engine.mount(&entry.identity, Arc::new(backend)).map_err(|error| error.to_string())?;
            rescued::say_all(&volume.rescued(), source);
            volume.umount(UmountOptions::default()).map_err(|error| error.to_string())
        };
        match brought() {
            Ok(()) => {
                errln!("Wrote back {} of {}.", size::text(left.bytes), source.printable());
                found.remove();
            }
            Err(error) => {
                errln!("Cannot write back {} of {}: {error}", size::text(left.bytes), source.printable());
                errln!("  The data is kept in the arena; mount the source again when the cause is gone.");
            }
        }
        self.bringing_in().remove(&entry.identity);
        self.brought_in.notify_all();
    }
}

/// The entries of dead daemons whose arena this is; where they had mounted, nothing is mounted any more.
///
/// # Errors
/// The registry cannot be read.
pub(crate) fn clean_up(registry: &Registry, arena: &Path) -> Result<Vec<Found>, Failure> {
    let mut dead = registry.entries_of_others()?;
    dead.retain(|found| !found.is_alive && found.entry.arena == arena);
    let mounts = MountTable::now();
    for found in &dead {
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
    Ok(dead)
}

/// Takes over the arena of a dead daemon if it has data. `None`: there is nothing, and no file any more.
///
/// # Errors
/// The file is none of ours, in use, or damaged.
pub(crate) fn take_arena(path: &Path, dead: &[Found]) -> Result<Option<(Arc<Arena>, Survivors, Leftovers)>, Failure> {
    let Some((arena, survivors)) = arena_file::open(path)? else { return Ok(None) };
    let left = Leftovers::of(&survivors, dead);
    if left.volumes.is_empty() {
        drop((arena, survivors));
        arena_file::remove(path)?;
        dead.iter().for_each(Found::remove);
        return Ok(None);
    }
    let (bytes, volumes) = (size::text(left.bytes()), left.volumes.len());
    errln!("A daemon died with {bytes} of {volumes} volumes unwritten: taking over its cache.");
    Ok(Some((arena, survivors, left)))
}
