//! Other mounts of a volume: bind mounts, and copies in other mount namespaces, which copy all mounts when created.
//! They are read from `/proc`; the file system itself gets no request. A thread can enter such a namespace.

use std::collections::HashSet;
use std::fs;
use std::os::fd::AsFd;
use std::panic;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use slackwater_host::MountInfo;
use slackwater_sync::shim::thread;

use crate::mounted::holders::{Hold, Holder};
use crate::mounted::processes::each_process;
use crate::sys;

/// Mounts of the device `dev`, each with one process of its namespace, except the one at `here` in this process's
/// namespace.
pub(super) fn other_mounts(here: &Path, dev: u64) -> Vec<Holder> {
    let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen = HashSet::new();
    let mut mounts = Vec::new();
    // A process without an answer belongs to another user, or has exited.
    for (pid, namespace) in each_process(|pid| Some((pid, fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?))) {
        let is_own = own.as_ref() == Some(&namespace);
        if !seen.insert(namespace) {
            continue;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        let Ok(mountinfo) = fs::read(process.join("mountinfo")) else { continue };
        let command = fs::read(process.join("comm")).unwrap_or_default();
        let command = String::from_utf8_lossy(command.trim_ascii_end()).into_owned();
        let holder = |path| Holder { pid, command: command.clone(), path, how: Hold::Mount };
        mounts.extend(points_of(&mountinfo, &device).filter(|path| !is_own || path != here).map(holder));
    }
    mounts
}

/// Does `work` in a mount namespace, on a thread of its own. Paths mean what they mean to a process of that namespace.
///
/// # Errors
/// No process is in it, or this process may not enter it. EAGAIN: one that does not answer may be in it.
pub(super) fn visit<T: Send + 'static>(
    namespace: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Errno> {
    let namespace = namespace.to_owned();
    let mut entrances = each_process(move |pid| {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let is_inside = fs::read_link(process.join("ns/mnt")).is_ok_and(|link| link == namespace);
        is_inside.then(|| {
            let entrance = open(process.join("ns/mnt"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            let root = open(process.join("root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            Ok::<_, Errno>((entrance, root))
        })
    });
    let missing = |is_incomplete| if is_incomplete { Errno::AGAIN } else { Errno::SRCH };
    let (entrance, root) = entrances.next().ok_or_else(|| missing(entrances.is_incomplete()))??;
    // Descriptors of further processes would keep the namespace.
    drop(entrances);
    let enter = move || -> Result<T, Errno> {
        // A thread that shares its root and working directory with others cannot leave its namespace.
        sys::have_own_directories()?;
        move_into_link_name_space(entrance.as_fd(), Some(LinkNameSpaceType::Mount))?;
        fchdir(&root)?;
        chroot(".")?;
        Ok(work())
    };
    let visitor = thread::Builder::new().name("sw-visit".to_owned()).spawn(enter).map_err(|_| Errno::AGAIN)?;
    visitor.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

fn points_of(mountinfo: &[u8], device: &str) -> impl Iterator<Item = PathBuf> {
    MountInfo::all(mountinfo).filter(move |mount| mount.device == device).map(|mount| mount.point)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn mounts_are_found_by_their_device() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    41 22 0:42 / /mnt/a\\040b rw - fuse.slackwater /srv/x rw\n\
                    43 22 0:42 /in /bound rw - fuse.slackwater /srv/x rw\n\
                    44 22 0:4 / /other rw - tmpfs none rw\n";
        let points: Vec<_> = points_of(text, "0:42").collect();
        assert_eq!(points, [Path::new("/mnt/a b"), Path::new("/bound")]);
        assert_eq!(points_of(b"nonsense\n1 2 0:42\n", "0:42").count(), 0);
    }

    #[test]
    fn a_mount_is_found_in_other_namespaces_but_not_at_its_own_path() {
        let dev = fs::metadata("/proc").unwrap().dev();
        let all = other_mounts(Path::new("/nowhere"), dev);
        assert!(all.iter().any(|mount| mount.path == Path::new("/proc") && mount.how == Hold::Mount));
        let elsewhere = other_mounts(Path::new("/proc"), dev);
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        let is_here = |holder: &Holder| {
            let its = fs::read_link(format!("/proc/{}/ns/mnt", holder.pid));
            holder.path == Path::new("/proc") && its.is_ok_and(|its| its == own)
        };
        assert!(!elsewhere.iter().any(is_here), "{elsewhere:?}");
    }
}
