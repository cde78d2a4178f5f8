//! Finding cgroups by their numbers, after the process that knew their paths has died.
//!
//! A hierarchy is walked from its root, the upper levels first, until the cgroup is found. The next search goes on where
//! the walk stopped. Reading a directory takes some 30 us; usually a tenant is at the top level.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use slackwater::Tick;

use slackwater_host::cgroup::{Hierarchy, Kind};

/// A walk that is older does not know new cgroups.
const FRESH: Duration = Duration::from_secs(2);
/// Cgroups after which a walk ends, so that a takeover does not wait for it.
const CGROUPS_MAX: usize = 4096;

/// A walk through a hierarchy.
pub(super) struct CgroupWalk {
    kind: Kind,
    begun: Tick,
    /// Directories by number.
    found: HashMap<u64, PathBuf>,
    /// Directories that were not read yet.
    left: VecDeque<PathBuf>,
}

impl CgroupWalk {
    /// Begins a walk.
    pub(super) fn new(kind: Kind, hierarchy: &Hierarchy, now: Tick) -> Self {
        let root = hierarchy.mountpoint.clone();
        let number = fs::metadata(&root).map(|root| root.ino());
        let found = number.into_iter().map(|number| (number, root.clone())).collect();
        Self { kind, begun: now, found, left: VecDeque::from([root]) }
    }

    /// Whether a search in this hierarchy can go on with it.
    pub(super) fn is_usable(&self, kind: Kind, now: Tick) -> bool {
        self.kind == kind && now.since(self.begun) < FRESH
    }

    /// The directory of a cgroup. `None` if it does not exist, or is too far down.
    pub(super) fn directory_of(&mut self, number: u64) -> Option<PathBuf> {
        while !self.found.contains_key(&number) && self.found.len() < CGROUPS_MAX {
            let directory = self.left.pop_front()?;
            // A cgroup that has been removed meanwhile has none below it.
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.found.insert(entry.ino(), entry.path());
                    self.left.push_back(entry.path());
                }
            }
        }
        self.found.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The walk works on directories of any file system, which have numbers too.
    #[test]
    fn directories_are_found_at_every_level_and_removed_ones_are_not() {
        let root = std::env::temp_dir().join(format!("slackwater-walk-{}", std::process::id()));
        let deep = root.join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir(root.join("gone")).unwrap();
        fs::write(root.join("file"), b"").unwrap();
        let number = |path: &PathBuf| fs::metadata(path).unwrap().ino();
        let (gone, file) = (number(&root.join("gone")), number(&root.join("file")));
        fs::remove_dir(root.join("gone")).unwrap();
        let hierarchy = Hierarchy { mountpoint: root.clone(), root: "/".into() };
        let mut walk = CgroupWalk::new(Kind::Unified, &hierarchy, Tick::default());
        for path in [&deep, &root, &root.join("a"), &deep] {
            assert_eq!(walk.directory_of(number(path)).as_ref(), Some(path));
        }
        assert_eq!((walk.directory_of(gone), walk.directory_of(file)), (None, None));
        assert!(walk.is_usable(Kind::Unified, Tick::default()) && !walk.is_usable(Kind::Memory, Tick::default()));
        fs::remove_dir_all(&root).unwrap();
    }
}
