//! The cgroup of a pod.
//!
//! kubelet names it by the pod's uid ([`slackwater_control::pod_cgroup`]), below a cgroup for all pods and, except for guaranteed
//! pods, one for the class. All of that may lie deeper, for example in the container that is a node of kind. So the
//! hierarchy is searched for the last name, which no other cgroup has.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;

use slackwater_control::pod_cgroup::pod_uid_of;
use slackwater_host::cgroup::{Hierarchy, Layout};

/// Maximum number of cgroups that are looked at: far more than a node has.
const CGROUPS_MAX: usize = 1 << 17;

/// The path of the cgroup of the pod `uid`, as in `/proc/PID/cgroup`.
///
/// # Blocking
/// Until the cgroups have been listed: a few milliseconds for a thousand.
pub(crate) fn find(uid: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_in(&Layout::parse(&mounts), uid)
}

/// The cgroup of the pod `uid` in `layout`. In version 1, tenants are cgroups of the memory controller.
fn find_in(layout: &Layout, uid: &str) -> Option<PathBuf> {
    layout.memory.iter().chain(&layout.unified).find_map(|hierarchy| search(hierarchy, uid))
}

/// The cgroup of the pod `uid` in a hierarchy: the one nearest to the root.
fn search(hierarchy: &Hierarchy, uid: &str) -> Option<PathBuf> {
    let mut above = VecDeque::from([PathBuf::new()]);
    for _ in 0..CGROUPS_MAX {
        let parent = above.pop_front()?;
        // A cgroup may be removed meanwhile.
        for entry in fs::read_dir(hierarchy.mountpoint.join(&parent)).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = parent.join(entry.file_name());
            if entry.file_name().to_str().and_then(pod_uid_of).is_some_and(|found| found == uid) {
                return Some(hierarchy.root.join(path));
            }
            above.push_back(path);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const UID: &str = "8c5b4a52-7d7b-4f0e-9f2a-0f5a3f6c1d2e";
    const ESCAPED: &str = "8c5b4a52_7d7b_4f0e_9f2a_0f5a3f6c1d2e";

    /// Directories in place of a hierarchy.
    struct Tree(PathBuf);

    impl Tree {
        fn new(test: &str, cgroups: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("slackwater-pod-cgroup-{test}-{}", std::process::id()));
            cgroups.iter().for_each(|cgroup| fs::create_dir_all(root.join(cgroup)).unwrap());
            Self(root)
        }

        fn mounted(&self, root: &str) -> Hierarchy {
            Hierarchy { mountpoint: self.0.clone(), root: root.into() }
        }

        fn find(&self, root: &str, uid: &str) -> Option<PathBuf> {
            let (v1, v2) = (Some(self.mounted(root)), Some(self.mounted(root)));
            let found = find_in(&Layout { unified: v2, memory: None }, uid);
            assert_eq!(find_in(&Layout { unified: None, memory: v1 }, uid), found);
            found
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_pod_of_each_class_is_found_with_each_driver_at_any_depth() {
        let systemd = |above: &str, class: &str| {
            let (root, dashed) = (format!("{above}kubepods"), if class.is_empty() { "" } else { "-" });
            let slices = if class.is_empty() { String::new() } else { format!("/{root}-{class}.slice") };
            format!("{root}.slice{slices}/{root}{dashed}{class}-pod{ESCAPED}.slice")
        };
        let cgroupfs = |class: &str| format!("kubepods/{class}/pod{UID}").replace("//", "/");
        let node = "system.slice/docker-4f1c.scope";
        let mut number = 0;
        for class in ["", "burstable", "besteffort"] {
            for cgroup in [
                systemd("", class),
                cgroupfs(class),
                format!("kubelet.slice/{}", systemd("kubelet-", class)),
                format!("kubelet/{}", cgroupfs(class)),
                format!("{node}/kubelet.slice/{}", systemd("kubelet-", class)),
                format!("docker/4f1c/kubelet/{}", cgroupfs(class)),
            ] {
                number += 1;
                let container = format!("{cgroup}/cri-containerd-77aa.scope");
                let other = format!("kubepods.slice/kubepods-pod{}.slice/x", ESCAPED.replace('8', "9"));
                let tree = Tree::new(&number.to_string(), &[&container, &other, "init.scope"]);
                assert_eq!(tree.find("/", UID), Some(Path::new("/").join(&cgroup)), "{cgroup}");
                assert_eq!(tree.find("/../..", UID), Some(Path::new("/../..").join(&cgroup)), "{cgroup}");
                assert_eq!(tree.find("/", &UID.replace('8', "7")), None);
            }
        }
    }

    #[test]
    fn text_that_is_no_uid_finds_nothing() {
        let tree = Tree::new("hostile", &["kubepods/pod", "kubepods/pod../x", "a-pod.slice"]);
        for uid in ["", "..", "../x", "a/b", &"a".repeat(65), "a b", "_"] {
            assert_eq!(tree.find("/", uid), None, "{uid:?}");
        }
    }
}
