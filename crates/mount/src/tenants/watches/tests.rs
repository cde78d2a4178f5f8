//! Ordinary directories stand in for cgroups: inotify and stat(2) treat them alike.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use slackwater_host::cgroup::Kind;

struct Folder {
    root: PathBuf,
}

impl Folder {
    fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("slackwater-watches-{}-{number}", std::process::id()));
        fs::create_dir(&root).unwrap();
        Self { root }
    }

    fn make(&self, name: &str) -> (CgroupId, PathBuf) {
        let directory = self.root.join(name);
        fs::create_dir(&directory).unwrap();
        (CgroupId { kind: Kind::Memory, inode: stat(&directory).unwrap().st_ino }, directory)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Whether an event arrives, within a time that only a failing test takes.
fn comes(watches: &Watches) -> bool {
    let timeout = Duration::from_secs(60).try_into().unwrap();
    let fd = watches.fd().expect("there is inotify");
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn a_removal_is_reported_once() {
    let folder = Folder::new();
    let watches = Watches::new();
    let ((a, a_path), (b, b_path)) = (folder.make("a"), folder.make("b"));
    for _ in 0..2 {
        watches.watch(a, &a_path).unwrap();
        watches.watch(b, &b_path).unwrap();
    }
    assert_eq!(watches.polling(), None);
    assert_eq!(watches.take_removed(), []);
    fs::remove_dir(&a_path).unwrap();
    assert!(comes(&watches));
    assert_eq!(watches.take_removed(), [TenantId::from(a)]);
    assert_eq!(watches.take_removed(), []);
    // The other one is still watched.
    fs::remove_dir(&b_path).unwrap();
    assert!(comes(&watches));
    assert_eq!(watches.take_removed(), [TenantId::from(b)]);
}

#[test]
fn a_removal_beside_a_tenant_is_not_reported() {
    let folder = Folder::new();
    let watches = Watches::new();
    let ((a, a_path), (_, other)) = (folder.make("a"), folder.make("other"));
    watches.watch(a, &a_path).unwrap();
    fs::remove_dir(other).unwrap();
    assert!(comes(&watches));
    assert_eq!(watches.take_removed(), []);
}

#[test]
fn a_tenant_that_is_already_removed_cannot_be_watched() {
    let folder = Folder::new();
    let watches = Watches::new();
    let (a, path) = folder.make("a");
    fs::remove_dir(&path).unwrap();
    assert!(matches!(watches.watch(a, &path), Err(LookupError::Moved)));
    let another = CgroupId { inode: u64::MAX, ..a };
    folder.make("a");
    assert!(matches!(watches.watch(another, &path), Err(LookupError::Moved)));
    assert_eq!(watches.take_removed(), []);
    assert!(matches!(watches.watch(a, &path.join("b/c")), Err(LookupError::Moved)));
    assert_eq!(watches.polling(), None);
}

#[test]
fn a_renamed_tenant_is_not_removed() {
    let folder = Folder::new();
    let watches = Watches::new();
    let (a, path) = folder.make("a");
    watches.watch(a, &path).unwrap();
    let renamed = folder.root.join("b");
    fs::rename(&path, &renamed).unwrap();
    watches.watch(a, &renamed).unwrap();
    let (_, other) = folder.make("other");
    fs::remove_dir(other).unwrap();
    assert!(comes(&watches));
    assert_eq!(watches.take_removed(), []);
    fs::remove_dir(renamed).unwrap();
    assert!(comes(&watches));
    assert_eq!(watches.take_removed(), [TenantId::from(a)]);
}

#[test]
fn without_inotify_tenants_are_polled_and_the_reason_is_given() {
    let folder = Folder::new();
    let watches = Watches::with_inotify(Err(Errno::MFILE));
    assert!(watches.fd().is_none() && watches.polling().unwrap().starts_with("inotify: "));
    let (a, path) = folder.make("a");
    watches.watch(a, &path).unwrap();
    assert_eq!(watches.take_removed(), []);
    fs::remove_dir(path).unwrap();
    assert_eq!(watches.take_removed(), [TenantId::from(a)]);
}

#[test]
fn a_tenant_that_cannot_be_watched_is_polled() {
    let folder = Folder::new();
    // Not an inotify descriptor: every watch fails.
    let watches = Watches::with_inotify(Ok(fs::File::open("/dev/null").unwrap().into()));
    let (a, path) = folder.make("a");
    assert_eq!(watches.polling(), None);
    watches.watch(a, &path).unwrap();
    assert!(watches.polling().unwrap().contains(folder.root.to_str().unwrap()));
    fs::remove_dir(path).unwrap();
    assert_eq!(watches.take_removed(), [TenantId::from(a)]);
}

#[test]
fn a_waiting_thread_wakes_up_when_polling_begins() {
    let watches = Watches::new();
    let mut state = watches.state.lock();
    // A file has no directory events.
    assert_eq!(watches.watch_parent(&mut state, Path::new("/proc/self/cgroup/x")), None);
    drop(state);
    assert!(watches.polling().is_some() && comes(&watches));
}
