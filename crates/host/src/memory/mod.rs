//! The memory that this process may take: that of the machine, and the limits of its cgroups.
//!
//! Memory that is never given back, such as that of an arena, may cause an OOM kill at some later time, at the
//! allocation of another process. So its user compares its size with [`smallest_limit`] first. It may take the memory
//! that is available now and that its cgroups allow, except a part that is left for everything else.
//!
//! Cgroup mounts and our own path in them are looked up, not assumed: v1, v2 and both at once exist, and in a container
//! the path in `/proc/self/cgroup` may be the host's and not exist below the mount. Every level from our own cgroup up
//! to the mount is read; a level without the file has no limit.

use std::path::{Component, Path, PathBuf};

use crate::cgroup::{Hierarchy, Kind, Membership};

/// A limit and its origin.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// The size of the memory.
    pub bytes: u64,
    /// The file that sets the limit, and what of it counts.
    pub name: String,
}

/// The part of the memory of the machine, and of a cgroup, that is left for others: one in this many.
const REST: u64 = 16;

/// The limits that apply.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Scope {
    /// General memory, which is charged to our cgroup.
    Charged,
    /// All memory of the machine. Huge pages come from a pool of their own and are charged to no memory cgroup.
    Machine,
}

/// The smallest limit that applies; `None` if none can be read.
#[must_use]
pub fn smallest_limit(scope: Scope) -> Option<Limit> {
    smallest(scope, read_text)
}

fn smallest(scope: Scope, read: impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    let mut limits = Vec::from_iter(of_machine(&read));
    if scope == Scope::Charged {
        // Each with the total of which a part is left for others.
        let available = of_available(&read).map(|limit| (limits.first().map_or(0, |machine| machine.bytes), limit));
        let cgroups = of_cgroups(&read).into_iter().map(|limit| (limit.bytes, limit));
        for (whole, Limit { bytes, name }) in available.into_iter().chain(cgroups) {
            let bytes = bytes.saturating_sub(whole / REST);
            limits.push(Limit { bytes, name: format!("{name}, minus a part for everything else") });
        }
    }
    limits.into_iter().min_by_key(|limit| limit.bytes)
}

/// The memory that is available to this process, as far as it is known.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct MemoryLimits {
    /// The memory of the machine.
    pub machine_bytes: Option<u64>,
    /// The part of it that is free or can be freed at once.
    pub available_bytes: Option<u64>,
    /// The smallest limit of our cgroup and those above it; `None` without one.
    pub cgroup_bytes: Option<u64>,
}

/// Reads the limits of the machine and of our cgroups, of either version.
#[must_use]
pub fn memory_limits() -> MemoryLimits {
    let read = read_text;
    MemoryLimits {
        machine_bytes: of_machine(&read).map(|limit| limit.bytes),
        available_bytes: of_available(&read).map(|limit| limit.bytes),
        cgroup_bytes: of_cgroups(&read).into_iter().map(|limit| limit.bytes).min(),
    }
}

fn of_machine(read: &impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    of_meminfo("MemTotal", read)
}

fn of_available(read: &impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    of_meminfo("MemAvailable", read)
}

fn of_meminfo(field: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    let bytes = meminfo_bytes(&read(Path::new("/proc/meminfo"))?, field)?;
    Some(Limit { bytes, name: format!("{field} of /proc/meminfo") })
}

fn of_cgroups(read: &impl Fn(&Path) -> Option<String>) -> Vec<Limit> {
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let cgroups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_file = |file: PathBuf| {
        let bytes = limit_bytes(&read(&file)?)?;
        Some(Limit { bytes, name: file.display().to_string() })
    };
    limit_files(&mounts, &cgroups).into_iter().filter_map(of_file).collect()
}

/// The text of a file. A name in it that is not UTF-8 does not hide other lines.
fn read_text(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A field of `/proc/meminfo`.
fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `memory.max` or `memory.limit_in_bytes`; `None` if there is no limit.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The directories of our cgroup and of those above it, up to the mount, for each hierarchy that may have memory. In a
/// container the first ones need not exist.
#[must_use]
pub fn memory_cgroups() -> Vec<PathBuf> {
    let read = |path: &str| read_text(Path::new(path)).unwrap_or_default();
    let levels = levels(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    levels.into_iter().map(|(directory, _)| directory).collect()
}

/// The files that may limit us, from our own cgroup up to the mount, for each hierarchy that has memory.
fn limit_files(mounts: &str, cgroups: &str) -> Vec<PathBuf> {
    levels(mounts, cgroups).into_iter().map(|(directory, kind)| directory.join(kind.limit_file())).collect()
}

fn levels(mounts: &str, cgroups: &str) -> Vec<(PathBuf, Kind)> {
    let own = Membership::parse(cgroups.as_bytes());
    let mut found = Vec::new();
    for (kind, hierarchy) in Hierarchy::all(mounts) {
        let Some(kind) = kind else { continue };
        let Some(own) = own.of(kind) else { continue };
        // Outside our namespace's root, the path begins with "..": nothing below the mount belongs to us.
        let inside = own.components().filter(|part| matches!(part, Component::Normal(_)));
        let own = hierarchy.mountpoint.join(inside.collect::<PathBuf>());
        let levels = own.ancestors().take_while(|level| level.starts_with(&hierarchy.mountpoint));
        found.extend(levels.map(|level| (level.to_path_buf(), kind)));
    }
    found
}

#[cfg(test)]
mod tests;
