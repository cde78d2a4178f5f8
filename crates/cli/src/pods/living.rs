//! The pods that have a cgroup.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use slackwater_fuse::tenants::Layout;

use super::cgroup::pod_uid_of;

/// Levels of cgroups that are searched. The kubelet of kind has its pods on the sixth.
const DEPTH_MAX: usize = 10;

/// The UIDs of all pods with a cgroup, in either version.
///
/// # Blocking
/// For the directories of all cgroups that are not below a pod.
pub(super) fn uids() -> HashSet<String> {
    // Without it, there are no tenants by cgroup either.
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Layout { unified, memory, .. } = Layout::parse(&mountinfo);
    let mut uids = HashSet::new();
    let roots = [unified, memory].into_iter().flatten().map(|hierarchy| (hierarchy.mountpoint, 0));
    let mut left: Vec<(PathBuf, usize)> = roots.collect();
    while let Some((directory, depth)) = left.pop() {
        // Cgroups come and go meanwhile.
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            match entry.file_name().to_str().and_then(pod_uid_of) {
                Some(uid) => drop(uids.insert(uid)),
                None if depth < DEPTH_MAX => left.push((entry.path(), depth + 1)),
                None => {}
            }
        }
    }
    uids
}
