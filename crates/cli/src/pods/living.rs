//! The pods that have a cgroup.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use slackwater_control::pod_cgroup::pod_uid_of;
use slackwater_host::cgroup::Layout;

/// Levels of cgroups that are searched. The kubelet of kind has its pods on the sixth.
const DEPTH_MAX: usize = 10;

/// The cgroups of all pods, in either version, by the UID of the pod. Paths are as in `/proc/PID/cgroup`.
///
/// # Blocking
/// For the directories of all cgroups that are not below a pod.
pub(super) fn cgroups() -> BTreeMap<String, BTreeSet<PathBuf>> {
    // Without it, there are no tenants by cgroup either.
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Layout { unified, memory } = Layout::parse(&mountinfo);
    let mut pods = BTreeMap::<_, BTreeSet<_>>::new();
    let roots = [unified, memory].into_iter().flatten().map(|hierarchy| (hierarchy.mountpoint, hierarchy.root, 0));
    let mut left: Vec<(PathBuf, PathBuf, usize)> = roots.collect();
    while let Some((directory, path, depth)) = left.pop() {
        // Cgroups come and go meanwhile.
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            match name.to_str().and_then(pod_uid_of) {
                Some(uid) => drop(pods.entry(uid).or_default().insert(path.join(name))),
                None if depth < DEPTH_MAX => left.push((entry.path(), path.join(name), depth + 1)),
                None => {}
            }
        }
    }
    pods
}
