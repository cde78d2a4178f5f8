//! Which cgroup hierarchies are mounted, and where.
//!
//! A host has the unified hierarchy, one hierarchy for each v1 controller, or both. A container sees a part of either:
//! the mount's root is then a cgroup and not `/`. Paths in `/proc/PID/cgroup` begin with that root, or with `/..` if
//! they are outside the reader's cgroup namespace.

use std::path::{Component, Path, PathBuf};

use crate::MountInfo;

/// The hierarchies that have the memory of processes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Layout {
    /// cgroup2, with or without controllers.
    pub unified: Option<Hierarchy>,
    /// The v1 hierarchy with the memory controller.
    pub memory: Option<Hierarchy>,
}

/// A mounted hierarchy, or part of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The cgroup mounted there; `/` for the whole hierarchy.
    pub root: PathBuf,
}

impl Layout {
    /// Parses `/proc/self/mountinfo`. Of several mounts of one hierarchy, takes the first that shows most of it.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Self {
        let mut layout = Self::default();
        for (kind, hierarchy) in Hierarchy::all(mountinfo) {
            let place = match kind {
                Some(Kind::Unified) => &mut layout.unified,
                Some(Kind::Memory) => &mut layout.memory,
                None => continue,
            };
            if place.as_ref().is_none_or(|known| known.breadth() < hierarchy.breadth()) {
                *place = Some(hierarchy);
            }
        }
        layout
    }

    /// The hierarchy of this kind.
    #[must_use]
    pub fn hierarchy(&self, kind: Kind) -> Option<&Hierarchy> {
        match kind {
            Kind::Unified => self.unified.as_ref(),
            Kind::Memory => self.memory.as_ref(),
        }
    }

    /// The hierarchies that are mounted.
    pub fn hierarchies(&self) -> impl Iterator<Item = &Hierarchy> {
        self.unified.iter().chain(&self.memory)
    }

    /// Whether the cgroup `path` exists in one of them.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.hierarchies().filter_map(|hierarchy| hierarchy.directory(path)).any(|directory| directory.is_dir())
    }
}

/// Kind of hierarchy.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// cgroup2: all controllers share one hierarchy.
    Unified,
    /// The v1 hierarchy with the memory controller.
    Memory,
}

impl Kind {
    /// The name of the file with the memory limit of a cgroup.
    #[must_use]
    pub fn limit_file(self) -> &'static str {
        match self {
            Self::Unified => "memory.max",
            Self::Memory => "memory.limit_in_bytes",
        }
    }
}

impl Hierarchy {
    /// All cgroup mounts in `/proc/self/mountinfo`; the kind is `None` for hierarchies without the memory controller.
    pub fn all(mountinfo: &str) -> impl Iterator<Item = (Option<Kind>, Self)> {
        MountInfo::all(mountinfo).filter_map(|mount| {
            let kind = match mount.kind.as_str() {
                "cgroup2" => Some(Kind::Unified),
                "cgroup" => mount.has_super_option("memory").then_some(Kind::Memory),
                _ => return None,
            };
            Some((kind, Self { mountpoint: mount.point, root: mount.root }))
        })
    }

    /// A root above the cgroup namespace shows more than the namespace's root, and that shows more than a cgroup.
    fn breadth(&self) -> usize {
        let above = self.root.components().filter(|part| *part == Component::ParentDir).count();
        if self.root == Path::new("/") { 1 } else { 2 * above }
    }

