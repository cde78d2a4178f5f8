//! Cgroups with the names that kubelets and container runtimes give them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use slackwater_host::cgroup::Hierarchy;

use crate::cgroups::Cgroup;
use crate::rig::{Process, wait_until};

/// Cgroups of a pod, and of a container in it, below those of a kubelet. Removed when dropped.
pub(crate) struct Pod {
    /// The container's cgroup. It is the first field, because it is below the others.
    pub(crate) container: Cgroup,
    /// The path of the pod's cgroup, as in `/proc/PID/cgroup`.
    pub(crate) path: String,
    pub(crate) uid: String,
    pub(crate) container_id: String,
    _above: Above,
}

/// The cgroups above a container, outermost first.
pub(crate) struct Above(Vec<PathBuf>);

impl Drop for Above {
    fn drop(&mut self) {
        // Those that something else uses stay.
        self.0.iter().rev().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

/// Makes the cgroup at `path` and all above it.
pub(crate) fn made(hierarchy: &Hierarchy, path: &str) -> (Cgroup, Above) {
    let path = hierarchy.root.join(path);
    let directory = hierarchy.directory(&path).unwrap();
    let mut above: Vec<_> = directory.ancestors().skip(1).take_while(|it| *it != hierarchy.mountpoint).collect();
    above.reverse();
    wait_until("the cgroup is made", || {
        above.iter().for_each(|it| drop(fs::create_dir(it)));
        match fs::create_dir(&directory) {
            // Another test has removed one of those above meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            made => made.map(|()| true).unwrap(),
        }
    });
    let above = above.into_iter().map(Path::to_path_buf).collect();
    (Cgroup { directory, path: path.into_os_string().into_string().unwrap() }, Above(above))
}

/// A number that no other test of this machine has, in hexadecimal.
pub(crate) fn unique() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{:08x}{:04x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A UID for a pod.
pub(crate) fn unique_uid() -> String {
    let unique = unique();
    format!("{}-{}-4000-8000-0123456789ab", &unique[..8], &unique[8..])
}

impl Pod {
    /// `pattern` has the path of the container, with `UID`, `U_D` (with underscores) and `ID` for the ids.
    pub(crate) fn new(hierarchy: &Hierarchy, pattern: &str) -> Self {
        Self::with_uid(hierarchy, pattern, unique_uid())
    }

    /// Makes the cgroups as [`new`](Self::new) does, with the UID that the pod has elsewhere.
    pub(crate) fn with_uid(hierarchy: &Hierarchy, pattern: &str, uid: String) -> Self {
        let unique = unique();
        let container_id = format!("{unique}{}", "5e".repeat(26));
        let path = pattern.replace("UID", &uid).replace("U_D", &uid.replace('-', "_")).replace("ID", &container_id);
        let (container, above) = made(hierarchy, &path);
        let path = Path::new(&container.path).parent().unwrap().to_str().unwrap().to_owned();
        Self { container, path, uid, container_id, _above: above }
    }

    /// The directory of the pod's cgroup.
    pub(crate) fn directory(&self) -> &Path {
        self.container.directory.parent().unwrap()
    }
}

/// Lets a process of a cgroup write a file.
pub(crate) fn write(cgroup: &Cgroup, to: &Path, mib: u64) {
    let mut command = cgroup.command("dd", &["if=/dev/zero", "bs=64K"]);
    command.arg(format!("count={}", mib * 16)).arg(format!("of={}", to.display()));
    assert!(Process::spawn(&mut command).wait().success());
}