    /// The directory of the cgroup `path`, as in `/proc/PID/cgroup`. `None` if it is not below this mount.
    #[must_use]
    pub fn directory(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| self.mountpoint.join(below).components().collect())
    }

    /// The path of the cgroup at `directory`, whether it exists or not. `None` if that is not below the mount.
    #[must_use]
    pub fn path(&self, directory: &Path) -> Option<PathBuf> {
        let below = directory.strip_prefix(&self.mountpoint).ok()?;
        Some(self.root.join(below).components().collect())
    }

    /// The cgroups from `path` up to the mount's root.
    pub fn lineage<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Path> {
        path.ancestors().take_while(|ancestor| ancestor.starts_with(&self.root))
    }

    /// The top-level cgroup that contains `path`; for the root, the root itself.
    #[must_use]
    pub fn top_level<'a>(&'a self, path: &'a Path) -> &'a Path {
        self.lineage(path).take_while(|ancestor| *ancestor != self.root).last().unwrap_or(path)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2: &str = "\
23 30 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

    const V1: &str = "\
31 23 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:27 / /sys/fs/cgroup/systemd rw,relatime shared:10 - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:15 - cgroup cgroup rw,cpu,cpuacct
36 31 0:33 / /sys/fs/cgroup/memory rw,relatime shared:17 - cgroup cgroup rw,memory
";

    /// A virtual machine with the kernel's default settings.
    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    /// A container without a cgroup namespace.
    const BOUND: &str = "\
612 611 0:30 /system.slice/docker-4f1c.scope /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate
";

    /// Inside a cgroup namespace two levels down: the host's mounts, and one made in the namespace.
    const NAMESPACE: &str = "\
63 43 0:38 / /mnt/inside rw,relatime - cgroup2 none rw
57 47 0:38 /../.. /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
51 47 0:32 /../.. /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";

    fn at(mountpoint: &str, root: &str) -> Option<Hierarchy> {
        Some(Hierarchy { mountpoint: mountpoint.into(), root: root.into() })
    }

    #[test]
    fn every_layout_is_read_from_mountinfo() {
        let (unified, memory) = (at("/sys/fs/cgroup", "/"), at("/sys/fs/cgroup/memory", "/"));
        assert_eq!(Layout::parse(V2), Layout { unified, memory: None });
        assert_eq!(Layout::parse(V1), Layout { unified: None, memory: memory.clone() });
        assert_eq!(Layout::parse(HYBRID), Layout { unified: at("/sys/fs/cgroup/unified", "/"), memory });
        let nested = at("/sys/fs/cgroup", "/system.slice/docker-4f1c.scope");
        assert_eq!(Layout::parse(BOUND), Layout { unified: nested, memory: None });
        assert_eq!(Layout::parse("22 1 254:0 / / rw - ext4 /dev/vda rw\n"), Layout::default());
    }

    #[test]
    fn malformed_lines_are_ignored_and_escaped_names_are_decoded() {
        assert_eq!(Layout::parse("nonsense\n1 2 3 - \n4 5 6 / /x rw - cgroup2\n"), Layout::default());
        let blank = "9 1 0:9 /a\\040b /mnt/c\\134d rw - cgroup x rw,cpu,memory\n";
        assert_eq!(Layout::parse(blank).memory, at("/mnt/c\\d", "/a b"));
    }

    #[test]
    fn the_mount_that_shows_most_is_preferred() {
        let first = format!("{BOUND}{V2}");
        assert_eq!(Layout::parse(&first).unified, at("/sys/fs/cgroup", "/"));
        assert_eq!(Layout::parse(&format!("{V2}{BOUND}")), Layout::parse(&first));
        assert_eq!(Layout::parse(NAMESPACE).unified, at("/sys/fs/cgroup/unified", "/../.."));
        assert_eq!(Layout::parse(NAMESPACE).memory, at("/sys/fs/cgroup/memory", "/../.."));
    }

    #[test]
    fn a_directory_is_below_the_mount_or_none() {
        let whole = Layout::parse(V2).unified.unwrap();
        let directory = |hierarchy: &Hierarchy, path: &str| hierarchy.directory(Path::new(path));
        assert_eq!(directory(&whole, "/").unwrap().as_os_str(), "/sys/fs/cgroup");
        assert_eq!(directory(&whole, "/a/b").unwrap().as_os_str(), "/sys/fs/cgroup/a/b");
        assert_eq!(directory(&whole, "/../a"), None);
        assert_eq!(directory(&whole, "/a/../../etc"), None);
        let nested = Layout::parse(BOUND).unified.unwrap();
        assert_eq!(directory(&nested, "/system.slice/docker-4f1c.scope/x").unwrap().as_os_str(), "/sys/fs/cgroup/x");
        assert_eq!(directory(&nested, "/system.slice"), None);
        let outer = Layout::parse(NAMESPACE).unified.unwrap();
        let beside = "/sys/fs/cgroup/unified/user.slice";
        assert_eq!(directory(&outer, "/../../user.slice").unwrap().as_os_str(), beside);
        assert_eq!(directory(&outer, "/../../.."), None);
        assert_eq!(directory(&outer, "/own"), None, "the name of the namespace's root is unknown");
    }

    #[test]
    fn the_top_level_is_the_first_cgroup_below_the_mounts_root() {
        let whole = Layout::parse(V2).unified.unwrap();
        assert_eq!(whole.top_level(Path::new("/a/b/c")), Path::new("/a"));
        assert_eq!(whole.top_level(Path::new("/")), Path::new("/"));
        let nested = Layout::parse(BOUND).unified.unwrap();
        let container = "/system.slice/docker-4f1c.scope";
        assert_eq!(nested.top_level(&Path::new(container).join("x/y")), Path::new(container).join("x"));
        assert_eq!(nested.top_level(Path::new(container)), Path::new(container));
        assert_eq!(nested.lineage(&Path::new(container).join("x")).count(), 2);
    }
    proptest! {
        #[test]
        fn no_path_leads_out_of_the_mount(
            root in "/|(/[ab]){1,2}|(/\\.\\.){1,2}",
            path in "(/[ab]|/\\.\\.|/\\.|//|a){0,5}",
        ) {
            let mounted = Hierarchy { mountpoint: "/m".into(), root: root.clone().into() };
            if let Some(directory) = mounted.directory(Path::new(&path)) {
                let below = directory.strip_prefix("/m").unwrap();
                prop_assert!(below.components().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(Path::new(&root).join(below), Path::new(&path).components().collect::<PathBuf>());
            }
        }
    }
}
